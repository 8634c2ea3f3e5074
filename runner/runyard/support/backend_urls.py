"""The registry of backends by URL scheme. The backends are the entry points of the group ``runyard.backends``.

An entry point is a coroutine function ``connect(url, *, tenant="", **options)`` that returns a
:class:`~runyard.ports.stores.Backend`. The name of the entry point is the URL scheme. Any package can add a scheme by an entry
point.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from ..ports.stores import Backend

GROUP: Final = "runyard.backends"

Connect: TypeAlias = "Callable[..., Awaitable[Backend]]"

_registered: dict[str, Connect] = {}


def register(scheme: str, connect: Connect) -> None:
    """Use ``connect`` for URLs of ``scheme`` in this process. ``connect`` replaces an installed backend."""
    _registered[scheme] = connect


@cache
def _installed() -> EntryPoints:
    from importlib.metadata import entry_points  # slow to import, because it imports email and zipfile

    return entry_points(group=GROUP)


def schemes() -> list[str]:
    """Return the URL schemes that this process can connect to."""
    return sorted({*_registered, *(point.name for point in _installed())})


def find(url: str) -> Connect:
    """Return the connect function for ``url``.

    Raises InvalidInputError if the URL has no scheme, or if no backend has this scheme. The message lists the known schemes.
    """
    scheme = urlsplit(url).scheme
    if connect := _registered.get(scheme):
        return connect
    for point in _installed().select(name=scheme):
        loaded: Connect = point.load()
        return loaded
    known = ", ".join(f"{name}://" for name in schemes()) or "none; reinstall runyard"
    what = f"unknown URL scheme {scheme!r}" if scheme else "the URL has no scheme"
    raise InvalidInputError(f"{what}; installed backends: {known}", field="url", scheme=scheme)


def _check_options(make: Connect, scheme: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInputError for an option that the backend does not have, such as an API key for Postgres."""
    parameters = signature(make).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    if unknown := sorted(options.keys() - parameters.keys()):
        raise InvalidInputError(f"{scheme}:// has no option {', '.join(unknown)}; leave it out", field=unknown[0])


async def connect(url: str, *, tenant: str = "", **options: Any) -> Backend:
    """Connect to the backend for ``url``. ``options``: the options of this backend (for postgresql: ``redis``, pool sizes).

    Raises InvalidInputError for an unknown scheme or option. Raises BackendUnavailableError if a server does not answer.
    """
    make = find(url)
    _check_options(make, urlsplit(url).scheme, options)
    backend = await make(url, tenant=tenant, **options)
    if rules := os.environ.get("RUNYARD_FAILPOINTS"):
        from . import failpoints

        return failpoints.armed(backend, failpoints.of_process(rules))
    return backend
