"""Cursors of pages. A cursor is opaque text that names the last returned item."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from runyard.errors import InvalidCursorError
from runyard.models import ALLOWED_YEARS


def encode(value: Any) -> str:
    """Encode ``value`` (JSON) as a cursor."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


def decode(cursor: str) -> Any:
    """Decode a cursor that :func:`encode` made. Raises InvalidCursorError for any other text."""
    try:
        return json.loads(base64.urlsafe_b64decode(cursor.encode()))
    except (ValueError, RecursionError):
        raise InvalidCursorError("not a cursor of this list", field="cursor") from None


def number(cursor: str) -> int:
    """Decode a cursor that is a number from 0 to 2**63 - 1. Raises InvalidCursorError."""
    found = decode(cursor)
    if type(found) is int and 0 <= found < 2**63:
        return found
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def of_thread(key: int, *, newest_first: bool) -> str:
    """Encode the place of a thread in a list of threads. The two orders of the list have different cursors."""
    return encode([key] if newest_first else key)


def thread(cursor: str, *, newest_first: bool) -> int:
    """Decode a cursor that :func:`of_thread` made for the same order of the list. Raises InvalidCursorError, also for a cursor
    of the opposite order."""
    return numbers(cursor, 1, below=2**63)[0] if newest_first else number(cursor)


def name(cursor: str) -> str:
    """Decode a cursor that is a name. Raises InvalidCursorError."""
    found = decode(cursor)
    if isinstance(found, str) and "\0" not in found:
        with suppress(UnicodeEncodeError):
            found.encode()
            return found
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def of_moment(at: datetime, id: str) -> str:
    """Encode a time and an id as a cursor."""
    return encode([at.isoformat(), id])


def moment(cursor: str) -> tuple[datetime, str]:
    """Decode a cursor that :func:`of_moment` made. Raises InvalidCursorError."""
    match decode(cursor):
        case [str(text), str(id)] if "\0" not in id:
            with suppress(ValueError):  # UnicodeEncodeError included
                id.encode()
                at = datetime.fromisoformat(text)
                if at.tzinfo is not None and at.year in ALLOWED_YEARS:
                    return at, id
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def of_run(accepted_at: datetime, number: int) -> str:
    """Encode the place of a run in a list of runs."""
    return of_moment(accepted_at, str(number))


def run(cursor: str) -> tuple[datetime, int]:
    """Decode a cursor that :func:`of_run` made. Raises InvalidCursorError."""
    at, number = moment(cursor)
    if number.isascii() and number.isdigit() and (last := int(number)) < 2**63:
        return at, last
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def message(cursor: str) -> tuple[datetime, UUID]:
    """Decode a cursor that consists of the time and the id of a message. Raises InvalidCursorError."""
    at, id = moment(cursor)
    with suppress(ValueError):
        return at, UUID(id)
    raise InvalidCursorError("not a cursor of this list", field="cursor")


def numbers(cursor: str, count: int, *, below: int) -> list[int]:
    """Decode a cursor that consists of ``count`` numbers from 0 to ``below`` - 1. Raises InvalidCursorError."""
    found = decode(cursor)
    if isinstance(found, list) and len(found) == count and all(type(n) is int and 0 <= n < below for n in found):
        return found
    raise InvalidCursorError("not a cursor of this list", field="cursor")


START: Final = (datetime(1970, 1, 1, tzinfo=UTC), -1, "")
"""The place before the first entry of a timeline."""


def place(cursor: str) -> tuple[datetime, int, str]:
    """Decode a cursor that consists of a time, the kind of an entry and its key. Raises InvalidCursorError."""
    match decode(cursor):
        case [str(text), int(kind), str(key)] if type(kind) is int and 0 <= kind < 10:
            at, key = moment(encode([text, key]))
            return at, kind, key
    raise InvalidCursorError("not a cursor of this list", field="cursor")
