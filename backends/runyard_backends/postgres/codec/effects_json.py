"""Decode effects from the JSON that a verb returns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Effects, Job, OutsideEvent, queued_event


def job(fields: dict[str, Any]) -> Job:
    """Decode a job from the JSON of a ``runyard.job``."""
    queued = fields.pop("queued")
    return Job(**fields, queued=queued_event(run_id=fields["run_id"], **queued) if queued else None)


def effects(text: str | None) -> Effects:
    """Decode effects from the JSON that a stored function returned. None stands for no effects."""
    if text is None:
        return Effects()
    found = json.loads(text)
    return Effects(
        jobs=[job(fields) for fields in found.get("jobs", ())],
        events=[
            OutsideEvent(
                *(RunRef(e["thread_key"], e["run_id"]), e["thread_id"], e["event_id"], e["type"], e["data"]),
                *(e["agent"], e["queue"]),
            )
            for e in found.get("events", ())
        ],
        cancels=[RunRef(c["thread_key"], c["run_id"]) for c in found.get("cancels", ())],
        withdrawn=[replace(job(fields), queued=None, over=True) for fields in found.get("withdrawn", ())],
        deleted=list(found.get("deleted", ())),
    )
