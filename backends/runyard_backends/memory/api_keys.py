"""The memory store of API keys."""

from __future__ import annotations

from datetime import timedelta

from runyard.domain.api_keys import ApiKey

from .state import Database


class MemoryKeyStore:
    """API keys of one tenant. ``find_key`` alone searches all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey:
        now = self.db.now()
        expires = now + timedelta(seconds=lifetime) if lifetime is not None else None
        made = key.model_copy(update={"tenant": self.tenant, "created_at": now, "expires_at": expires})
        self.db.keys[key.key_id] = (made, digest)
        return made.model_copy()

    async def keys(self) -> list[ApiKey]:
        """Return all keys of the tenant, the oldest first."""
        return [key.model_copy() for key, _ in self.db.keys.values() if key.tenant == self.tenant]

    async def revoke_key(self, key_id: str) -> bool:
        key, _ = self.db.keys.get(key_id, (None, b""))
        if key is None or key.tenant != self.tenant or key.revoked_at is not None:
            return False
        key.revoked_at = self.db.now()
        return True

    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        key, digest = self.db.keys.get(key_id, (None, b""))
        if key is None or key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= self.db.now()):
            return None
        return key.model_copy(), digest
