"""The pending request and the answers of cubeloop's agents, as HITL requests of the checkpointer's store.

cubeloop identifies a question by its ``question_id``, which is not unique in the tenant. The store needs a unique request id.
This module derives the request id from the thread, the run, the question and the time of the question. The row of the request
holds the answer. The answer comes from the agent's program, or from a human in the inbox. A request is answered once (H3).

cubeloop clears its pending request and its answers when it stores the results of the tool calls. Until then, the thread's
extra has the ids of the requests under the key STATE. A fork may inherit these ids. The requests and answers belong to one
thread, and a fork does not inherit them (I6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ..domain.approvals import APPROVAL_SCHEMA
from ..domain.derived_ids import derived_id
from ..domain.requests import HitlRequest
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.threads import Thread
from ..domain.validation import new_id
from ..errors import HitlAlreadyAnsweredError, InvalidInputError, PreconditionFailedError, ThreadNotFoundError
from ..ports.stores import Backend, RequestRemover, RequestStore
from .cubeloop_messages import KEPT

STATE: Final = "runyard.cubeloop"
"""The key of this module's part of a thread's extra."""
AGENT: Final = "cubeloop"
"""Value of ``answered_by`` for an answer of the agent's program."""
MAX_TRIES: Final = 100
"""Maximum number of tries to write STATE. A try fails if another process has changed the thread."""

DECISION_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["approve", "deny", "edit"]},
        "edited_args": {"type": ["object", "null"]},
        "reason": {"type": ["string", "null"]},
    },
    "required": ["decision"],
}
SCHEMAS: Final[dict[str, JsonObject]] = {
    "confirm": {"type": "boolean"},
    "approve": {"anyOf": [DECISION_SCHEMA, *cast("list[JsonValue]", APPROVAL_SCHEMA["anyOf"])]},
    "ask": {"type": ["object", "string"]},
}
"""Schemas of the answers to cubeloop's kinds of requests. The answer to an approval has cubeloop's form or runyard's form.

The answer to ``ask`` is an object whose keys are the keys of the questions. cubeloop also accepts a text. The answer to
``confirm`` must not be a text, because cubeloop treats every text as a yes.
"""


@dataclass(slots=True)
class _State:
    """The uncleared requests of a thread.

    ``pending``: the id of the request that cubeloop treats as pending. This request may already have an answer. ``asked``: the
    requests whose answers cubeloop can read. A request id maps to the run id (or ``""``) and the question id.
    """

    pending: str | None = None
    asked: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, thread: Thread | None) -> _State:
        kept = thread.extra.get(STATE) if thread is not None else None
        if not isinstance(kept, dict):
            return cls()
        asked, pending = kept.get("asked"), kept.get("pending")
        entries = asked.items() if isinstance(asked, dict) else ()
        return cls(
            pending if isinstance(pending, str) else None,
            {key: (str(entry[0]), str(entry[1])) for key, entry in entries if isinstance(entry, list) and len(entry) == 2},
        )

    @property
    def value(self) -> JsonValue:
        """The value to write under STATE in the extra. If the value is None, the write removes the key STATE."""
        if self.pending is None and not self.asked:
            return None
        return {"pending": self.pending, "asked": {key: [*entry] for key, entry in self.asked.items()}}

    def find(self, run_id: str | None, question_id: str) -> str | None:
        """Return the id of the request for a question of the run. Return None for an unknown question."""
        return next((key for key, entry in self.asked.items() if entry == (run_id or "", question_id)), None)


class RequestLedger:
    """The requests and answers of cubeloop's agents in the stores of ``backend``. Requests are JSON objects here."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._store = cast("RequestStore", backend.checkpointer)

    async def save(self, thread_id: str, request: JsonObject, run_id: str | None) -> None:
        """Make ``request`` the pending request of the thread. A second call with the same request changes nothing."""
        asked = to_request(thread_id, request, run_id)
        key = asked.request_id
        question_id = str(request["question_id"])
        state = _State.of(await self._backend.threads.thread(thread_id))
        if state.pending == key and await self._row(thread_id, state, key) is not None:
            return

        def change(state: _State) -> bool:
            if (old := state.find(run_id, question_id)) is not None:
                del state.asked[old]
            state.pending, state.asked[key] = key, (run_id or "", question_id)
            return True

        await self._backend.checkpointer.save_extra(thread_id, {})  # creates the thread
        await self._change(thread_id, change)  # before the request is stored, because `answer` finds the row by the state
        await self._backend.checkpointer.save_pending_request(thread_id, asked, run_id=run_id)

    async def clear(self, thread_id: str) -> None:
        """Clear the pending request. :meth:`answer` still returns the answer of this request."""
        state = _State.of(await self._backend.threads.thread(thread_id))
        if state.pending is None:
            return
        await self._backend.checkpointer.save_pending_request(thread_id, None)
        await self._change(thread_id, _nothing_pending)

    async def clear_if(self, thread_id: str, question_id: str, run_id: str) -> bool:
        """Clear the pending request if it is this question of this run. Return whether this call cleared the request."""
        state = _State.of(await self._backend.threads.thread(thread_id))
        key = state.find(run_id, question_id)
        if key is None or key != state.pending:
            return False
        row = await self._row(thread_id, state, key)
        if row is None or (row.answered_at is None and not await self._remove(thread_id, key)):
            return False
        return await self._change(thread_id, lambda state: state.pending == key and _nothing_pending(state)) or (
            row.answered_at is None
        )

    async def pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the request that the state names as pending, and its run id. The request may already have an answer."""
        state = _State.of(await self._backend.threads.thread(thread_id))
        if state.pending is None or (row := await self._row(thread_id, state, state.pending)) is None:
            return None
        return row, row.run_id

    async def save_answer(
        self, thread_id: str, question_id: str, answer: JsonValue, run_id: str | None, *, asked_at: str | None = None
    ) -> None:
        """Store an answer of the agent's program. A second call with the same answer changes nothing.

        ``asked_at``: a text that identifies the question if the store has no request for the question. Raises
        HitlAlreadyAnsweredError if the question has another answer. Raises HitlInvalidAnswerError if the answer does not fit
        the request.
        """
        state = _State.of(await self._backend.threads.thread(thread_id))
        key = state.find(run_id, question_id)
        row = await self._row(thread_id, state, key) if key is not None else None
        if row is None:
            key = derived_id("cubeloop request", thread_id, run_id or "", question_id, asked_at or new_id())
            row = HitlRequest(request_id=key, payload={"question": question_id, KEPT: {"question_id": question_id}})
            await self._backend.checkpointer.save_extra(thread_id, {})  # creates the thread
            await self._store.save_requests(thread_id, [row], run_id=cast(str, run_id))
            await self._change(thread_id, lambda state: state.asked.update({row.request_id: (run_id or "", question_id)}))
        elif row.answered_at is not None:
            if _stripped(answer_of(row)) == _stripped(_decision(answer)):
                return
            raise HitlAlreadyAnsweredError(
                f"{row.answered_by or 'an unnamed caller'} has already answered question {question_id} differently; the "
                "first answer stays valid, read this answer with load_hitl_answer",
                request_id=row.request_id,
                answered_by=row.answered_by,
            )
        await self._store.answer_request(thread_id, answer, request_id=row.request_id, answered_by=AGENT)

    async def answer(self, thread_id: str, question_id: str, run_id: str | None) -> JsonValue:
        """Return the answer to a question. Return None if there is no answer, or if the answer was cleared."""
        state = _State.of(await self._backend.threads.thread(thread_id))
        key = state.find(run_id, question_id)
        row = await self._row(thread_id, state, key) if key is not None else None
        return answer_of(row) if row is not None and row.answered_at is not None else None

    async def clear_answers(self, thread_id: str, question_ids: Iterable[str] | None, run_id: str | None) -> None:
        """Clear the answers of a run, or only the answers to ``question_ids``."""
        only = None if question_ids is None else set(question_ids)
        thread = await self._backend.threads.thread(thread_id)
        if not any(_belongs(entry, run_id, only) for entry in _State.of(thread).asked.values()):
            return

        def change(state: _State) -> bool:
            kept = {k: e for k, e in state.asked.items() if k == state.pending or not _belongs(e, run_id, only)}
            state.asked = kept
            return True

        await self._change(thread_id, change)

    async def forget(self, thread_id: str, run_id: str) -> None:
        """Remove the run's requests from the state, because the run ends."""

        def change(state: _State) -> bool:
            state.asked = {k: e for k, e in state.asked.items() if e[0] != run_id}
            state.pending = state.pending if state.pending in state.asked else None
            return True

        thread = await self._backend.threads.thread(thread_id)
        if any(entry[0] == run_id for entry in _State.of(thread).asked.values()):
            await self._change(thread_id, change)

    async def _row(self, thread_id: str, state: _State, key: str) -> HitlRequest | None:
        """Return a request of the thread.

        Return None for a missing request, and for a request whose run ended without an answer.
        """
        run_id = state.asked.get(key, ("", ""))[0]
        if run_id:
            rows = await self._store.load_requests(thread_id, run_id=run_id)
            return next((row for row in rows if row.request_id == key), None)
        found = await self._backend.runs.request(key)
        return found if found is not None and found.thread_id == thread_id else None

    async def _remove(self, thread_id: str, key: str) -> bool:
        if hasattr(self._store, "remove_request"):
            return await cast("RequestRemover", self._store).remove_request(thread_id, key)
        # A store without `remove_request` also removes a request that another process saves at the same moment.
        await self._backend.checkpointer.save_pending_request(thread_id, None)
        return True

    async def _change(self, thread_id: str, change: Callable[[_State], Any]) -> bool:
        """Apply ``change`` to the stored state. Return whether ``change`` returned a true value.

        If another process has changed the thread after the state was read, read the state and call ``change`` again.
        """
        for _ in range(MAX_TRIES):
            thread = await self._backend.threads.thread(thread_id)
            if thread is None:
                raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)
            state = _State.of(thread)
            changed = bool(change(state))
            if state.value == thread.extra.get(STATE):
                return changed
            try:
                await self._backend.threads.update_thread(thread_id, extra={STATE: state.value}, expected=thread.updated_at)
            except PreconditionFailedError:
                continue
            return changed
        raise PreconditionFailedError(
            f"other processes changed thread {thread_id!r} during {MAX_TRIES} tries; let only one process ask on this thread",
            thread_id=thread_id,
        )


def to_request(thread_id: str, request: JsonObject, run_id: str | None) -> HitlRequest:
    """Return the request of the store for a request of cubeloop.

    ``request``: ``model_dump(mode="json")`` of cubeloop's request. Raises InvalidInputError if ``request`` is not such an
    object.
    """
    payload, question_id = request.get("payload"), request.get("question_id")
    kind = payload.get("kind") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(question_id, str) or kind not in SCHEMAS:
        raise InvalidInputError("not a request of cubeloop: the question_id is missing, or the payload has an unknown kind")
    shown: JsonObject = {KEPT: request}
    match payload:
        case {"kind": "approve", "tool_name": name, "tool_call_id": call_id, "args": args}:
            shown["question"] = f"Allow {name}?"
            shown["tool_call"] = {"type": "tool_call", "id": call_id, "name": name, "arguments": args}
        case {"kind": "confirm", "prompt": prompt}:
            shown["question"] = prompt
        case {"kind": "ask", "questions": list(questions)}:
            shown["question"] = "\n".join(str(q.get("prompt")) for q in questions if isinstance(q, dict))
            shown["questions"] = questions
    if payload.get("details") is not None:
        shown["details"] = payload["details"]
    return HitlRequest(
        request_id=derived_id("cubeloop request", thread_id, run_id or "", question_id, repr(request.get("created_at"))),
        kind="approval" if kind == "approve" else "question",
        payload=shown,
        answer_schema=SCHEMAS[kind],
    )


def of_request(row: HitlRequest) -> JsonObject | None:
    """Return the request of cubeloop from which ``row`` was made.

    Return None for a request that did not come from cubeloop.
    """
    kept = row.payload.get(KEPT)
    return kept if isinstance(kept, dict) and "payload" in kept else None


def answer_of(row: HitlRequest) -> JsonValue:
    """Return the answer of a request in cubeloop's form."""
    return _decision(row.answer) if row.kind == "approval" else row.answer


def _decision(answer: JsonValue) -> JsonValue:
    """Convert an answer to an approval from runyard's form to cubeloop's form. Return any other answer unchanged."""
    match answer:
        case {"approved": bool(approved)}:
            edited = answer.get("arguments") if approved else None
            decision = "deny" if not approved else "approve" if edited is None else "edit"
            return {"decision": decision, "edited_args": edited, "reason": answer.get("reason")}
        case bool():
            return {"decision": "approve" if answer else "deny", "edited_args": None, "reason": None}
    return answer


def _stripped(answer: JsonValue) -> JsonValue:
    return {k: v for k, v in answer.items() if v is not None} if isinstance(answer, dict) else answer


def _nothing_pending(state: _State) -> bool:
    state.pending = None
    return True


def _belongs(entry: tuple[str, str], run_id: str | None, question_ids: set[str] | None) -> bool:
    return entry[0] == (run_id or "") and (question_ids is None or entry[1] in question_ids)
