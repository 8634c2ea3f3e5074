"""The state of the imports into a thread. A tag of the thread stores this state.

The state lists the runs and requests that imports have made, and the head that they have set. A later import changes only these
runs and requests, and moves only this head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from runyard.domain.derived_ids import digest
from runyard.models import Thread

TAG: Final = "runyard.import"
"""The name of the tag of an imported thread."""
MAX_OPEN: Final = 100
"""Maximum number of runs and requests in a mark. A later import does not change runs and requests beyond this number."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Mark:
    """The value of the tag of an imported thread.

    ``origin``: the digest by which a repeated import recognizes its thread. ``export_id``: the id of the export that the last
    completed import read, or an empty text. ``began``: the time by the store's clock at which the present import began, in
    microseconds since 1970. Between imports, ``began`` is None. ``head``: the id of the last visible message of the head, or an
    empty text. ``head`` is set at the beginning and at the end of an import. ``keep``: True if the deployment has moved the
    head. Imports then do not move the head. ``open``: the digests of the live runs and of the pending requests that imports
    have made."""

    origin: str
    export_id: str = ""
    began: int | None = None
    head: str = ""
    keep: bool = False
    open: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tags: Mapping[str, str]) -> Mark:
        """Return the mark of a thread with these tags. The mark of a thread that was not imported has an empty origin."""
        fields = tags.get(TAG, "").split(":")
        origin, export_id, began, head, keep, opened = (fields + [""] * 6)[:6]
        number = int(began) if began.isdecimal() and len(began) < 20 else None
        return cls(origin, export_id, number, head, bool(keep), frozenset(opened.split(",")) if opened else frozenset())

    def tag(self) -> dict[str, str]:
        """Return the tag."""
        began = "" if self.began is None else str(self.began)
        opened = ",".join(sorted(self.open)[:MAX_OPEN])
        return {TAG: ":".join((self.origin, self.export_id, began, self.head, "keep" if self.keep else "", opened))}

    def made(self, kind: str, id: str, at: datetime | None) -> bool:
        """Return True if an import has made this live run or pending request. ``at``: the time at which the run or request was
        made."""
        return name_of(kind, id) in self.open or (self.began is not None and at is not None and microseconds(at) >= self.began)


def name_of(kind: str, id: str) -> str:
    """Return the digest of a run or a request."""
    return digest([kind, id])


def microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def origin_of(thread: Thread) -> str:
    """Return the digest by which a repeated import recognizes its thread."""
    return digest([thread.thread_id, thread.created_at.isoformat()])
