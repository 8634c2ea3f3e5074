"""External runs. Processes that are not workers claim, complete and cancel these runs (R13, R17)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from runyard.domain.states import RunStatus
from runyard.domain.tool_cycles import CANCELLED, closing, cycles_closed, farewell
from runyard.errors import (
    RunAlreadyClaimedError,
    RunEndedError,
    RunInUseError,
    RunNotClaimedError,
    RunNotFoundError,
)
from runyard.models import ErrorInfo, Message, Run, ToolCallPart, ToolResultPart

from ..codec import values
from ..codec.damaged_rows import named
from ..codec.message_rows import many
from . import threads, views, writes
from .database import Row, Transaction
from .views import Level


@named("run")
def decoded(row: values.Row) -> Run:
    """Return the run that a row describes."""
    began = row["accepted_at"]
    return Run(
        thread_id=row["thread_id"],
        run_id=row["run_id"],
        kind="external",
        queue="external",
        status=RunStatus(row["status"]),
        lane=row["run_id"],
        attempt=1,
        accepted_at=began,
        admitted_at=began,
        started_at=began,
        finished_at=row["finished_at"],
        cancel_requested_at=row["cancel_requested_at"],
        completion_seq=row["completion_seq"],
        fence=row["fence"],
        error=ErrorInfo.model_validate_json(row["error"]) if row["error"] is not None else None,
        event_id=row["event_id"],
        deleted_at=row["emptied_at"],
    )


async def known_run(tx: Transaction, thread: Row, run_id: str) -> Row:
    """Return the row of a run of the thread. Raises RunNotFoundError."""
    row = await tx.row("run", thread["thread_key"], run_id)
    if row is None:
        thread_id = thread["thread_id"]
        raise RunNotFoundError(f"thread {thread_id!r} has no run {run_id!r}", thread_id=thread_id, run_id=run_id)
    return row


async def claim(tx: Transaction, tenant: str, thread_id: str, run_id: str) -> None:
    """Start an external run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError."""
    thread = await threads.ensured(tx, tenant, thread_id)
    if await writes.open_run(tx, thread, run_id) is not None:
        message = f"run {run_id!r} of thread {thread_id!r} is claimed and not finished"
        raise RunAlreadyClaimedError(message, thread_id=thread_id, run_id=run_id)
    early = await tx.row("unclaimed", thread["thread_key"], run_id)
    branch = await writes.branch_of(tx, early["branch_id"] if early else thread["head_branch"])
    place = (early["first_seq"], early["last_seq"], early["last_message_id"]) if early else (None, None, None)
    await tx.send("drop_unclaimed", thread["thread_key"], run_id)
    await tx.send(
        "add_run",
        *(tenant, thread["thread_key"], thread_id, run_id, branch["branch_id"], branch["leaf_id"]),
        *(thread["next_seq"] - 1, thread["next_completion_seq"] - 1, *place, await tx.now()),
    )


async def complete(tx: Transaction, tenant: str, thread_id: str, run_id: str) -> None:
    """Complete a run. A completed run stays unchanged. Raises RunNotClaimedError."""
    thread = await tx.row("lock_thread", tenant, thread_id)
    run = await tx.row("run", thread["thread_key"], run_id) if thread is not None else None
    if run is not None and run["completion_seq"] is not None:
        return
    if thread is not None and run is None:
        old = await views.inherited_run(tx, thread, run_id)
        if old is not None and not old.open:
            return
    if thread is None or run is None or run["status"] != "running":
        message = f"run {run_id!r} of thread {thread_id!r} is not claimed; claim it first"
        raise RunNotClaimedError(message, thread_id=thread_id, run_id=run_id)
    await end(tx, thread, run, RunStatus.COMPLETED)


async def end(
    tx: Transaction,
    thread: Row,
    run: Row,
    status: RunStatus,
    error: ErrorInfo | None = None,
    *,
    keep: bool = False,
    words: str | None = None,
) -> Row:
    """End a live run, and return its row. A completed run gets a completion number. A cancelled run whose messages are kept
    also gets one.

    ``keep``: True to keep the messages of a cancelled run, if every tool call has a result (R10). ``words``: the text of an
    abort, or None. The results that close open tool calls and the run's last message have this text (H8).
    """
    out = await writes.writer(tx, thread)
    counted = status is RunStatus.COMPLETED
    if keep and (run["last_seq"] is not None or words is not None):
        counted = await _close(tx, out, run, words)
    if counted:
        await _count(tx, thread, run)
    await out.flush()
    now = await tx.now()
    asked = now if status is RunStatus.CANCELLED else None
    text = error.model_dump_json() if error is not None else None
    ended = (status, now, asked, text, f"{run['fence'] + 1}-1", run["first_seq"], run["last_seq"], run["last_message_id"])
    await tx.send("end_run", *ended, run["completion_seq"], run["high_water_seq"], run["extra"], run["accept_no"])
    await tx.send("close_requests_of_run", now, thread["thread_key"], run["run_id"])
    return await known_run(tx, thread, run["run_id"])


async def _close(tx: Transaction, out: writes.Writer, run: Row, words: str | None) -> bool:
    """Add the messages that close a cancelled run: results for its open tool calls, and the last message of an aborted run.
    Return True if every tool call of the run is directly followed by its result."""
    own: list[Message] = []
    pending: list[str] = []
    if run["last_seq"] is not None:
        place = (run["branch_id"], run["run_id"], run["first_seq"], run["last_seq"])
        for _, calls, results in await tx.tuples("messages_of_run", *place):
            pending = views.still_open(pending, calls, results)
            own.append(_outline(calls, results))
    added = [*closing(pending, words or CANCELLED), *([farewell(words)] if words is not None else [])]
    out.add_to_run(run, many(added))
    before: list[Message] = []
    if any(message.tool_results for message in own):
        seen = Level(run["branch_id"], out.thread["thread_key"], run["snapshot_tip"], run["snapshot_cutoff"])
        context = [*await views.inherited(tx, run["branch_id"]), seen]
        before = [_outline(json.dumps(await views.open_calls(tx, context)), None)]
    return cycles_closed(before, [*own, *added])


def _outline(calls: str | None, results: str | None) -> Message:
    """Return a message that has only the ids of tool calls and results."""
    parts: list[ToolCallPart | ToolResultPart] = [ToolCallPart(id=call, name="") for call in _ids(calls)]
    parts += [ToolResultPart(call_id=call) for call in _ids(results)]
    return Message(role="tool" if results else "assistant", content=list(parts))


def _ids(text: str | None) -> Iterable[str]:
    return json.loads(text) if text else ()


async def _count(tx: Transaction, thread: Row, run: Row) -> None:
    """Give the run its completion number, which makes its messages visible. Save the thread's extra with the run."""
    run["completion_seq"] = thread["next_completion_seq"]
    thread["next_completion_seq"] += 1
    branch = await writes.branch_of(tx, run["branch_id"])
    last = run["last_seq"] or 0
    run["high_water_seq"] = max(branch["high_water_seq"], last, run["snapshot_tip"])
    leaf = (run["last_message_id"], last) if last > branch["leaf_seq"] else (branch["leaf_id"], branch["leaf_seq"])
    await tx.send("save_branch", *leaf, run["high_water_seq"], run["branch_id"])
    if thread["extra_changed"]:
        run["extra"] = (await threads.values_of(tx, thread["thread_key"]))["extra"]
        await tx.send("save_extra", run["extra"], False, await tx.now(), thread["thread_key"])


async def cancel(tx: Transaction, tenant: str, thread_id: str, run_id: str, keep: bool) -> Run:
    """Cancel a live run. A cancelled run stays unchanged. Raises RunEndedError for any other ended run."""
    thread = await threads.locked(tx, tenant, thread_id)
    run = await known_run(tx, thread, run_id)
    if run["status"] == "running":
        run = await end(tx, thread, run, RunStatus.CANCELLED, keep=keep)
    elif run["status"] != "cancelled":
        raise RunEndedError(f"run {run_id!r} is {run['status']}", run_id=run_id, status=run["status"])
    return decoded(run)


async def delete(tx: Transaction, tenant: str, thread_id: str, run_id: str) -> None:
    """Delete the content of an ended run whose messages no later run sees. Keep the messages that a fork or a branch shows.
    Raises RunInUseError."""
    thread = await threads.locked(tx, tenant, thread_id)
    run = await known_run(tx, thread, run_id)
    details = {"thread_id": thread_id, "run_id": run_id, "status": run["status"]}
    if run["status"] == "running":
        raise RunInUseError(f"run {run_id!r} of thread {thread_id!r} is running; cancel it first", **details)
    if run["completion_seq"] is not None:
        message = f"run {run_id!r} is part of the context of thread {thread_id!r}; delete or erase the thread"
        raise RunInUseError(message, **details)
    [(shown,)] = await tx.tuples("shown_of_open_run", run["branch_id"], run_id)
    if run["last_seq"] is not None:
        first = max(run["first_seq"], shown + 1)
        await tx.send("drop_messages_of_run", run["branch_id"], run_id, first, run["last_seq"])
    await tx.send("drop_requests_of_run", thread["thread_key"], run_id)
    await tx.send("empty_run", run["emptied_at"] or await tx.now(), run["accept_no"])
