"""The default deployment of a program: from the environment, from the ``runyard dev`` of this folder, or from ``.env``.

This module also finds the namespace of the program's agents, in the environment or in ``.env``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Final

from ..domain.agent_names import check_part
from ..errors import InvalidInputError
from . import dev_file, env_file

URL: Final = "RUNYARD_POSTGRES_URL"
REDIS: Final = "RUNYARD_REDIS_URL"
API_KEY: Final = "RUNYARD_API_KEY"
NAMESPACE: Final = "RUNYARD_NAMESPACE"
"""The variables of the environment and of ``.env`` that name a deployment and the namespace of a program."""


@dataclass(frozen=True, slots=True)
class Location:
    """A deployment.

    ``url``: the URL of Postgres, of the HTTP API, or of another backend. ``redis`` and ``api_key``: None if the backend does
    not need them. ``source``: ``argument``, ``environment``, ``runyard dev`` or ``.env``.
    """

    url: str
    redis: str | None = None
    api_key: str | None = field(default=None, repr=False)
    source: str = "argument"

    @property
    def options(self) -> dict[str, str]:
        """The options of the deployment's backend."""
        named = {"redis": self.redis, "api_key": self.api_key}
        return {name: value for name, value in named.items() if value is not None}


def locate(url: str | None = None, *, redis: str | None = None, api_key: str | None = None) -> Location:
    """Return the deployment at ``url``. Without ``url``, return the first deployment that is found.

    The search covers the environment, the ``runyard dev`` of this folder or of a folder above it, and ``.env``, in this order.

    ``redis`` and ``api_key`` come from the same source as the URL, unless they are given as arguments. An API key is used for
    an ``http`` or ``https`` URL only.

    Raises InvalidInputError if no deployment is found, or if Postgres is named without Redis. Raises InvalidInputError if
    ``.env`` cannot be opened. If ``.env`` names a deployment, the file must be UTF-8, and must belong to this user or to root.
    Other users must not have the right to write to the file. Otherwise raises InvalidInputError.
    """
    if url is not None:
        return _complete(url, redis, api_key, "argument", os.environ)
    if os.environ.get(URL):
        return _complete(os.environ[URL], redis, api_key, "environment", os.environ)
    if (found := dev_file.find()) is not None:
        return Location(found.postgres_url, redis or found.redis_url, None, "runyard dev")
    if (named := _env_file(URL, f"set {URL} and {REDIS}")).get(URL):
        return _complete(named[URL], redis, api_key, env_file.ENV_FILE, named)
    raise InvalidInputError(
        f"no deployment to connect to: start `runyard dev` in this folder, give a URL, or set {URL} and {REDIS} "
        f"(over HTTP: {URL}=https://… and {API_KEY})"
    )


def _complete(url: str, redis: str | None, api_key: str | None, source: str, named: Mapping[str, str]) -> Location:
    if url.startswith(("http://", "https://")):
        return Location(url, None, api_key or named.get(API_KEY) or None, source)
    redis = redis or named.get(REDIS) or None
    if redis is None and url.startswith("postgres"):
        raise InvalidInputError(f"Postgres is named but Redis is not: set {REDIS} or give --redis")
    return Location(url, redis, None, source)


def namespace_of_program(namespace: str | None) -> str:
    """Return ``namespace``. For None, return the namespace in the environment or in ``.env``.

    The empty text means no namespace.

    Raises InvalidInputError for a namespace that is not a valid id or contains ``/``. If ``.env`` has a namespace, raises the
    errors of :func:`locate` about ``.env``. A program that ignored its namespace would answer the threads of other programs.
    """
    if namespace is None:
        namespace = os.environ.get(NAMESPACE)
    if namespace is None:
        namespace = _env_file(NAMESPACE, f"set {NAMESPACE}, which may be empty").get(NAMESPACE)
    return check_part(namespace, "namespace") if namespace else ""


def _env_file(name: str, instead: str) -> dict[str, str]:
    """Return the variables of ``.env`` if it contains ``name``.

    ``instead``: a remedy that the error about a refused file names.

    A reference to an environment variable, such as ``${NAME}``, is not replaced by the variable's value. If it were replaced,
    the file could send the value to any server.

    The owner of the file is checked only if the file contains ``name``.
    """
    if (found := env_file.read(name)) is None:
        return {}
    text, status = found
    dev_file.check_owner(Path(env_file.ENV_FILE), status, root=True, instead=instead)
    from dotenv import dotenv_values

    variables = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in variables.items() if value is not None}
