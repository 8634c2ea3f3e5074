"""What Postgres proves of a run's events, for readers of a stream that Redis lost (semantics: E1, E2, E4)."""

from __future__ import annotations

from runner.eventdata import requests_asked
from runner.exchange import RunRef, queued_event
from runner.models import Event, JsonObject
from runner.states import ENDED, RunStatus

from . import codec, history
from .database import Database


class RunTrail:
    """The events of a run that its rows prove."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def run_events(self, ref: RunRef) -> list[Event]:
        """Messages, requests, the last event, and that the run is queued until an attempt begins; in the order of their ids."""
        facts = await self.db.row("run_facts", ref.thread_key, ref.run_id)
        if facts is None:
            return []

        def event(event_id: str, kind: str, data: JsonObject) -> Event:
            return Event(id=event_id, type=kind, thread_id=facts["in_thread"], run_id=ref.run_id, data=data)

        rows = await self.db.rows("run_messages", ref.thread_key, ref.run_id)
        found = [
            event(row["event_id"], "message.completed", {"message_id": message.id, "message": message.model_dump(mode="json")})
            for row, message in zip(rows, await history.messages(rows, thread_key=ref.thread_key), strict=True)
            if row["event_id"]
        ]
        for row in await self.db.rows("run_requests", ref.thread_key, ref.run_id):
            if row["event_id"]:
                body = codec.request(row).model_dump(mode="json")
                found.append(event(row["event_id"], "hitl.requested", {"request": body}))
        status = RunStatus(facts["status"])
        if facts["event_id"] and (status in ENDED or status is RunStatus.SUSPENDED):
            error = codec.from_json(facts["error"])
            data: JsonObject = {"status": str(status), **({"error": error} if error else {})}
            if status is RunStatus.SUSPENDED:
                data["request_ids"] = requests_asked(facts["event_id"], found)
            found.append(event(facts["event_id"], f"run.{status}", data))
        if (facts["fence"] or 0) < facts["queued_fence"]:
            found.append(queued_event(facts["in_thread"], ref.run_id, facts["queued_fence"], facts["attempt"] + 1))
        return sorted(found, key=lambda e: tuple(int(n) for n in (e.id or "0-0").split("-")))
