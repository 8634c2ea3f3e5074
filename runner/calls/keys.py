"""API keys of the client's tenant (semantics: A1)."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidInputError
from ..keys import SCOPES, ApiKey, Scope, Secret
from ..legible import brief
from .base import Calls


class KeyCalls(Calls):
    """Make, list and revoke keys."""

    async def create_key(
        self, name: str, *, scopes: Sequence[Scope] = ("read", "write", "respond"), lifetime: float | None = None
    ) -> tuple[ApiKey, str]:
        """A new key of this client's tenant, and its text, which is kept nowhere.

        ``name``: for people, 1 to 100 characters. ``lifetime``: seconds until it expires; None: never.

        Raises InvalidInputError.
        """
        if not (1 <= len(name) <= 100 and name.isprintable()):
            raise InvalidInputError(f"the name of a key is 1 to 100 printable characters, got {brief(name)}", field="name")
        if not scopes or not set(scopes) <= set(SCOPES):
            raise InvalidInputError(
                f"scopes are some of {', '.join(SCOPES)}; got {', '.join(scopes) or 'none'}", field="scopes"
            )
        if lifetime is not None and not 0 < lifetime < 100 * 365 * 86400:
            raise InvalidInputError(f"lifetime is seconds, up to a hundred years; got {lifetime}", field="lifetime")
        secret = Secret.new()
        wanted = tuple(scope for scope in SCOPES if scope in scopes)
        key = ApiKey(key_id=secret.key_id, tenant=self.backend.tenant, name=name, scopes=wanted)
        return await self.backend.keys.create_key(key, secret.digest, lifetime=lifetime), str(secret)

    async def keys(self) -> list[ApiKey]:
        """The tenant's keys, the oldest first, with those that were revoked or have expired."""
        return await self.backend.keys.keys()

    async def revoke_key(self, key_id: str) -> bool:
        """Let no request with the key pass from here on; processes notice within seconds. False if there is no such key, or it
        was revoked before."""
        return await self.backend.keys.revoke_key(key_id)
