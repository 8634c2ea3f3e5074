"""The memory store of API keys."""

from __future__ import annotations

from datetime import timedelta

from runyard.domain.api_keys import MAX_ENDED_KEYS, MAX_VALID_KEYS, ApiKey, too_many_keys

from .state import Database


class MemoryKeyStore:
    """API keys of one tenant. Only ``find_key`` searches all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey:
        now = self.db.now()
        if sum(self._is_valid(known) for known in self._own()) >= MAX_VALID_KEYS:
            raise too_many_keys()
        ends = (now + timedelta(seconds=lifetime) if lifetime is not None else None, key.expires_at)
        expires = min((end for end in ends if end is not None), default=None)
        made = key.model_copy(update={"tenant": self.tenant, "created_at": now, "expires_at": expires})
        self.db.keys[key.key_id] = (made, digest)
        return made.model_copy()

    async def keys(self) -> list[ApiKey]:
        """Return the valid keys of the tenant, and the newest MAX_ENDED_KEYS of its other keys. The oldest key comes first."""
        ended = [key.key_id for key in self._own() if not self._is_valid(key)]
        left_out = {*ended[:-MAX_ENDED_KEYS]}
        return [key.model_copy() for key in self._own() if key.key_id not in left_out]

    async def revoke_key(self, key_id: str) -> bool:
        key, _ = self.db.keys.get(key_id, (None, b""))
        if key is None or key.tenant != self.tenant or key.revoked_at is not None:
            return False
        key.revoked_at = self.db.now()
        return True

    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        key, digest = self.db.keys.get(key_id, (None, b""))
        return (key.model_copy(), digest) if key is not None and self._is_valid(key) else None

    def _own(self) -> list[ApiKey]:
        return [key for key, _ in self.db.keys.values() if key.tenant == self.tenant]

    def _is_valid(self, key: ApiKey) -> bool:
        return key.revoked_at is None and (key.expires_at is None or key.expires_at > self.db.now())
