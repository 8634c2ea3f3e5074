"""What Postgres proves of a run's events, for readers of a stream that Redis lost (semantics: E1, E2, E4)."""

from __future__ import annotations

import time
from typing import Final

from runner.exchange import EVENTS, EVENTS_BYTES, RunRef, queued_event
from runner.models import Event, JsonObject

from . import codec
from .database import Database

TURN: Final = 0.003
"""Seconds of this thread for which events are decoded: a page of many values ends there, and comes in several."""


class RunTrail:
    """The events of a run that its rows prove."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS) -> list[Event]:
        """Messages, requests, the last event, and that the run is queued until an attempt begins; in the order of their ids."""
        rows = await self.db.rows("run_events", ref.thread_key, ref.run_id, _place(after), limit, EVENTS_BYTES)
        found: list[Event] = []
        async with self.db.decoding:
            began = time.thread_time()
            for row in rows:
                found.append(_event(ref, row))
                if time.thread_time() - began > TURN:
                    break
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
                data["error"] = error
            if row["asked"] is not None:
                data["request_ids"] = row["asked"]
    # Not validated: every field is made here, and a message may be of many values.
    return Event.model_construct(
        id=row["proved_id"], type=row["type"], thread_id=row["in_thread"], run_id=ref.run_id, data=data
    )


def _place(event_id: str | None) -> list[int]:
    """An id of an event as Postgres compares it; what is too large for it comes after all of them."""
    fence, _, n = (event_id or "-1-0").rpartition("-")
    return [min(int(part), 2**63 - 1) for part in (fence, n)]
