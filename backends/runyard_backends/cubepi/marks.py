"""The tag of an imported thread. The tag has the state of the import, and digests of the imported data. A later import compares
the digests to find changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

TAG: Final = "runyard.cubepi"
NO_MESSAGE: Final = "-"
"""The origin of a thread that had no message when it was imported."""

_FORM: Final = re.compile(
    r"(?P<inherited>\d{1,18}):(?P<origin>-|[0-9a-f]{16})(?::(?P<extra>[0-9a-f]{16}):(?P<data>[0-9a-f]{16}))?"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """The value of the tag. ``inherited``: the number of messages that the thread inherited. ``origin``: a digest of the first
    message of the source. ``extra``: a digest of the thread's extra after the import. ``data``: a digest of the source's data.
    ``extra`` and ``data`` are None until the import has ended."""

    inherited: int
    origin: str
    extra: str | None = None
    data: str | None = None

    @classmethod
    def read(cls, tag: str) -> Self | None:
        """Return the mark of a tag. Return None for a tag that no import has set."""
        if (found := _FORM.fullmatch(tag)) is None:
            return None
        return cls(int(found["inherited"]), found["origin"], found["extra"], found["data"])

    @property
    def ended(self) -> bool:
        """True if an import of the thread has ended."""
        return self.data is not None

    @property
    def tag(self) -> str:
        """The tag of this mark."""
        ended = f":{self.extra}:{self.data}" if self.ended else ""
        return f"{self.inherited}:{self.origin}{ended}"

    def is_of(self, origin: str) -> bool:
        """Return True if the thread was imported from a source with this first message."""
        return self.origin in (NO_MESSAGE, origin)
