"""Entity tags of HTTP (RFC 9110) for threads. The tag of a thread encodes the time of its last change."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def etag_of(updated_at: datetime) -> str:
    """Return the tag of a thread. ``updated_at``: the time of the thread's last change, with a time zone."""
    return f'"{(updated_at - EPOCH) // MICROSECOND:x}"'


def moment_of(etag: str) -> datetime | None:
    """Return the time that ``etag`` encodes, or None if no thread can have this tag."""
    found = re.fullmatch(r'"([0-9a-f]{1,14})"', etag)
    return EPOCH + int(found[1], 16) * MICROSECOND if found else None
