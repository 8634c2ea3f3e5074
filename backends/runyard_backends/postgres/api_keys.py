"""API keys on Postgres."""

from __future__ import annotations

from runyard.domain.api_keys import MAX_ENDED_KEYS, MAX_VALID_KEYS, ApiKey, too_many_keys

from .codec import Row
from .database import Database


class PostgresKeyStore:
    """API keys of one tenant. Only ``find_key`` searches all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey:
        """Store a key of this tenant. ``digest``: the digest of its secret. ``lifetime``: seconds until the key expires, or
        None. The key also expires at ``key.expires_at``. Raises InvalidInputError if the tenant has MAX_VALID_KEYS valid
        keys."""
        expiry = (lifetime, MAX_VALID_KEYS, key.expires_at)
        row = await self.db.row("create_key", key.key_id, self.tenant, key.name, key.scopes, digest, *expiry)
        if row is None:
            raise too_many_keys()
        return _key(row)

    async def keys(self) -> list[ApiKey]:
        """Return the valid keys of the tenant, and the newest MAX_ENDED_KEYS of its other keys. The oldest key comes first."""
        return [_key(row) for row in await self.db.rows("keys", self.tenant, MAX_ENDED_KEYS)]

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key of this tenant. Return True if this call revoked the key."""
        return await self.db.row("revoke_key", self.tenant, key_id) is not None

    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """Return a valid key of any tenant and the digest of its secret, or None."""
        row = await self.db.row("find_key", key_id)
        return (_key(row), bytes(row["digest"])) if row else None


def _key(row: Row) -> ApiKey:
    return ApiKey(**{name: row[name] for name in ApiKey.model_fields})
