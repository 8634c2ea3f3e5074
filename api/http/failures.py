"""How often an address shows what is not valid: keys, tokens, and what a host's own scheme refuses (semantics: A2)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection

from runner.errors import BackendUnavailableError, ForbiddenError, UnauthenticatedError

from .principal import Principal
from .rates import Buckets

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[Principal | None]]
"""A host's own scheme: who asks, or None if that cannot be told (401). Raises ForbiddenError to refuse, and
BackendUnavailableError if nobody can tell now; any other error counts as a failure of who asks."""

PASSED: Final = 10_000
"""Callers of a host's own scheme that are remembered at most."""
SHOWN: Final = frozenset({b"authorization", b"cookie", b"x-api-key"})
"""Headers by which a caller who passed is known again; who shows none of them, by all that do not vary."""
VARYING: Final = frozenset(
    b"accept accept-encoding baggage cache-control connection content-encoding content-length content-type expect "
    b"idempotency-key if-match if-none-match last-event-id pragma priority range referer sentry-trace traceparent tracestate "
    b"transfer-encoding x-amzn-trace-id x-cloud-trace-context x-correlation-id x-request-id".split()
)
"""Headers that differ from one request of a caller to the next, and do not say who asks."""


class Failures:
    """``rate``, ``burst``: from one address, per second and after a pause."""

    def __init__(self, rate: float, burst: int) -> None:
        self._buckets = Buckets(rate, burst)

    def check(self, request: HTTPConnection) -> None:
        """Raises RateLimitedError if there were too many from where ``request`` came."""
        address = address_of(request)
        self._buckets.check(address, _too_many(address))

    def add(self, request: HTTPConnection) -> None:
        """Count one that happened, however many there were."""
        self._buckets.owe(address_of(request))

    def count(self, request: HTTPConnection) -> str:
        """Count one; the address it came from. Raises RateLimitedError."""
        address = address_of(request)
        self._buckets.take(address, _too_many(address))
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
        """Who asks. A failure counts once it happened: valid callers behind one proxy may be many at once. Of guesses that come
        at once each is owed. Raises UnauthenticatedError, RateLimitedError."""
        shown = _shown(request)
        if shown not in self._passed:
            self._failures.check(request)
        try:
            found = await self._asked(request)
        except (ForbiddenError, BackendUnavailableError):
            raise
        except Exception:
            self._passed.pop(shown, None)
            self._failures.add(request)
            raise
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
    """A digest of the headers that say who asks. The query cannot: this API refuses parameters that it does not have."""
    headers = sorted((bytes(name), bytes(value)) for name, value in request.scope["headers"])
    found = [each for each in headers if each[0] in SHOWN] or [each for each in headers if each[0] not in VARYING]
    return hashlib.sha256(repr(found).encode()).digest()


def _too_many(address: str) -> str:
    return f"keys, tokens or logins that are not valid from {address or 'one address'}"


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
