"""Rules that the events of a run must obey at every reader of its stream (E1, E2, I9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from runyard.domain.states import ENDED

TERMINAL: Final = frozenset(f"run.{status}" for status in ENDED)


class SeenEvent(Protocol):
    """An event that a reader received: :class:`runyard.Event`, or the record of one in a history."""

    @property
    def id(self) -> str | None: ...

    @property
    def type(self) -> str: ...


def order_faults(events: Sequence[SeenEvent], after: str | None = None) -> Iterator[str]:
    """Yield a sentence for each event that is repeated, out of order, or behind a hole that no ``gap`` announced.

    ``events``: of one run, as a reader got them after the event id ``after`` (None: from the run's beginning).
    """
    at, announced = _position(after) if after is not None else (-1, 0), False
    for event in events:
        if event.id is None:
            announced = True
            continue
        fence, n = _position(event.id)
        if (fence, n) <= at:
            yield f"event {event.id} follows {at[0]}-{at[1]}"
        elif n != (at[1] + 1 if fence == at[0] else 1) and not announced:
            yield f"event {event.id} follows {at[0]}-{at[1]} without a gap announced"
        at, announced = (fence, n), False


def end_faults(events: Sequence[SeenEvent]) -> Iterator[str]:
    """Yield a sentence unless ``events`` have one terminal event, and have it last."""
    ends = [event.type for event in events if event.type in TERMINAL]
    if len(ends) != 1 or events[-1].type not in TERMINAL:
        yield f"terminal events are {ends}, the last event is {events[-1].type if events else None}"


def _position(event_id: str) -> tuple[int, int]:
    fence, n = event_id.split("-")
    return int(fence), int(n)
