"""The rules of visibility, forks and branches, as functions over lists of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from runyard.errors import (
    CutRunNotFoundError,
    ForkBoundaryError,
    InvalidInputError,
    MessageNotFoundError,
    RunNotCompletedError,
    RunNotFoundError,
)
from runyard.models import ROOT_ID, JsonObject, Message, Usage, check_uuid, open_tool_calls
from runyard.ports.commands import Cut

from .state import Ancestral, Branch, Database, Entry, RunState, ThreadState


@dataclass
class CutAt:
    """A copy of the content of a cut. ``entries``: its messages. ``ancestral``: its runs, by id. ``extra``: the thread's extra
    at the cut. ``run_id``: the run at whose end the cut is, or None for a cut at a message. ``open_calls``: the ids of the open
    tool calls."""

    entries: tuple[Entry, ...]
    ancestral: dict[str, Ancestral]
    extra: JsonObject
    run_id: str | None = None
    open_calls: list[str] = field(default_factory=list)


def completion(thread: ThreadState, entry: Entry) -> int | None:
    """Return the completion number of the message's run, or None. ``entry``: one of the thread's own messages."""
    run = thread.runs.get(entry.run_id or "")
    return run.run.completion_seq if run else None


def view(thread: ThreadState, branch: Branch) -> list[Entry]:
    """Return all messages that are visible on a branch."""
    return [*branch.prefix, *(e for e in branch.own if e.run_id is None or completion(thread, e) is not None)]


def shown(thread: ThreadState, branch: Branch) -> list[Entry]:
    """Return all messages that are visible on a branch, and the messages of the branch's live run. The live run is the head of
    the branch's lane, provided that an attempt of it has begun."""
    first = next(iter(thread.lane(branch.lane)), None)
    live = first.id if first is not None and first.branch is branch else None
    own = (e for e in branch.own if e.run_id in (None, live) or completion(thread, e) is not None)
    return [*branch.prefix, *own]


def last_visible(thread: ThreadState, branch: Branch) -> Entry | None:
    return next(iter(reversed(view(thread, branch))), None)


def branch_ending_at(thread: ThreadState, message_id: str) -> Branch | None:
    """Return a branch whose last visible message has this id, or None. ROOT_ID finds a branch without visible messages. If
    several branches match, return the head, or else the oldest."""
    for branch in sorted(thread.branches, key=lambda b: (b is not thread.head, b.number)):
        last = last_visible(thread, branch)
        if (last.id if last else ROOT_ID) == message_id:
            return branch
    return None


def find(thread: ThreadState, *, message_id: str | None = None, seq: int | None = None) -> tuple[Branch, Entry]:
    """Return the branch and the entry of a message. The branch of an inherited message is the root. Raises MessageNotFoundError
    if there is no such message. Raises MessageNotFoundError if the message's run was never claimed."""
    for branch in thread.branches:
        for entry in branch.own:
            if message_id == entry.id or seq == entry.seq:
                run = thread.runs.get(entry.run_id or "")
                if entry.run_id is not None and (run is None or run.branch is None):
                    break
                return branch, entry
    for entry in thread.root.prefix:
        if message_id == entry.id or seq == entry.seq:
            return thread.root, entry
    named = f"message {message_id}" if message_id else f"message with seq {seq}"
    raise MessageNotFoundError(f"thread {thread.id!r} has no {named}", thread_id=thread.id, message_id=message_id, seq=seq)


def branch_of(thread: ThreadState, message_id: str) -> Branch:
    """Return the branch that stores a message. For an inherited message, return the root. Raises MessageNotFoundError. Raises
    RunNotCompletedError if :func:`shown` does not show the message on its branch."""
    branch, entry = find(thread, message_id=message_id)
    if entry.owner == thread.key and entry not in shown(thread, branch):
        status = thread.runs[entry.run_id or ""].run.status
        message = f"message {message_id} belongs to the {status} run {entry.run_id}, which is on no branch"
        raise RunNotCompletedError(f"{message}; label another message of the branch", thread_id=thread.id, run_id=entry.run_id)
    return branch


def holder_of(thread: ThreadState, message_id: str) -> Entry | None:
    """Return the message with this id, own or inherited, or None."""
    own = (entry for branch in thread.branches for entry in branch.own)
    return next((entry for entry in chain(own, thread.root.prefix) if entry.id == message_id), None)


def check_id_free(thread: ThreadState, message_id: str, run_id: str | None) -> None:
    """Raise InvalidInputError if another run than ``run_id`` has a message with this id. ``run_id``: None for a message without
    a run."""
    if (error := id_error(thread, message_id, run_id)) is not None:
        raise error


def id_error(thread: ThreadState, message_id: str, run_id: str | None) -> InvalidInputError | None:
    holder = holder_of(thread, message_id)
    return id_taken(thread.id, message_id) if holder is not None and holder.run_id != run_id else None


def id_taken(thread_id: str, message_id: str) -> InvalidInputError:
    message = f"message id {message_id} is taken on thread {thread_id} by another message; use another id"
    return InvalidInputError(message, thread_id=thread_id, message_id=message_id)


def path(thread: ThreadState, branch: Branch, entry: Entry) -> list[Entry]:
    """Return the path from the root to ``entry``. The path begins with the prefix of the entry's branch. Then come messages of
    the branch itself: messages without a run, messages of the entry's run, and messages of completed runs. A run counts as
    completed if a cut at ``entry`` shows it as completed."""
    if entry.owner != thread.key:
        shown = [e for e in thread.root.prefix if e.seq <= entry.seq]
        limit = entry.cutoff or 0
        return [e for e in shown if e.branch != entry.branch or _counts(e, e.completion, entry, limit)]
    limit = cutoff_of(thread, entry)
    own = [e for e in branch.own if e.seq <= entry.seq]
    return [*branch.prefix, *(e for e in own if _counts(e, completion(thread, e), entry, limit))]


def _counts(entry: Entry, number: int | None, leaf: Entry, limit: int) -> bool:
    return entry.run_id is None or (number is not None and number <= limit) or entry.run_id == leaf.run_id


def cutoff_of(thread: ThreadState, entry: Entry) -> int:
    """Return the highest completion number that a cut at ``entry`` shows. ``entry``: one of the thread's own messages."""
    if entry.run_id is None:
        return thread.next_completion - 1
    run = thread.runs[entry.run_id]
    return run.cutoff if run.run.completion_seq is None else run.run.completion_seq


def snapshot_after(thread: ThreadState, run: RunState) -> tuple[Entry, ...]:
    """Return the messages that are visible after a run that has just completed. The snapshot ends at the last message that a
    completed run of the branch has stored, or has seen at its claim (F1, F10)."""
    assert run.branch is not None
    done = [r for r in thread.runs.values() if r.branch is run.branch and r.run.completion_seq is not None]
    high_water = max((e.seq for r in done for e in (*r.context, *r.own())), default=0)
    return tuple(e for e in view(thread, run.branch) if e.seq <= high_water)


def frozen(thread: ThreadState, entries: Iterable[Entry], limit: int) -> tuple[Entry, ...]:
    """Return copies of ``entries``, the messages that a cut shows. Later changes of the runs cannot affect the copies.
    ``limit``: the highest completion number that the cut shows."""

    def freeze(entry: Entry) -> Entry:
        if entry.cutoff is not None:
            return entry
        number = completion(thread, entry)
        number = number if number is not None and number <= limit else None
        cutoff = number if number is not None else min(limit, cutoff_of(thread, entry))
        return replace(entry, completion=number, cutoff=cutoff, extra=thread.extra_at(cutoff))

    return tuple(freeze(entry) for entry in entries)


def _ancestral(thread: ThreadState, branch: Branch, entries: Sequence[Entry], limit: int) -> dict[str, Ancestral]:
    """Return the runs that a cut of ``branch`` shows, by id. ``entries``: the messages that the cut shows. ``limit``: the
    highest completion number that the cut shows."""
    seen = {e.place for e in entries}
    kept: dict[str, Ancestral] = {}
    for run in branch.ancestral.values():
        snapshot = tuple(e for e in run.snapshot if e.place in seen)
        mine = {e.place for e in run.snapshot if e.run_id == run.run_id}
        if run.completion is not None and run.completion <= limit and (not mine or mine & seen):
            kept[run.run_id] = replace(run, snapshot=snapshot, whole=run.whole and mine <= seen)
    for state in thread.runs.values():
        number = state.run.completion_seq
        if state.branch is branch and number is not None and number <= limit:
            mine = {e.place for e in state.own()}
            if not mine or mine & seen:
                snapshot = frozen(thread, (e for e in state.snapshot if e.place in seen), number)
                kept[state.id] = Ancestral(state.id, thread.key, number, snapshot, state.thread_extra, mine <= seen)
    for entry in entries:
        if entry.run_id is not None and entry.run_id not in kept:
            kept[entry.run_id] = Ancestral(entry.run_id, entry.owner)
    return kept


def whole_branch(thread: ThreadState, branch: Branch) -> CutAt:
    """Return the cut that shows all visible messages of the branch. A parallel run starts from this cut."""
    limit = thread.next_completion - 1
    entries = frozen(thread, view(thread, branch), limit)
    return CutAt(entries, _ancestral(thread, branch, entries, limit), thread.extra_at(limit))


def cut_at(thread: ThreadState, branch: Branch, entry: Entry) -> CutAt:
    """Return the cut at a message. The cut includes the message. The cut has ``open_calls`` if it is inside a tool cycle."""
    inherited = entry.owner != thread.key
    limit = (entry.cutoff or 0) if inherited else cutoff_of(thread, entry)
    entries = frozen(thread, path(thread, branch, entry), limit)
    extra = (entry.extra or {}) if inherited else thread.extra_at(limit)
    return CutAt(entries, _ancestral(thread, branch, entries, limit), extra, None, open_tool_calls(e.message for e in entries))


def cut_after(thread: ThreadState, run_id: str) -> CutAt:
    """Return the cut after a completed run of the thread or of an ancestor. Raises RunNotCompletedError. Raises
    ForkBoundaryError if the thread shows only a part of the run."""
    if run := thread.runs.get(run_id):
        if run.run.completion_seq is not None and run.branch is not None:
            limit = run.run.completion_seq
            entries = frozen(thread, run.snapshot, limit)
            return CutAt(entries, _ancestral(thread, run.branch, entries, limit), run.thread_extra, run_id)
    elif (old := thread.root.ancestral.get(run_id)) and old.completion is not None:
        if not old.whole:
            message = f"run {run_id!r} is only partly visible in thread {thread.id!r}; fork at a message instead"
            raise ForkBoundaryError(message, run_id=run_id, before=None, after=None)
        return CutAt(old.snapshot, _ancestral(thread, thread.root, old.snapshot, old.completion), old.extra, run_id)
    raise not_completed(thread, run_id)


def not_completed(thread: ThreadState, run_id: str | None) -> RunNotCompletedError:
    """Return the error for a cut after the run ``run_id``, which is not completed. If ``run_id`` is None, return the error for
    a thread without a completed run."""
    if run_id is not None and run_id not in thread.runs and run_id not in thread.root.ancestral:
        message = f"thread {thread.id!r} has no run {run_id!r}; fork after a completed run of the thread"
        return CutRunNotFoundError(message, thread_id=thread.id, run_id=run_id)
    what = (
        f"run {run_id!r} of thread {thread.id!r} is not completed" if run_id else f"thread {thread.id!r} has no completed run"
    )
    return RunNotCompletedError(
        f"{what}; prompt the thread once, or fork after a completed run", thread_id=thread.id, run_id=run_id
    )


def last_completed(thread: ThreadState) -> str:
    """Return the id of the last completed run of the head's path. The end of this run is the default cut. Raises
    RunNotCompletedError."""
    runs = {run.run_id: run.completion for run in thread.head.ancestral.values() if run.completion is not None}
    for state in thread.runs.values():
        if state.branch is thread.head and state.run.completion_seq is not None:
            runs[state.id] = state.run.completion_seq
    if not runs:
        raise not_completed(thread, None)
    return max(runs, key=lambda run_id: runs[run_id] or 0)


def resolve(thread: ThreadState, cut: Cut) -> CutAt:
    """Return the content of ``cut``. Raises RunNotCompletedError and MessageNotFoundError. Raises ForkBoundaryError if the cut
    is inside a tool cycle and ``cut.repair`` is False."""
    if cut.at_message_id is None and cut.at_seq is None:
        return cut_after(thread, cut.after_run_id or last_completed(thread))
    wanted = check_uuid(cut.at_message_id, "at_message_id") if cut.at_message_id is not None else None
    branch, entry = find(thread, message_id=wanted, seq=cut.at_seq if wanted is None else None)
    result = cut_at(thread, branch, entry)
    if result.open_calls and not cut.repair:
        raise boundary_error(thread, branch, entry, result.open_calls)
    return result


def usage_of(db: Database, cut: CutAt) -> Usage:
    """Return the usage of the runs whose messages are all in the cut."""
    last = {(e.owner, e.run_id): e.seq for e in cut.entries}
    found = [(db.threads[a.owner].runs.get(a.run_id), last.get((a.owner, a.run_id), 0)) for a in cut.ancestral.values()]
    return sum((r.run.usage for r, seq in found if r is not None and all(e.seq <= seq for e in r.own())), start=Usage())


def seen_run(db: Database, thread: ThreadState, run_id: str) -> tuple[ThreadState, RunState]:
    """Return a run and its thread. The run is the thread's own run, or a completed run that the thread inherited with all its
    messages.

    Raises RunNotFoundError.
    """
    if run := thread.runs.get(run_id):
        return thread, run
    old = thread.root.ancestral.get(run_id)
    if old is not None and old.whole and old.completion is not None:
        owner = db.threads[old.owner]
        return owner, owner.runs[run_id]
    raise RunNotFoundError(f"thread {thread.id!r} has no run {run_id!r}", thread_id=thread.id, run_id=run_id)


def cut_at_parent(thread: ThreadState, message_id: str) -> CutAt:
    """Return the cut at the parent message of a branch. For ROOT_ID, the cut shows no messages."""
    if message_id == ROOT_ID:
        return CutAt((), {}, {})
    return cut_at(thread, *find(thread, message_id=message_id))


def check_parent(thread: ThreadState, message_id: str) -> None:
    """Check the parent message of a prompt. Raises MessageNotFoundError. Raises ForkBoundaryError if the message is inside an
    open tool cycle."""
    if message_id == ROOT_ID:
        return
    branch, entry = find(thread, message_id=message_id)
    if calls := open_tool_calls(e.message for e in path(thread, branch, entry)):
        raise boundary_error(thread, branch, entry, calls)


def boundary_error(thread: ThreadState, branch: Branch, entry: Entry, calls: list[str]) -> ForkBoundaryError:
    """Return the error for a cut at ``entry`` inside a tool cycle. The error names two messages at which no tool
    call is open: the nearest one before ``entry`` and the nearest one after it."""
    whole = _whole_path(thread, branch, entry)
    closed = [e for i, e in enumerate(whole) if not open_tool_calls(x.message for x in whole[: i + 1])]
    before = next((e.id for e in reversed(closed) if e.seq < entry.seq), None)
    after = next((e.id for e in closed if e.seq >= entry.seq), None)
    where = f"message {entry.id} is inside an unfinished tool cycle ({', '.join(calls)})"
    message = f"{where}; cut before it at {before} or after it at {after}"
    return ForkBoundaryError(message, message_id=entry.id, open_calls=calls, before=before, after=after)


def _whole_path(thread: ThreadState, branch: Branch, entry: Entry) -> list[Entry]:
    if entry.owner != thread.key:
        last = max(i for i, e in enumerate(thread.root.prefix) if e.branch == entry.branch)
        return list(thread.root.prefix[: last + 1])
    open_run = entry.run_id if entry.run_id and completion(thread, entry) is None else None
    own = [e for e in branch.own if e.run_id is None or completion(thread, e) is not None or e.run_id == open_run]
    return [*branch.prefix, *own]


def side_leaves(thread: ThreadState) -> list[tuple[Branch, Entry]]:
    """Return the last message of every run that is not completed, with the run's branch. The tree shows these messages as
    leaves. No context contains them."""
    unsuccessful = [run for run in thread.runs.values() if run.run.completion_seq is None and run.run.deleted_at is None]
    return [(run.branch, own[-1]) for run in unsuccessful if run.branch and (own := run.own())]


def grouped(entries: Sequence[Entry]) -> list[Message]:
    """Return copies of the messages, grouped by run. The groups are in the order of their first messages. A message without a
    run is alone in its group."""
    groups: dict[object, list[Message]] = {}
    for entry in entries:
        groups.setdefault(entry.run_id if entry.run_id is not None else entry.place, []).append(entry.message)
    return [message.model_copy(deep=True) for group in groups.values() for message in group]


def last_of(entries: Sequence[Entry], limit: int, before: Message | None) -> list[Message]:
    """Return copies of up to ``limit`` messages before the message ``before``, the last one first."""
    end = len(entries) if before is None else next(n for n, entry in enumerate(entries) if entry.message.id == before.id)
    return copies(reversed(entries[max(0, end - limit) : end]))


def copies(entries: Iterable[Entry]) -> list[Message]:
    return [entry.message.model_copy(deep=True) for entry in entries]
