"""The API keys that this process has looked up, and a limit on look-ups of unknown keys (A1, A2).

A found key is looked up again after FOUND_SECONDS, and an unknown key after NOT_FOUND_SECONDS. If an address has sent too many
invalid keys, its unknown keys are refused without a query. Keys that this process has found are still accepted.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from typing import Final, TypeVar

from starlette.requests import HTTPConnection

from runyard.domain.api_keys import Secret
from runyard.errors import UnauthenticatedError
from runyard.ports.stores import KeyStore

from .failures import Failures
from .principal import Principal

FOUND_SECONDS: Final = 5.0
"""Seconds for which a found key is not looked up again. During this time, a revoked key is still accepted."""
NOT_FOUND_SECONDS: Final = 30.0
"""Seconds for which an unknown key is refused without another look-up."""
MAX_KEYS: Final = 10_000
"""Maximum number of remembered found keys, and of remembered unknown keys."""


_NOBODY: Final = (0.0, None)

T = TypeVar("T")


class Keyring:
    """The known keys. ``failures``: the counter of invalid keys."""

    def __init__(self, failures: Failures) -> None:
        self._met: OrderedDict[str, tuple[float, Principal]] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Principal | None]] = {}
        self._failures = failures

    async def open(self, text: str, keys: KeyStore, request: HTTPConnection) -> Principal:
        """Return the principal of the key ``text``. Raises UnauthenticatedError, RateLimitedError."""
        secret = Secret.parse(text)
        digest = secret.digest if secret is not None else b""
        if secret is not None and _has(self._met.get(secret.key_id, _NOBODY)[1], digest):
            found = await self.find(secret.key_id, keys)
        else:
            found = await self._of_stranger(secret, digest, keys, request)
        if found is None or not _has(found, digest):
            raise UnauthenticatedError("the API key is not valid: unknown, expired or revoked")
        return found

    async def _of_stranger(
        self, secret: Secret | None, digest: bytes, keys: KeyStore, request: HTTPConnection
    ) -> Principal | None:
        """Return the principal of a key that this process does not know, or None.

        A look-up counts as a failure until the key is found. The limit on failures therefore also limits simultaneous
        look-ups. A caller may wait for the look-up of another caller. If the key is not found, the waiting caller also counts
        as a failure.
        """
        if secret is not None and secret.key_id in self._asking:
            found = await self.find(secret.key_id, keys)
            if not _has(found, digest):
                self._failures.count(request)
            return found
        address = self._failures.count(request)
        if secret is None:
            return None
        failed = False
        try:
            found = await self.find(secret.key_id, keys)
            failed = not _has(found, digest)
        finally:
            if not failed:
                self._failures.give_back(address)
        return found

    async def find(self, key_id: str, keys: KeyStore) -> Principal | None:
        """Return the principal of a key, or None if there is no such key.

        The result of a look-up is used for FOUND_SECONDS, or for NOT_FOUND_SECONDS if the key is unknown. Simultaneous callers
        share one look-up.
        """
        now = time.monotonic()
        if (known := self._met.get(key_id)) and now - known[0] < FOUND_SECONDS:
            return known[1]
        if (since := self._unknown.get(key_id)) is not None and now - since < NOT_FOUND_SECONDS:
            return None
        asking = self._asking.get(key_id)
        if asking is None:
            asking = self._asking[key_id] = asyncio.create_task(self._ask(key_id, keys), name="runyard-key")
            asking.add_done_callback(lambda task: self._asked(key_id, task))
        return await asyncio.shield(asking)

    async def _ask(self, key_id: str, keys: KeyStore) -> Principal | None:
        now = time.monotonic()
        found = await keys.find_key(key_id)
        self._met.pop(key_id, None)
        self._unknown.pop(key_id, None)
        if found is None:
            _keep(self._unknown, key_id, now)
            return None
        principal = Principal.of_key(*found)
        _keep(self._met, key_id, (now, principal))
        return principal

    def _asked(self, key_id: str, task: asyncio.Task[Principal | None]) -> None:
        del self._asking[key_id]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved, even if no caller waits for it

    def forget(self) -> None:
        """Remove every key from memory. The next request with a key looks up the key again."""
        self._met.clear()
        self._unknown.clear()


def _has(principal: Principal | None, digest: bytes) -> bool:
    return principal is not None and principal.key is not None and hmac.compare_digest(principal.key, digest)


def _keep(kept: OrderedDict[str, T], key_id: str, value: T) -> None:
    kept[key_id] = value
    if len(kept) > MAX_KEYS:
        kept.popitem(last=False)
