"""Make events of a run from its rows in Postgres (“proven events” in the glossary). If Redis has lost a stream, the readers of
the stream get these events (E1, E2, E4)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from runyard.errors import DataCorruptedError
from runyard.models import Event, JsonObject
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import EVENT_BYTES_PER_READ, queued_event

from . import codec
from .database import Database

DECODE_SECONDS: Final = 0.003
"""Seconds of CPU time after which a call of :func:`read` stops decoding. The call returns the events that it has decoded. The
next call continues."""

_WITH_CONTENT: Final = frozenset({"message.completed", "hitl.requested"})
"""Types of events that can be large."""


async def read(db: Database, ref: RunRef, after: str | None, limit: int) -> list[Event]:
    """Return the events that follow from the rows of a run, in the order of their ids. ``after``: the id after which the events
    begin, or None for all events.

    The returned events are the events of the run's messages, of its HITL requests and of its end. Until an attempt begins, they
    include ``run.queued``. A row that cannot be decoded is omitted. Readers then find a missing event number and report a gap.
    A call returns at most ``limit`` events with about EVENT_BYTES_PER_READ bytes. After the last event, the list is empty.
    """
    found: list[Event] = []
    while not found:
        rows = await db.rows("run_events", ref.thread_key, ref.run_id, _place(after), limit, EVENT_BYTES_PER_READ)
        if not rows:
            break
        async with db.decoding:
            began = time.thread_time()
            for row in rows:
                with suppress(DataCorruptedError):
                    event = _event(ref, row)
                    if event.type in _WITH_CONTENT:
                        event.seal()
                    found.append(event)
                if found and time.thread_time() - began > DECODE_SECONDS:
                    break
        after = rows[-1]["proved_id"]
    return found


def _event(ref: RunRef, row: codec.Row) -> Event:
    match row["type"]:
        case "run.queued":
            return queued_event(row["in_thread"], ref.run_id, _place(row["proved_id"])[0], row["attempt"])
        case "message.completed":
            [message] = codec.messages([row], thread_key=ref.thread_key)
            data: JsonObject = {"message_id": message.id, "message": message.model_dump(mode="json")}
        case "hitl.requested":
            data = {"request": codec.request(row).model_dump(mode="json")}
        case end:
            data = {"status": end.removeprefix("run.")}
            if error := codec.from_json(row["why"]):
                data["error"] = {name: value for name, value in error.items() if name != "traceback"}
            if row["asked"] is not None:
                data["request_ids"] = row["asked"]
    return Event(id=row["proved_id"], type=row["type"], thread_id=row["in_thread"], run_id=ref.run_id, data=data)


def _place(event_id: str | None) -> list[int]:
    """Parse an event id into two numbers that Postgres can compare. A number that is too large becomes 2**63 - 1."""
    fence, _, n = (event_id or "-1-0").rpartition("-")
    return [min(int(part), 2**63 - 1) for part in (fence, n)]
