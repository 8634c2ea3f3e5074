"""Answers to HITL requests, and their deadlines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from runyard.domain.requests import ANSWERED_AT_DEADLINE, check_answer, check_names
from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.errors import (
    HitlAlreadyAnsweredError,
    HitlAmbiguousError,
    HitlNoPendingRequestError,
    HitlStaleAnswerError,
    InvalidInputError,
)
from runyard.models import ErrorInfo, HitlRequest
from runyard.ports.results import Responded
from runyard.ports.scheduling import Effects

from . import lanes, waits
from .state import Database, RequestState, RunState, ThreadState
from .values import check_json


def pending_of(db: Database, thread: ThreadState) -> list[RequestState]:
    """Return the pending requests of the thread, the oldest first."""
    return sorted((r for r in db.requests_of(thread) if r.pending), key=_order)


def waiting(db: Database, thread: ThreadState) -> list[str]:
    """Return the ids of the runs that have pending requests, the run with the oldest request first."""
    return list(dict.fromkeys(state.request.run_id for state in pending_of(db, thread) if state.request.run_id is not None))


def _order(request: RequestState) -> tuple[Any, str]:
    return request.request.created_at, request.request.request_id


def add(db: Database, thread: ThreadState, request: HitlRequest, run_id: str | None, event: str | None = None) -> RequestState:
    """Store a request and return it. A stored request with the same id stays unchanged. ``event``: the id of the request's
    event, or None for a request of a checkpointer."""
    key = (thread.tenant, request.request_id)
    if key not in db.requests:
        run = thread.runs.get(run_id or "")
        update = {"thread_id": thread.id, "run_id": run_id, "agent": run.run.agent if run else None, "created_at": db.now()}
        update |= {"answer": None, "answered_at": None, "answered_by": None, "on_behalf_of": None}
        stored = request.model_copy(update=update, deep=True)
        if stored.timeout is not None:
            stored.deadline_at = stored.deadline_at or db.now() + timedelta(seconds=stored.timeout)
            stored.timeout = None
        db.requests[key] = RequestState(stored, thread.key, event)
    return db.requests[key]


def record(
    db: Database, thread: ThreadState, state: RequestState, answer: Any, by: str | None, response_id: str | None
) -> Effects:
    """Store the answer. If the run of the request is suspended, queue the run. ``by``: the author of the answer."""
    request = state.request
    request.answer, request.answered_at, request.answered_by, request.response_id = (
        check_json(answer, "answer"),
        db.now(),
        by,
        response_id,
    )
    return waits.wake(db, thread, request.run_id)


def receive(db: Database, thread: ThreadState, run: RunState) -> None:
    """Record that the present attempt has the answers and the signals that no earlier attempt had."""
    waits.receive(db, thread, run)
    for state in db.requests_of(thread):
        if state.request.run_id == run.id and state.request.answered_at is not None:
            state.received_by = state.received_by or run.run.fence


def overdue(db: Database, thread: ThreadState) -> list[RequestState]:
    """Return the overdue requests whose default can be applied now. The default of a request can be to fail the run. While a
    run of workers is queued or running, such a default is not applied."""
    return [
        state
        for state in pending_of(db, thread)
        if state.request.deadline_at is not None and state.request.deadline_at <= db.now() and _applies(thread, state.request)
    ]


def _applies(thread: ThreadState, request: HitlRequest) -> bool:
    run = thread.runs.get(request.run_id or "")
    if run is None or "answer" in (request.on_deadline or {}):
        return True
    return not run.live or run.external or run.run.status is RunStatus.SUSPENDED


def fire_deadlines(db: Database, thread: ThreadState) -> Effects:
    """End the waits that are due, and apply the default of each overdue request. The default is an answer or the failure of the
    run. If the run to fail is not live, close the request."""
    effects = waits.end(db, thread)
    for state in overdue(db, thread):
        request = state.request
        choice = request.on_deadline or {"fail": True}
        run = thread.runs.get(request.run_id or "")
        if "answer" in choice:
            effects += record(db, thread, state, choice["answer"], ANSWERED_AT_DEADLINE, None)
        elif run is None or not run.live:
            state.closed = True
        elif _applies(thread, request):
            assert request.deadline_at is not None
            message = f"request {request.request_id} was not answered by {request.deadline_at.isoformat()}"
            effects += lanes.end_outside(db, thread, run, RunStatus.FAILED, ErrorInfo(code="hitl_timeout", message=message))
    return effects


def thread_of(db: Database, tenant: str, thread_id: str | None, request_id: str | None) -> ThreadState:
    """Return the thread ``thread_id``. Without it, return the thread of the request ``request_id``."""
    if thread_id is not None:
        return db.get(tenant, thread_id)
    if request_id is None:
        raise InvalidInputError("respond needs a thread_id or a request_id", field="thread_id")
    known = db.requests.get((tenant, request_id))
    found = db.by_key(known.thread_key) if known else None
    if found is None:
        raise HitlNoPendingRequestError(f"there is no request {request_id!r}", request_id=request_id)
    return found


def choose(db: Database, thread: ThreadState, request_id: str | None, response_id: str | None) -> RequestState:
    """Return the request that an answer is for.

    If the ``response_id`` is known, and ``request_id`` is None or names the same request, the answer is a repetition. The
    result is then the request that was answered before. Otherwise the answer is new. A new answer is for the request
    ``request_id``. Without ``request_id``, a new answer is for the only pending request.

    Raises HitlAmbiguousError if several requests are pending and none is named. Raises HitlNoPendingRequestError if no request
    is pending. Raises HitlStaleAnswerError if the named request takes no answer.
    """
    pending = pending_of(db, thread)
    if response_id is not None:
        for state in db.requests_of(thread):
            if state.request.response_id == response_id and request_id in (None, state.request.request_id):
                return state
    if request_id is None:
        if len(pending) > 1:
            ids = [r.request.request_id for r in pending]
            raise HitlAmbiguousError(f"{len(ids)} requests are pending; give a request_id", request_ids=ids)
        if not pending:
            raise HitlNoPendingRequestError(f"thread {thread.id!r} has no pending request", thread_id=thread.id)
        return pending[0]
    named = db.requests.get((thread.tenant, request_id))
    if named is None or named.thread_key != thread.key:
        if not pending:
            raise HitlNoPendingRequestError(f"thread {thread.id!r} has no pending request", thread_id=thread.id)
        raise _stale(request_id, pending)
    if named.closed or (named.request.answered_by == ANSWERED_AT_DEADLINE and not named.pending):
        raise _stale(request_id, pending)
    return named


def _stale(request_id: str, pending: list[RequestState]) -> HitlStaleAnswerError:
    waiting = [state.request.request_id for state in pending]
    return HitlStaleAnswerError(
        f"request {request_id} does not wait for an answer; pending: {', '.join(waiting) or 'none'}",
        request_id=request_id,
        pending=waiting,
    )


def respond(
    db: Database,
    thread: ThreadState,
    state: RequestState,
    answer: Any,
    response_id: str | None,
    by: str | None,
    on_behalf_of: str | None = None,
) -> Responded:
    """Store an answer once (I6). If an equal answer is stored already, return the stored answer. Raises
    HitlAlreadyAnsweredError if another answer is stored already."""
    check_value(answer, "answer")
    check_names(answered_by=by, on_behalf_of=on_behalf_of)
    request = state.request
    if not state.pending:
        same = request.answer == answer
        if same and (response_id is None or request.response_id == response_id):
            return Responded(request.model_copy(deep=True), False)
        raise HitlAlreadyAnsweredError(
            f"request {request.request_id} was answered before with another answer or response_id",
            request_id=request.request_id,
            answered_by=request.answered_by,
        )
    check_answer(request, answer)
    if response_id is not None and any(other.request.response_id == response_id for other in db.requests_of(thread)):
        raise InvalidInputError("this response_id was used for another request of the thread; use another id")
    request.on_behalf_of = on_behalf_of
    effects = record(db, thread, state, answer, by, response_id)
    last = all(other.request.run_id != request.run_id for other in pending_of(db, thread))
    return Responded(request.model_copy(deep=True), True, effects, last)
