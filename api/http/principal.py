"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.errors import ForbiddenError
from runner.keys import ApiKey, Scope


@dataclass(frozen=True)
class Principal:
    """Who asks, for which tenant, with which scopes. ``id`` is what limits count by; ``name``, or else ``id``, is
    noted with answers.

    ``expires`` (Unix time): streams that are open then end, and no stream token lasts longer. A host's own scheme sets it where
    it knows; without it a stream lasts as long as the settings let it.
    ``only``: a stream token's (thread id, run id or None); nothing else may be read with it. ``key``: the digest of the API key
    that was shown, or that asked for the token.
    """

    tenant: str
    scopes: frozenset[Scope]
    id: str
    name: str | None = None
    only: tuple[str, str | None] | None = None
    key: bytes | None = field(default=None, repr=False)
    expires: float | None = None

    @classmethod
    def of_key(cls, key: ApiKey, digest: bytes) -> Principal:
        """Who shows ``key``."""
        expires = key.expires_at.timestamp() if key.expires_at is not None else None
        return cls(key.tenant, frozenset(key.scopes), key.key_id, key.name, key=digest, expires=expires)

    def has(self, scope: Scope) -> bool:
        """``admin`` includes all."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, scope: Scope) -> None:
        """Raises ForbiddenError without ``scope``."""
        if not self.has(scope):
            has = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"this needs the scope {scope}, the key has {has}", scope=scope)
