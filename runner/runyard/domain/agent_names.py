"""Names of agents.

An agent of an app with a namespace has the name ``namespace/agent``. An agent of an app without a namespace has a name without
``/``. A name that ends with ``/`` stands for the default agent of its namespace. The name None stands for the default agent of
an app without a namespace. When a store accepts a run for a default agent, the store records the name of this agent in the run.
If no worker of the namespace was ever registered, the store records the name at the first claim instead. In Postgres,
``functions/agents.sql`` has the same rules.
"""

from __future__ import annotations

from typing import TypeGuard

from ..errors import InvalidInputError
from .quoting import brief
from .validation import check_id


def check_part(value: str, field: str) -> str:
    """Return ``value`` if it is a valid id without ``/``. Otherwise raise InvalidInputError."""
    if "/" in check_id(value, field):
        raise InvalidInputError(
            f"{field} cannot contain '/', which separates a namespace from an agent's name; got {brief(value)}", field=field
        )
    return value


def is_agent(name: str | None) -> TypeGuard[str]:
    """Return whether ``name`` is the name of one agent. If not, ``name`` stands for a default agent."""
    return name is not None and not name.endswith("/")


def namespace_of(name: str | None) -> str:
    """Return the namespace of a name, or the empty text."""
    namespace, slash, _ = (name or "").partition("/")
    return namespace if slash else ""


def qualified(namespace: str, name: str) -> str:
    """Return the name of an agent with its namespace. A name with a ``/`` is returned unchanged."""
    return f"{namespace}/{name}" if namespace and "/" not in name else name


def wanted(namespace: str, name: str | None) -> str | None:
    """Return the full name of the agent that a request from ``namespace`` names by ``name``.

    If ``name`` is None, return the name that stands for the default agent.
    """
    if name is None:
        return f"{namespace}/" if namespace else None
    return qualified(namespace, name)


def served_words(name: str | None) -> str:
    """Return the words for ``name`` in a message, such as ``agent NAME`` or ``an agent of namespace NAMESPACE``."""
    if is_agent(name):
        return f"agent {name}"
    namespace = namespace_of(name)
    return f"an agent of namespace {namespace}" if namespace else "an agent without a namespace"
