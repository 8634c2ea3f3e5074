"""How often an address shows what is not valid: keys, tokens, and what a host's own scheme refuses (semantics: A2)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection

from runner.errors import UnauthenticatedError

from .principal import Principal
from .rates import Buckets

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[Principal | None]]
"""A host's own scheme: who asks, or None if that cannot be told (401). Raises ForbiddenError to refuse."""

PASSED: Final = 10_000
"""Callers of a host's own scheme that are remembered at most."""
SHOWN: Final = ("authorization", "cookie", "x-api-key")
"""Headers by which a caller who passed is known again."""


class Failures:
    """``rate``, ``burst``: from one address, per second and after a pause."""

    def __init__(self, rate: float, burst: int) -> None:
        self._buckets = Buckets(rate, burst)

    def count(self, request: HTTPConnection) -> str:
        """Count one; the address it came from. Raises RateLimitedError."""
        address = address_of(request)
        self._buckets.take(address, f"keys, tokens or logins that are not valid from {address or 'one address'}")
        return address

    def give_back(self, address: str) -> None:
        """One that was counted was valid, or nobody knows."""
        self._buckets.give_back(address)


class OwnScheme:
    """A host's own scheme. It is not asked for an address with too many failures, but for callers who passed before."""

    def __init__(self, authenticate: Authenticate, failures: Failures) -> None:
        self._authenticate, self._failures = authenticate, failures
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    async def admit(self, request: HTTPConnection) -> Principal:
        """Who asks. Counts as a failure until that is known: calls that come at once are bounded too. Raises
        UnauthenticatedError, RateLimitedError."""
        shown = _shown(request)
        address = self._failures.count(request) if shown not in self._passed else None
        failed = False
        try:
            found = await self._asked(request)
        except UnauthenticatedError:
            failed = True
            self._passed.pop(shown, None)
            if address is None:
                self._failures.count(request)
            raise
        finally:
            if address is not None and not failed:
                self._failures.give_back(address)
        if shown:
            self._keep(shown)
        return found

    async def _asked(self, request: HTTPConnection) -> Principal:
        found = await self._authenticate(request)
        if found is None:
            raise UnauthenticatedError("the request does not say who asks, or that is not valid")
        return found

    def _keep(self, shown: bytes) -> None:
        self._passed[shown] = None
        self._passed.move_to_end(shown)
        if len(self._passed) > PASSED:
            self._passed.popitem(last=False)


def _shown(request: HTTPConnection) -> bytes:
    """A digest of what says who asks; empty if that is in none of the usual headers."""
    found = [value for name in SHOWN for value in (name, *request.headers.getlist(name))]
    return hashlib.sha256("\0".join(found).encode()).digest() if len(found) > len(SHOWN) else b""


def address_of(request: HTTPConnection) -> str:
    """Whom failures count for: the other end as the server gives it, of IPv6 the network of 64 bits that one customer has."""
    host = request.client.host if request.client is not None else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))
