"""API keys: who may ask what of the HTTP API, and for which tenant (semantics: A1).

A key's text is ``ry_<key id>_<secret>``. The store keeps the id and a digest of the secret; the secret is random and long, so a
plain digest of it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict

Scope = Literal["read", "write", "respond", "admin"]
"""``read`` sees, ``write`` changes, ``respond`` answers questions, ``admin`` does all that and sees the whole deployment."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

_TEXT: Final = re.compile(r"ry_([0-9a-f]{16})_([0-9a-f]{64})")


class ApiKey(BaseModel):
    """What is known of a key. ``name``: for people; answers given with the key carry it."""

    model_config = ConfigDict(extra="forbid")

    key_id: str
    tenant: str = ""
    name: str
    scopes: tuple[Scope, ...] = ("read", "write", "respond")
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Secret:
    """A key in the hands of who uses it."""

    key_id: str
    secret: str

    @classmethod
    def new(cls) -> Secret:
        """A fresh one."""
        return cls(secrets.token_hex(8), secrets.token_hex(32))

    @classmethod
    def parse(cls, text: str) -> Secret | None:
        """The key that ``text`` is; None if it is none."""
        found = _TEXT.fullmatch(text)
        return cls(found[1], found[2]) if found else None

    @property
    def digest(self) -> bytes:
        """What the store keeps of the secret."""
        return hashlib.sha256(self.secret.encode()).digest()

    def __str__(self) -> str:
        return f"ry_{self.key_id}_{self.secret}"
