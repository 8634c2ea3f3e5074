"""Count the requests per second and the open streams of each name in this process (A2).

``settings.py`` has the limits. ``problems.py`` sends ``Retry-After``.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from runyard.errors import RateLimitedError

from .settings import ApiSettings

MAX_NAMES: Final = 10_000
"""Maximum number of names whose rates are kept. The least recently used name is removed first."""


class Buckets:
    """A token bucket for each name. A bucket fills at ``rate`` tokens per second up to ``burst`` tokens."""

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def level(self, name: str) -> float:
        """Return the number of tokens that may be taken now."""
        level, since = self._levels.get(name, (float(self.burst), 0.0))
        return min(level + (time.monotonic() - since) * self.rate, float(self.burst))

    def check(self, name: str, what: str) -> None:
        """Raise RateLimitedError if no token may be taken. The message names ``what``."""
        left = self.level(name)
        if left < 1:
            self._set(name, left)
            raise RateLimitedError(f"more than {self.rate:g} {what} per second; wait", retry_after=(1 - left) / self.rate)

    def take(self, name: str, what: str) -> None:
        """Take a token. Raises RateLimitedError if no token is left. The message names ``what``."""
        self.check(name, what)
        self.owe(name)

    def owe(self, name: str) -> None:
        """Take a token, even if none is left."""
        self._set(name, self.level(name) - 1)

    def give_back(self, name: str) -> None:
        """Put a token back into the bucket."""
        self._set(name, min(self.level(name) + 1, float(self.burst)))

    def _set(self, name: str, level: float) -> None:
        self._levels[name] = (level, time.monotonic())
        self._levels.move_to_end(name)
        if len(self._levels) > MAX_NAMES:
            self._levels.popitem(last=False)


class Rates:
    """The rate of requests and the number of open streams of each key."""

    def __init__(self, settings: ApiSettings) -> None:
        self._requests = Buckets(settings.requests_per_second, settings.burst)
        self._most = settings.streams_per_key
        self._streams: Counter[str] = Counter()
        self._policy = f'"key";q={settings.burst};w={math.ceil(settings.burst / settings.requests_per_second)}'

    def take(self, key: str) -> None:
        """Count a request of ``key``. Raises RateLimitedError."""
        self._requests.take(key, "requests")

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers about the rate of ``key`` (draft-ietf-httpapi-ratelimit-headers-11).

        ``r`` is the number of requests that are possible at once. ``t`` is the number of seconds until the full burst is
        possible again. If ``r`` is 0, ``t`` is the number of seconds until one request is possible.
        """
        left = self._requests.level(key)
        until = (1 if left < 1 else self._requests.burst) - left
        return {
            "RateLimit-Policy": self._policy,
            "RateLimit": f'"key";r={int(left)};t={math.ceil(until / self._requests.rate)}',
        }

    @contextmanager
    def stream(self, key: str) -> Iterator[None]:
        """Count an open stream of ``key``, or a request that waits for a run. Raises RateLimitedError."""
        if self._streams[key] >= self._most:
            raise RateLimitedError(f"{self._most} streams and waits are open with this key already; end one", retry_after=1)
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]
