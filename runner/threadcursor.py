"""What a cursor of a thread's stream says: how far its reader got, in a header's room (semantics: E1, E3)."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from .models import STREAM_ENDS, Event, Run, check_id
from .states import RunStatus
from .streams import START, position

ROOM: Final = 6000
"""Bytes for the runs that a cursor names: a header carries it. Of those that find no room, events may be repeated after it."""
NAMED: Final = 128
"""Runs that a cursor names at most: each may have to be looked up by itself."""
LARGEST: Final = 2**63
"""No fence and no number of an event reaches it."""
_EVENT_ID: Final = re.compile("(?:0|[1-9][0-9]{0,18})-(?:0|[1-9][0-9]{0,18})")


class Known(NamedTuple):
    """What the last look at a run told. ``waits``: it was queued or suspended, so that its end will have a higher fence than
    anything that was handed on until then; otherwise the end has ``fence`` or a higher one."""

    accepted_at: datetime
    fence: int
    waits: bool

    @classmethod
    def of(cls, run: Run) -> Known:
        """What ``run`` tells."""
        end = position(run.event_id) if run.ended else None
        return cls(run.accepted_at, end[0] if end else run.fence or 0, run.status in (RunStatus.QUEUED, RunStatus.SUSPENDED))


@dataclass
class Place:
    """How far a reader got: ``top`` is the highest fence that it saw, ``open`` the last event of each run that is not over for
    it, empty if it saw none. ``since``: when the oldest run was accepted that may be missing in ``open``."""

    top: int = -1
    open: dict[str, str] = field(default_factory=dict)
    since: datetime | None = None

    @classmethod
    def parse(cls, cursor: str) -> Place | None:
        """The place that ``cursor`` names; None if it is none."""
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
        """True if a stream may have said so."""
        return (
            type(self.top) is int
            and -1 <= self.top < LARGEST
            and len(self.open) <= NAMED
            and all(_is_event_id(last) for last in self.open.values())
            and sum(_room(run_id, last) for run_id, last in self.open.items()) <= ROOM
            and (self.since is None or self.since.tzinfo is not None)
        )

    def within(self, room: int, known: Mapping[str, Known]) -> Place:
        """The same place, or an earlier one if it takes more than ``room`` bytes, or NAMED names, to name the open runs.

        Left out first are those that wait: to find them again it is enough to know how far to look back. The other ones would
        count as seen once they ended, unless ``top`` is below that.
        """
        place = Place(self.top)
        for run_id in sorted(self.open, key=lambda id: (id in known and known[id].waits, _descending(self.open[id]))):
            room -= _room(run_id, self.open[run_id])
            if (room >= 0 and len(place.open) < NAMED) or run_id not in known:
                place.open[run_id] = self.open[run_id]
                continue
            run = known[run_id]
            place.since = min(place.since or run.accepted_at, run.accepted_at)
            if not run.waits:
                place.top = min(place.top, run.fence - 1)
        return place

    def pass_by(self, event: Event) -> None:
        """The reader has seen ``event``."""
        place = position(event.id)
        if place is None or event.id is None:
            return
        self.top = max(self.top, place[0])
        if event.type in STREAM_ENDS and event.type != "run.suspended":
            self.open.pop(event.run_id, None)
        else:
            self.open[event.run_id] = event.id

    def left_behind(self, run: Run) -> bool:
        """True if a run that ended was seen to its end."""
        end = position(run.event_id)
        return run.ended and run.run_id not in self.open and end is not None and end[0] <= self.top


def _descending(event_id: str) -> tuple[int, int]:
    fence, n = position(event_id) or START
    return -fence, -n


def _room(run_id: str, last: str) -> int:
    """Bytes that name a run and its last event."""
    return len(run_id.encode()) + len(last) + len('"":"",')


def _is_event_id(last: Any) -> bool:
    """True for an id that an event can have, and for none."""
    if not isinstance(last, str):
        return False
    return last == "" or (_EVENT_ID.fullmatch(last) is not None and max(position(last) or START) < LARGEST)
