"""API keys: the tenant and the scopes of a user of the HTTP API (A1).

A key's text is ``ry_<key id>_<secret>``. The store keeps the id and a digest of the secret. The secret is 32 random bytes, so
that nobody can find the secret from the digest.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from ..errors import InvalidInputError

Scope = Literal["read", "write", "respond", "metrics", "admin"]
"""A scope allows a kind of calls. ``read`` allows reads. ``write`` allows changes. ``respond`` allows answers to requests.

``metrics`` allows reads of the metrics of API processes. ``admin`` allows all of these calls, and reads of the deployment's
workers and queues. A key with ``admin`` and without a tenant also allows changes of the workers and queues.
"""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
MAX_VALID_KEYS: Final = 1000
"""Maximum number of valid keys of a tenant (A2). A valid key is neither revoked nor expired."""
MAX_ENDED_KEYS: Final = 1000
"""Maximum number of revoked and expired keys in a list. If there are more, the newest are listed."""

_TEXT: Final = re.compile(r"ry_([0-9a-f]{16})_([0-9a-f]{64})")


class ApiKey(BaseModel):
    """The stored data of a key. ``name``: the name by which people recognize the key.

    If a user of the key answers a HITL request, this name becomes the request's ``answered_by``.
    """

    model_config = ConfigDict(extra="forbid")

    key_id: str
    tenant: str = ""
    name: str
    scopes: tuple[Scope, ...] = ("read", "write", "respond")
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class IssuedKey(ApiKey):
    """A new key that a server of the HTTP API made, with its ``text``. No store keeps the text."""

    text: str = Field(repr=False, exclude=True)


def too_many_keys() -> InvalidInputError:
    """Return the error for a tenant that already has MAX_VALID_KEYS valid keys."""
    return InvalidInputError(f"the tenant has {MAX_VALID_KEYS} valid keys; revoke one first", field="name")


@dataclass(frozen=True, slots=True)
class Secret:
    """The id and the secret of a key. The user of the key has both. The store does not keep the secret."""

    key_id: str
    secret: str

    @classmethod
    def new(cls) -> Secret:
        """Return a new random key."""
        return cls(secrets.token_hex(8), secrets.token_hex(32))

    @classmethod
    def parse(cls, text: str) -> Secret | None:
        """Return the key whose text is ``text``, or None if ``text`` is not a key."""
        found = _TEXT.fullmatch(text)
        return cls(found[1], found[2]) if found else None

    @property
    def digest(self) -> bytes:
        """The digest of the secret. The store keeps this digest."""
        return hashlib.sha256(self.secret.encode()).digest()

    def __str__(self) -> str:
        return f"ry_{self.key_id}_{self.secret}"
