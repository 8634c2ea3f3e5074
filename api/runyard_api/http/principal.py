"""The caller of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from runyard.domain.api_keys import ApiKey, Scope
from runyard.errors import ForbiddenError


@dataclass(frozen=True)
class Principal:
    """The caller of a request: its tenant and scopes.

    ``id``: the name by which rates are counted. ``name``: the name that is stored with answers to HITL requests, by default
    ``id``. ``expires``: the latest end of streams and stream tokens, in seconds of Unix time. A host's own function may set
    ``expires``. If ``expires`` is None, only the settings limit a stream. ``only``: for a stream token, the thread id and the
    run id (or None) of the streams that it can read. ``key``: the digest of the API key of the request, or of the key that
    created the token.
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
        """Return the principal of ``key``."""
        expires = key.expires_at.timestamp() if key.expires_at is not None else None
        return cls(key.tenant, frozenset(key.scopes), key.key_id, key.name, key=digest, expires=expires)

    def has(self, scope: Scope) -> bool:
        """Return True if the principal has ``scope``. ``admin`` includes every scope."""
        return scope in self.scopes or "admin" in self.scopes

    def require(self, scope: Scope) -> None:
        """Raise ForbiddenError if the principal lacks ``scope``."""
        if not self.has(scope):
            has = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"this request needs the scope {scope}; the key has {has}", scope=scope)
