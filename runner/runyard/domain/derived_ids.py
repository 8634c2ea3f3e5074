"""Ids and digests that are derived from content. A repetition with the same content has the same ones."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any, Final

_NAMESPACE: Final = uuid.UUID("5f1c8f0e-6d0b-5c39-9a53-0c5d5d1f7a10")


def derived_id(kind: str, *parts: str | int) -> str:
    """Return the UUID of ``parts``, as text. The same parts have another id for another ``kind`` of object."""
    return str(uuid.uuid5(_NAMESPACE, json.dumps([kind, *parts])))


def digest(value: Any) -> str:
    """Return a short digest of a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
