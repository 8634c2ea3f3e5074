"""Counts invalid keys, tokens and logins by the address that sent them (A2)."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection

from runyard.errors import BackendUnavailableError, ForbiddenError, UnauthenticatedError

from .principal import Principal
from .rates import Buckets

Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[Principal | None]]
"""A host's own function that authenticates callers. It returns the principal, or None if the caller is unknown (401). It raises
ForbiddenError to refuse a caller, and BackendUnavailableError if it cannot check callers at the moment. Any other error of the
function counts as a failure of the caller."""

MAX_PASSED_CALLERS: Final = 10_000
"""Maximum number of remembered callers that the host's function has accepted."""
SHOWN: Final = frozenset({b"authorization", b"cookie", b"x-api-key"})
"""Headers that identify a caller. If a request has none of these headers, all its headers except VARYING identify the
caller."""
VARYING: Final = frozenset(
    b"accept accept-encoding baggage cache-control connection content-encoding content-length content-type expect "
    b"idempotency-key if-match if-none-match last-event-id pragma priority range referer sentry-trace traceparent tracestate "
    b"transfer-encoding x-amzn-trace-id x-cloud-trace-context x-correlation-id x-request-id".split()
)
"""Headers that can differ between requests of one caller."""


class Failures:
    """Failures by address. ``rate``: the number of failures per second that are allowed for one address. ``burst``: the number
    of failures that are allowed at once for one address after a pause."""

    def __init__(self, rate: float, burst: int) -> None:
        self._buckets = Buckets(rate, burst)

    def check(self, request: HTTPConnection) -> None:
        """Raise RateLimitedError if the address of ``request`` has too many failures."""
        address = address_of(request)
        self._buckets.check(address, _too_many(address))

    def add(self, request: HTTPConnection) -> None:
        """Count a failure, even beyond the limit."""
        self._buckets.owe(address_of(request))

    def count(self, request: HTTPConnection) -> str:
        """Count a failure and return its address. Raises RateLimitedError."""
        address = address_of(request)
        self._buckets.take(address, _too_many(address))
        return address

    def give_back(self, address: str) -> None:
        """Subtract a counted failure, because the caller was valid or could not be checked."""
        self._buckets.give_back(address)


class OwnScheme:
    """Authenticates callers with the host's own function.

    If an address has too many failures, unknown callers from this address are refused without a call of the function. Callers
    that the function has accepted before are known.
    """

    def __init__(self, authenticate: Authenticate, failures: Failures) -> None:
        self._authenticate, self._failures = authenticate, failures
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    async def admit(self, request: HTTPConnection) -> Principal:
        """Return the principal of ``request``. Raises UnauthenticatedError, RateLimitedError.

        A failure is counted after the host's function has refused the caller, and not before the call. Many valid callers
        behind one proxy may therefore send requests at once. All simultaneous failures are counted, even beyond the limit.
        """
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
            raise UnauthenticatedError("the request has no credentials, or they are not valid")
        return found

    def _keep(self, shown: bytes) -> None:
        self._passed[shown] = None
        self._passed.move_to_end(shown)
        if len(self._passed) > MAX_PASSED_CALLERS:
            self._passed.popitem(last=False)


def _shown(request: HTTPConnection) -> bytes:
    """Return a digest of the headers that identify the caller. The query is left out. No caller can identify itself by a
    parameter of the query, because the API refuses parameters that the route does not declare."""
    headers = sorted((bytes(name), bytes(value)) for name, value in request.scope["headers"])
    found = [each for each in headers if each[0] in SHOWN] or [each for each in headers if each[0] not in VARYING]
    return hashlib.sha256(repr(found).encode()).digest()


def _too_many(address: str) -> str:
    return f"keys, tokens or logins that are not valid from {address or 'one address'}"


def address_of(request: HTTPConnection) -> str:
    """Return the name under which failures are counted: the IPv4 address, or the /64 network of an IPv6 address."""
    host = request.client.host if request.client is not None else ""
    try:
        found = ip_address(host)
    except ValueError:
        return host
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))
