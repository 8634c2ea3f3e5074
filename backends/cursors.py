"""Page cursors: opaque text that names the last item handed out."""

from __future__ import annotations

import base64
import json
from typing import Any

from runner.errors import InvalidCursorError


def encode(value: Any) -> str:
    """``value`` (JSON) as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def decode(cursor: str) -> Any:
    """What :func:`encode` was given. Raises InvalidCursorError."""
    try:
        return json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except ValueError:
        raise InvalidCursorError("not a cursor of this list", field="cursor") from None


def numbers(cursor: str, count: int, *, below: int) -> list[int]:
    """The ``count`` numbers from 0 to ``below`` that make up a cursor. Raises InvalidCursorError."""
    found = decode(cursor)
    if isinstance(found, list) and len(found) == count and all(type(n) is int and 0 <= n < below for n in found):
        return found
    raise InvalidCursorError("not a cursor of this list", field="cursor")
