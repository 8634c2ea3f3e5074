"""HITL requests of external runs, their answers and their deadlines (H3 to H8)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from runyard.domain.requests import ANSWERED_AT_DEADLINE, check_answer, check_names
from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.errors import (
    HitlAlreadyAnsweredError,
    HitlAmbiguousError,
    HitlNoPendingRequestError,
    HitlStaleAnswerError,
    InvalidInputError,
    LockedError,
)
from runyard.models import ErrorInfo, HitlRequest, Run
from runyard.ports.results import Responded

from ..checkpointers import request_taken
from ..codec import request_rows
from ..codec.request_rows import NewRequest
from ..codec.values import pack, to_json
from . import external_runs, threads
from .database import Database, DuplicateKeyError, Row, Transaction

FIRED_AT_ONCE: Final = 100
"""Maximum number of overdue requests that a list of a whole tenant looks up. The list first applies the deadlines of the
threads of these requests."""


def decoded(row: Row) -> HitlRequest:
    return request_rows.request(row)


def is_pending(row: Row) -> bool:
    return row["answered_at"] is None and row["closed_at"] is None


async def _add(tx: Transaction, thread: Row, request: NewRequest, run_id: str | None) -> bool:
    """Store a request. Return False if another request has the id."""
    now = await tx.now()
    due = request.deadline_at
    if due is None and request.timeout is not None:
        due = now + timedelta(seconds=request.timeout)
    place = (thread["tenant"], request.request_id, thread["thread_key"], thread["thread_id"], run_id)
    try:
        await tx.send("add_request", *place, request.kind, request.body, due, request.otherwise, now)
    except DuplicateKeyError:
        return False
    return True


async def save_pending(tx: Transaction, tenant: str, thread_id: str, request: NewRequest | None, run_id: str | None) -> None:
    """Replace the pending requests of a thread by ``request``. If ``request`` is None, only remove them. Raises
    InvalidInputError if another thread has a request with this id."""
    thread = await threads.ensured(tx, tenant, thread_id)
    for row in await tx.rows("requests_of_thread", thread["thread_key"]):
        if is_pending(row) or (request is not None and row["request_id"] == request.request_id):
            await tx.send("drop_request", tenant, row["request_id"])
    if request is not None and not await _add(tx, thread, request, run_id):
        raise request_taken(request.request_id)


async def save_many(tx: Transaction, tenant: str, thread_id: str, requests: Sequence[NewRequest], run_id: str) -> None:
    """Store requests of a run. A stored request of the run with the same id stays unchanged. Raises InvalidInputError if
    another run or thread has a request with one of the ids."""
    thread = await threads.ensured(tx, tenant, thread_id)
    for request in requests:
        if not await _add(tx, thread, request, run_id):
            known = await tx.row("request", tenant, request.request_id)
            if known is None or (known["thread_key"], known["run_id"]) != (thread["thread_key"], run_id):
                raise request_taken(request.request_id)


async def load_pending(db: Database, tenant: str, thread_id: str) -> HitlRequest | None:
    """Return the newest pending request of a thread, or None. Apply the deadlines of overdue requests first."""
    await fire_deadlines(db, tenant, thread_id)

    async def read(tx: Transaction) -> list[Row]:
        thread = await tx.row("find_thread", tenant, thread_id)
        return await tx.rows("pending_of_thread", thread["thread_key"]) if thread is not None else []

    rows = await db.read(read)
    return decoded(rows[-1]) if rows else None


async def load(db: Database, tenant: str, thread_id: str, run_id: str | None) -> list[HitlRequest]:
    """Return the pending and the answered requests of the run ``run_id``. If ``run_id`` is None, return the requests of the
    thread. Apply the deadlines of overdue requests first, because a program without workers has no reconciler."""
    await fire_deadlines(db, tenant, thread_id)

    async def read(tx: Transaction) -> list[Row]:
        thread = await tx.row("find_thread", tenant, thread_id)
        return await tx.rows("requests_of_thread", thread["thread_key"]) if thread is not None else []

    rows = await db.read(read)
    return [decoded(row) for row in rows if row["closed_at"] is None and run_id in (None, row["run_id"])]


async def fire_deadlines(db: Database, tenant: str, thread_id: str) -> None:
    """Apply the deadline of each overdue request of a thread (H7). The deadline stores the default answer or fails the run. If
    the run to fail is not live, the request is closed. Raises LockedError."""

    async def overdue(tx: Transaction) -> list[Row]:
        return await _overdue(tx, await tx.row("find_thread", tenant, thread_id))

    async def fire(tx: Transaction) -> None:
        await _fire_all(tx, tenant, await tx.row("lock_thread", tenant, thread_id))

    if await db.read(overdue):
        await db.write(fire)


async def fire_before_reading(db: Database, tenant: str, thread_id: str | None) -> None:
    """Apply the deadlines of the overdue requests of a thread before a call that only reads. If ``thread_id`` is None, apply
    up to FIRED_AT_ONCE deadlines of the whole tenant. Skip a thread that another transaction has locked. The call then shows
    the thread's state before the deadlines."""

    async def overdue(tx: Transaction) -> list[Row]:
        if thread_id is None:
            return await tx.rows("overdue", tenant, await tx.now(), FIRED_AT_ONCE)
        return await _overdue(tx, await tx.row("find_thread", tenant, thread_id))

    for late in dict.fromkeys(row["thread_id"] for row in await db.read(overdue)):

        async def fire(tx: Transaction, late: str = late) -> None:
            await _fire_all(tx, tenant, await tx.row("lock_free_thread", tenant, late))

        with suppress(LockedError):
            await db.write(fire, wait=False)


async def _overdue(tx: Transaction, thread: Row | None) -> list[Row]:
    return await tx.rows("overdue_of_thread", thread["thread_key"], await tx.now()) if thread is not None else []


async def _fire_all(tx: Transaction, tenant: str, thread: Row | None) -> None:
    """Apply the deadlines of a locked thread."""
    for row in await _overdue(tx, thread):
        await _fire(tx, tenant, row["thread_id"], row["request_id"])


async def _fire(tx: Transaction, tenant: str, thread_id: str, request_id: str) -> None:
    thread = await threads.found(tx, tenant, thread_id)
    row = await tx.row("request", tenant, request_id)
    if row is None or not is_pending(row):  # the failure of the run has closed the request
        return
    now = await tx.now()
    if row["otherwise"] is not None:
        answer = (row["otherwise"], None, ANSWERED_AT_DEADLINE, None, now)
        await tx.send("answer_request", *answer, tenant, request_id)
        return
    run = await tx.row("run", thread["thread_key"], row["run_id"]) if row["run_id"] is not None else None
    if run is not None and run["status"] == "running":
        message = f"request {request_id} was not answered by {row['deadline_at'].isoformat()}"
        await external_runs.end(tx, thread, run, RunStatus.FAILED, ErrorInfo(code="hitl_timeout", message=message))
    else:
        await tx.send("close_request", now, tenant, request_id)


async def chosen(tx: Transaction, thread: Row, request_id: str | None, response_id: str | None) -> Row:
    """Return the request that an answer is for.

    An answer with a known ``response_id`` is a repetition. For a repetition, return the request that was answered before. For a
    new answer, return the request ``request_id``. Without ``request_id``, return the only pending request. Raises
    HitlAmbiguousError, HitlNoPendingRequestError, HitlStaleAnswerError.
    """
    rows = await tx.rows("requests_of_thread", thread["thread_key"])
    if response_id is not None:
        for row in rows:
            if row["response_id"] == response_id and request_id in (None, row["request_id"]):
                return row
    pending = [row for row in rows if is_pending(row)]
    ids = [row["request_id"] for row in pending]
    thread_id = thread["thread_id"]
    known = next((row for row in rows if row["request_id"] == request_id), None)
    if not pending and known is None:
        raise HitlNoPendingRequestError(f"thread {thread_id!r} has no pending request", thread_id=thread_id)
    if request_id is None:
        if len(pending) > 1:
            raise HitlAmbiguousError(f"{len(ids)} requests are pending; give a request_id", request_ids=ids)
        return pending[0]
    by_deadline = known is not None and known["answered_by"] == ANSWERED_AT_DEADLINE
    if known is None or known["closed_at"] is not None or by_deadline:
        message = f"request {request_id} does not wait for an answer; pending: {', '.join(ids) or 'none'}"
        raise HitlStaleAnswerError(message, request_id=request_id, pending=ids)
    return known


async def thread_of(db: Database, tenant: str, request_id: str) -> str:
    """Return the id of the thread of a request. Raises HitlNoPendingRequestError."""
    row = await db.read(lambda tx: tx.row("request", tenant, request_id))
    if row is None:
        raise HitlNoPendingRequestError(f"there is no request {request_id!r}", request_id=request_id)
    thread_id: str = row["thread_id"]
    return thread_id


async def respond(
    db: Database,
    tenant: str,
    answer: Any,
    *,
    thread_id: str | None,
    request_id: str | None,
    response_id: str | None,
    answered_by: str | None,
    on_behalf_of: str | None = None,
) -> Responded:
    """Store an answer once (I6). If an equal answer is stored already, return the stored answer. Raises
    HitlAlreadyAnsweredError, HitlStaleAnswerError, HitlAmbiguousError, HitlNoPendingRequestError, HitlInvalidAnswerError,
    ThreadNotFoundError."""
    check_value(answer, "answer")
    check_names(answered_by=answered_by, on_behalf_of=on_behalf_of)
    to_json(answer)
    if thread_id is None and request_id is None:
        raise InvalidInputError("respond needs a thread_id or a request_id", field="thread_id")
    of_thread = thread_id if thread_id is not None else await thread_of(db, tenant, request_id or "")
    given = (pack(answer), response_id, answered_by, on_behalf_of)

    async def read(tx: Transaction) -> Row:
        return await chosen(tx, await threads.found(tx, tenant, of_thread), request_id, response_id)

    await fire_deadlines(db, tenant, of_thread)
    while True:
        checked = await db.read(read)
        if is_pending(checked):
            check_answer(decoded(checked), answer)  # outside of a transaction, because this can take long

        async def write(tx: Transaction, checked: Row = checked) -> Responded | None:
            thread = await threads.locked(tx, tenant, of_thread)
            row = await chosen(tx, thread, request_id, response_id)
            if row["request_id"] != checked["request_id"]:
                return None
            if not is_pending(row):
                return _repeated(decoded(row), answer, response_id)
            return await _record(tx, thread, row, given)

        if (responded := await db.write(write)) is not None:
            return responded


def _repeated(request: HitlRequest, answer: Any, response_id: str | None) -> Responded:
    if request.answer == answer and response_id in (None, request.response_id):
        return Responded(request, False)
    raise HitlAlreadyAnsweredError(
        f"request {request.request_id} was answered before with another answer or response_id",
        request_id=request.request_id,
        answered_by=request.answered_by,
    )


async def _record(tx: Transaction, thread: Row, row: Row, given: tuple[Any, ...]) -> Responded:
    try:
        await tx.send("answer_request", *given, await tx.now(), thread["tenant"], row["request_id"])
    except DuplicateKeyError:
        message = "this response_id was used for another request of the thread; use another id"
        raise InvalidInputError(message, field="response_id") from None
    answered = await tx.row("request", thread["tenant"], row["request_id"])
    assert answered is not None
    waiting = await tx.rows("pending_of_thread", thread["thread_key"])
    return Responded(decoded(answered), True, last=all(other["run_id"] != row["run_id"] for other in waiting))


async def abort(tx: Transaction, tenant: str, thread_id: str, run_id: str | None, words: str) -> Run | None:
    """Cancel the run that waits for a human, and return the run. Return None if no run waits. ``words``: the text of the run's
    last message, and of the results of its open tool calls. Raises HitlAmbiguousError if several runs wait."""
    thread = await threads.locked(tx, tenant, thread_id)
    if run_id is not None:
        await external_runs.known_run(tx, thread, run_id)
    asking = dict.fromkeys(row["run_id"] for row in await tx.rows("pending_of_thread", thread["thread_key"]))
    found = [await tx.row("run", thread["thread_key"], each) for each in asking if each is not None and run_id in (None, each)]
    waiting = [run for run in found if run is not None and run["status"] == "running"]
    if len(waiting) > 1:
        ids = [run["run_id"] for run in waiting]
        raise HitlAmbiguousError(f"{len(ids)} runs wait on thread {thread_id!r}; give a run_id", run_ids=ids)
    if not waiting:
        return None
    return external_runs.decoded(await external_runs.end(tx, thread, waiting[0], RunStatus.CANCELLED, keep=True, words=words))
