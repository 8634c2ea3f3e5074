"""A thread's version on the wire: the moment of its last change, as HTTP's entity tags carry it (RFC 9110)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def etag_of(updated_at: datetime) -> str:
    """The tag of a thread that changed last at ``updated_at`` (aware)."""
    return f'"{(updated_at - EPOCH) // MICROSECOND:x}"'


def moment_of(etag: str) -> datetime | None:
    """When the thread changed that ``etag`` is the tag of; None for a tag that no thread has."""
    found = re.fullmatch(r'"([0-9a-f]{1,14})"', etag)
    return EPOCH + int(found[1], 16) * MICROSECOND if found else None
