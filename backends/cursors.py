"""Page cursors: opaque text that names the last item handed out."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import datetime
from typing import Any

from runner.errors import InvalidCursorError


def encode(value: Any) -> str:
    """``value`` (JSON) as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def decode(cursor: str) -> Any:
    """What :func:`encode` was given. Raises InvalidCursorError."""
    try:
        return json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, RecursionError):
        raise InvalidCursorError("not a cursor of this list", field="cursor") from None


def number(cursor: str) -> int:
    """The number, not negative and below 2**63, that a cursor is. Raises InvalidCursorError."""
    found = decode(cursor)
    if type(found) is int and 0 <= found < 2**63:
        return found
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def moment(cursor: str) -> tuple[datetime, str]:
    """The time and the id that make up a cursor. Raises InvalidCursorError."""
    match decode(cursor):
        case [str(text), str(id)]:
            with suppress(ValueError):
                if (at := datetime.fromisoformat(text)).tzinfo is not None:
                    return at, id
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def numbers(cursor: str, count: int, *, below: int) -> list[int]:
    """The ``count`` numbers from 0 to ``below`` that make up a cursor. Raises InvalidCursorError."""
    found = decode(cursor)
    if isinstance(found, list) and len(found) == count and all(type(n) is int and 0 <= n < below for n in found):
        return found
    raise InvalidCursorError("not a cursor of this list", field="cursor")
