"""The cursor of a thread's stream: the position of its reader, as a text that fits into a header (E1, E3)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from ..domain.events import Event
from ..domain.runs import Run
from ..domain.states import RunStatus
from ..domain.validation import check_id
from .run_stream import START, position

MAX_CURSOR_BYTES: Final = 6000
"""Maximum number of bytes that the runs in a cursor take, because a cursor must fit into a header.

If a run does not fit into the cursor, its events may be sent again.
"""
MAX_NAMED_RUNS: Final = 128
"""Maximum number of runs in a cursor. A reader may need a query for each run."""
MAX_NUMBER: Final = 2**63
"""Every fence and every number of an event is less than this number."""
FINAL_ENDS: Final = frozenset({"run.completed", "run.cancelled"})
"""Types of events after which a run has no more events. A failed or dead run can be redriven, and then has more events."""
_EVENT_ID: Final = re.compile("(?:0|[1-9][0-9]{0,18})-(?:0|[1-9][0-9]{0,18})")


class KnownRun(NamedTuple):
    """The state of a run when it was last listed. ``waits``: whether the run was queued or suspended.

    If the run was queued or suspended, its end will have a higher fence than all events that were passed on before the listing.
    Otherwise the fence of its end will be ``fence`` or higher.
    """

    accepted_at: datetime
    fence: int
    waits: bool

    @classmethod
    def of(cls, run: Run) -> KnownRun:
        """Return the fields of ``run`` that a reader keeps."""
        end = position(run.event_id) if run.ended else None
        return cls(run.accepted_at, end[0] if end else run.fence or 0, run.status in (RunStatus.QUEUED, RunStatus.SUSPENDED))


@dataclass
class ThreadCursor:
    """The position of a reader.

    ``top``: the highest fence that the reader saw. ``open``: the runs whose ends the reader has not seen. After ``run.failed``
    or ``run.dead``, a run stays in ``open`` until a listing shows that it was not redriven. The key is the run id. The value is
    the id of the run's last event that the reader saw, or an empty text. The value ``<fence>-0`` means that the reader saw the
    run's events up to this fence, and no later event. ``since``: runs that were accepted at this time or later may be missing
    in ``open``. ``since`` is None if no run is missing.
    """

    top: int = -1
    open: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None

    @classmethod
    def parse(cls, cursor: str) -> ThreadCursor | None:
        """Return the position in the text ``cursor``, or None if the text is not a cursor."""
        try:
            top, named, since = json.loads(base64.urlsafe_b64decode(cursor.encode()))
            place = cls(top, {check_id(run, "run_id"): last for run, last in named.items()})
            place.since = datetime.fromisoformat(since) if since is not None else None
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        return place if place._possible() else None

    def __str__(self) -> str:
        since = self.since.isoformat() if self.since is not None else None
        text = json.dumps([self.top, self.open, since], separators=(",", ":"), ensure_ascii=False)
        return base64.urlsafe_b64encode(text.encode()).decode()

    def _possible(self) -> bool:
        """Return whether a stream can have issued this cursor."""
        return (
            type(self.top) is int
            and -1 <= self.top < MAX_NUMBER
            and len(self.open) <= MAX_NAMED_RUNS
            and all(_is_event_id(last) for last in self.open.values())
            and sum(_room(run_id, last) for run_id, last in self.open.items()) <= MAX_CURSOR_BYTES
            and (self.since is None or self.since.tzinfo is not None)
        )

    def within(self, room: int, known: Mapping[str, KnownRun]) -> ThreadCursor:
        """Return this position with at most MAX_NAMED_RUNS open runs, in at most ``room`` bytes.

        If runs are left out, the returned position is an earlier position. Runs that wait are left out first. A listing of the
        runs that were accepted after ``since`` finds them again. If a run that does not wait is left out, ``top`` is set below
        the fence of its end. Otherwise the end of the run would count as seen.
        """
        place = ThreadCursor(self.top)
        for run_id in sorted(self.open, key=lambda id: (id in known and known[id].waits, _descending(self.open[id]))):
            room -= _room(run_id, self.open[run_id])
            if (room >= 0 and len(place.open) < MAX_NAMED_RUNS) or run_id not in known:
                place.open[run_id] = self.open[run_id]
                continue
            run = known[run_id]
            place.since = min(place.since or run.accepted_at, run.accepted_at)
            if not run.waits:
                place.top = min(place.top, run.fence - 1)
        return place

    def pass_by(self, event: Event) -> None:
        """Record that the reader has seen ``event``."""
        place = position(event.id)
        if place is None or event.id is None:
            return
        self.top = max(self.top, place[0])
        if event.type in FINAL_ENDS:
            self.open.pop(event.run_id, None)
        else:
            self.open[event.run_id] = event.id

    def beginning(self, run: Run) -> str:
        """Return the value to add to ``open`` for a run with unseen events. The run is missing in ``open``.

        If no run was missing, the reader has seen all events of ``run`` up to ``top``. The run is then new, or it ended and was
        redriven. A redriven run can end before another attempt begins. Its end then has a higher fence than its last attempt.
        """
        end = position(run.event_id) or START
        redriven = run.fence is not None and (max(run.fence, end[0]) > self.top or run.status is RunStatus.QUEUED)
        return f"{self.top}-0" if redriven and self.since is None and self.top >= 0 else ""

    def left_behind(self, run: Run) -> bool:
        """Return whether the run has ended and the reader has seen its end."""
        end = position(run.event_id)
        return run.ended and run.run_id not in self.open and end is not None and end[0] <= self.top


def _descending(event_id: str) -> tuple[int, int]:
    fence, n = position(event_id) or START
    return -fence, -n


def _room(run_id: str, last: str) -> int:
    """Return the number of bytes that a run and its last event take in a cursor."""
    return len(run_id.encode()) + len(last) + len('"":"",')


def _is_event_id(last: Any) -> bool:
    """Return whether ``last`` is the id of an event, ``<fence>-0``, or the empty text."""
    if not isinstance(last, str):
        return False
    return last == "" or (_EVENT_ID.fullmatch(last) is not None and max(position(last) or START) < MAX_NUMBER)
