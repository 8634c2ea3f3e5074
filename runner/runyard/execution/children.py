"""Children of a run: its agent starts them and waits for them (K3)."""

from __future__ import annotations

from dataclasses import dataclass

from ..client.apply_effects import apply_effects
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.states import RunStatus
from ..domain.waits import Wait
from ..errors import ChildFailedError, RunConflictError
from ..events.run_outcome import read_outcome
from ..ports.commands import AcceptRequest
from ..ports.refs import AttemptToken
from ..ports.stores import Backend
from ..support.store_retries import patiently
from ..support.tracebacks import place_in


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The result of a completed child. ``text``: its last assistant message. ``value``: the result that its agent set."""

    thread_id: str
    run_id: str
    text: str
    value: JsonValue = None


class Children:
    """Starts children of an attempt, and reads their outcomes. ``backend``: the backend, bound to the run's tenant."""

    def __init__(self, backend: Backend, attempt: AttemptToken) -> None:
        self._backend = backend
        self._attempt = attempt

    async def start(self, request: AcceptRequest) -> None:
        """Accept a child. A repetition changes nothing."""
        accepted = await patiently(lambda: self._backend.runs.start_child(self._attempt, request))
        await apply_effects(accepted.effects, self._backend)

    async def outcome(self, thread_id: str, run_id: str) -> JsonObject:
        """Return the record of an ended child, for :func:`read_child`."""
        run = await patiently(lambda: self._backend.runs.run(thread_id, run_id))
        found: JsonObject = {"thread_id": thread_id, "run_id": run_id, "status": None}
        if run is None or run.deleted_at is not None:
            return found
        found["status"] = str(run.status)
        if run.status is not RunStatus.COMPLETED:
            error = run.error
            place = place_in(error.traceback) if error is not None and error.traceback is not None else None
            return found | {"error": error.headline if error is not None else None, "place": place}
        outcome = await patiently(lambda: read_outcome(self._backend.threads, self._backend.runs, run))
        text = next((message.text for message in reversed(outcome.messages) if message.role == "assistant"), "")
        return found | {"text": text, "value": run.result}


def check_thread(known: Wait, thread_id: str) -> None:
    """Raise RunConflictError if the wait ``known`` is for a child on another thread than ``thread_id``."""
    if known.name != thread_id:
        raise RunConflictError(
            f"child {known.wait_id} is on thread {known.name}, and not on thread {thread_id}; choose another key",
            run_id=known.wait_id,
            differs=["thread_id"],
        )


def read_child(record: JsonObject) -> ChildResult:
    """Return the result of a child. Raises ChildFailedError if the child did not complete."""
    thread_id, run_id, status = str(record["thread_id"]), str(record["run_id"]), record["status"]
    if status == "completed":
        return ChildResult(thread_id, run_id, str(record["text"]), record["value"])
    why = f": {record['error']}" if record.get("error") else ""
    error = ChildFailedError(
        f"child {run_id} of thread {thread_id} is {status or 'gone'}{why}", thread_id=thread_id, run_id=run_id, status=status
    )
    if record.get("place"):  # in a note, because a note is a part of the traceback, and the message goes to events and webhooks
        error.add_note(f"The child failed at {record['place']}.")
    raise error
