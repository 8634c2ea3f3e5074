"""The memory store of threads: message trees and forks by deep copy."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Unpack

from runyard.domain.etags import MICROSECOND
from runyard.domain.list_entries import entry, entry_bytes, message_bytes
from runyard.domain.states import RunStatus
from runyard.domain.threads import PathSegment
from runyard.domain.tool_cycles import FORKED, closing
from runyard.domain.validation import MAX_LABELS, check_label, check_name
from runyard.errors import (
    InvalidInputError,
    LeafMovedError,
    MessageNotFoundError,
    PreconditionFailedError,
    ThreadAlreadyExistsError,
    ThreadBusyError,
)
from runyard.models import ROOT_ID, JsonObject, Message, Thread, check_id, check_tags, check_uuid
from runyard.models import Branch as Leaf
from runyard.ports.commands import Cut, ForkRequest, ThreadChanges, ThreadRequest
from runyard.ports.queries import ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, ThreadFilter
from runyard.ports.refs import RunRef
from runyard.ports.results import Created, Forked, Page
from runyard.ports.scheduling import Effects

from .. import cursors
from ..lineage import ancestors
from ..paging import within
from . import deletion, execution, lanes, limits, tree, waits
from .erasure import erase_extra, erased
from .import_lock import MemoryImportLock
from .state import Branch, Database, Entry, ThreadState
from .values import check_json, check_messages, copied, patched


class MemoryThreadStore:
    """Threads of one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def thread(self, thread_id: str) -> Thread | None:
        thread = self.db.find(self.tenant, thread_id)
        return thread.thread.model_copy(deep=True) if thread else None

    async def thread_key(self, thread_id: str) -> int | None:
        thread = self.db.find(self.tenant, thread_id)
        return thread.key if thread else None

    async def threads(self, where: ThreadFilter = ALL_THREADS, page: PageRequest = FIRST_PAGE) -> Page[Thread]:
        """Return threads, in the order in which they were made, or the newest first."""
        order = where.newest_first
        after = cursors.thread(page.cursor, newest_first=order) if page.cursor is not None else None
        parent = self.db.find(self.tenant, where.parent_thread_id) if where.parent_thread_id is not None else None
        # A new thread may have the id of a deleted thread. The forks of the deleted thread are not its forks.
        states = [t for t in self.db.of(self.tenant) if parent is None or t.key > parent.key]
        found = {t.key: t.thread for t in states if where.parent_thread_id in (None, t.thread.parent_thread_id)}
        keys = [key for key, t in found.items() if where.agent in (None, t.agent) and where.tags.items() <= t.tags.items()]
        left = [key for key in sorted(keys, reverse=order) if after is None or (key < after if order else key > after)]
        part = within(left[: page.limit], lambda key: entry_bytes(found[key]), self.db.page_bytes)
        following = cursors.of_thread(part[-1], newest_first=order) if len(part) < len(left) else None
        return Page([entry(found[key]) for key in part], following)

    async def ancestors(self, thread_id: str, limit: int) -> Page[Thread]:
        """Return ancestors of the thread, the nearest first."""
        return await ancestors(self._parent, self.db.get(self.tenant, thread_id).key, limit)

    async def _parent(self, key: int) -> tuple[int, Thread] | None:
        thread = self.db.threads[key]
        named = self.db.find(self.tenant, thread.thread.parent_thread_id or "")
        if named is not None and named.key < key:
            return named.key, named.thread
        owners = {entry.owner for branch in thread.branches for entry in branch.prefix if entry.owner < key}
        if not owners:
            return None
        above = self.db.threads[max(owners)].thread
        return max(owners), above if above.deleted_at is None else above.tombstone(above.deleted_at)

    async def create_thread(self, request: ThreadRequest) -> Created:
        """Make an empty thread, or return the thread that an equal request made before."""
        tags = check_tags(check_json(dict(request.tags), "tags"), check_json(request.title, "title"))
        extra, config = check_json(request.extra, "extra"), check_json(request.config, "config")
        existing = self.db.find(self.tenant, request.thread_id)
        if existing is not None and existing.fork_hash == request.hash:
            return Created(existing.thread.model_copy(deep=True), False)
        if existing is not None:
            message = f"thread {request.thread_id!r} exists and was not made by this request; choose another id"
            raise ThreadAlreadyExistsError(message, thread_id=request.thread_id)
        thread = self.db.create(
            self.tenant, request.thread_id, agent=request.agent, title=request.title, tags=tags, extra=extra, config=config
        )
        thread.base_extra, thread.fork_hash = dict(extra), request.hash
        return Created(thread.thread.model_copy(deep=True), True)

    async def update_thread(
        self, thread_id: str, *, expected: datetime | None = None, **changes: Unpack[ThreadChanges]
    ) -> Thread:
        """Set the given fields, and clear the fields that are None. Merge a given ``extra`` or ``config``."""
        state = self.db.get(self.tenant, thread_id)
        _check_unchanged(state, expected)
        thread = state.thread
        agent = check_name(changes["agent"], "agent") if "agent" in changes else thread.agent
        named = check_json(changes["title"], "title") if "title" in changes else thread.title
        kept = {key: value for key, value in thread.tags.items() if key != "title" or thread.title is None}
        tags = check_tags(check_json(dict(changes["tags"] or {}) if "tags" in changes else kept, "tags"), named)
        extra = patched(thread.extra, changes["extra"], "extra") if "extra" in changes else thread.extra
        config = patched(thread.config, changes["config"], "config") if "config" in changes else thread.config
        thread.agent, thread.title, thread.tags, thread.extra, thread.config = agent, named, tags, extra, config
        thread.updated_at = max(self.db.now(), thread.updated_at + MICROSECOND)
        return thread.model_copy(deep=True)

    async def messages(self, thread_id: str, path: PathRequest = WHOLE_PATH) -> Page[Message]:
        """Return the path to ``leaf_id``. Without ``leaf_id``, return the path to the end of the head. The path to the end of
        the head includes the messages of a live run (B2)."""
        thread = self.db.get(self.tenant, thread_id)
        branch, entries = thread.head, tree.shown(thread, thread.head)
        after: int | None = None
        if path.leaf_id is not None:
            entries = tree.path(thread, *tree.find(thread, message_id=check_uuid(path.leaf_id, "leaf_id")))
        if path.cursor is not None:
            number, after = cursors.numbers(path.cursor, 2, below=2**63)
            branch = next((b for b in thread.branches if b.number == number), branch)
            entries = entries if path.leaf_id is not None else tree.shown(thread, branch)
        if path.newest_first:
            entries = entries[::-1]
        if after is not None:
            entries = [e for e in entries if (e.seq < after if path.newest_first else e.seq > after)]
        part = entries
        if path.limit is not None:
            part = within(entries[: path.limit], lambda e: message_bytes(e.message), self.db.page_bytes)
        following = cursors.encode([branch.number, part[-1].seq]) if part and len(part) < len(entries) else None
        items = [e.message.model_copy(update={"run_status": self.db.status_of(e)}, deep=True) for e in part]
        return Page(items, following)

    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]:
        """Return the messages that a fork at ``cut`` would see, and the extra that it would have."""
        result = tree.resolve(self.db.get(self.tenant, thread_id), cut)
        messages = tree.copies(result.entries)
        return [*messages, *closing(result.open_calls, FORKED)], copied(result.extra)

    async def branches(self, thread_id: str, page: PageRequest = FIRST_PAGE, *, labelled: bool = False) -> Page[Leaf]:
        """Return the branches of the tree, each with its leaf, in the order of the leaves' creation (B3)."""
        thread = self.db.get(self.tenant, thread_id)
        continued = {b.prefix[-1].id for b in thread.branches[1:] if b.prefix and _own_visible(thread, b)}
        leaves: list[tuple[Entry, list[Entry]]] = []
        for branch in thread.branches:
            shown = tree.view(thread, branch)
            if shown and (branch is thread.root or _own_visible(thread, branch)):
                leaves.append((shown[-1], shown))
        leaves += [(entry, list(tree.path(thread, branch, entry))) for branch, entry in tree.side_leaves(thread)]
        leaves = [(entry, path) for entry, path in leaves if entry.id not in continued]
        labels: dict[str, list[str]] = {}
        for label, branch in sorted(thread.labels.items()):
            if shown := tree.shown(thread, branch):
                labels.setdefault(shown[-1].id, []).append(label)
                if all(entry.id != shown[-1].id for entry, _ in leaves):
                    leaves.append((shown[-1], shown))
        head, trunk = (next((e.id for e in reversed(tree.shown(thread, b))), None) for b in (thread.head, thread.root))
        found = [self._leaf(entry, path, head, trunk, labels.get(entry.id, [])) for entry, path in leaves]
        found = [leaf for leaf in found if leaf.labels or not labelled]
        found.sort(key=lambda leaf: (leaf.created_at, leaf.message_id))
        if page.cursor is not None:
            after = cursors.moment(page.cursor)
            found = [leaf for leaf in found if (leaf.created_at, leaf.message_id) > after]
        part = found[: page.limit]
        more = cursors.encode([part[-1].created_at.isoformat(), part[-1].message_id]) if len(found) > page.limit else None
        return Page(part, more)

    def _leaf(self, entry: Entry, path: list[Entry], head: str | None, trunk: str | None, labels: list[str]) -> Leaf:
        created = entry.message.created_at
        assert created is not None
        status = self.db.status_of(entry)
        return Leaf(
            message_id=entry.id,
            depth=len(path),
            created_at=created,
            run_id=entry.run_id,
            run_status=status,
            head=entry.id == head,
            trunk=entry.id == trunk,
            labels=labels,
            path=_segments(path),
        )

    async def branch_keys(self, thread_id: str) -> list[int]:
        """Return the keys of the thread's branches, in the order in which they were opened."""
        return [branch.number for branch in self.db.get(self.tenant, thread_id).branches]

    async def branch_at(self, thread_id: str, place: int) -> tuple[int | None, int]:
        """Return the key at the index ``place`` of :meth:`branch_keys`, and the number of branches. The key is None if the
        thread has no branch at this index."""
        keys = await self.branch_keys(thread_id)
        return (keys[place] if place < len(keys) else None), len(keys)

    async def branch_messages(self, thread_id: str, branch: int, *, after: int = 0, limit: int = 500) -> list[Message]:
        """Return the messages that are stored on the branch, of all runs, in order. Inherited messages are omitted."""
        thread = self.db.get(self.tenant, thread_id)
        own = (e for b in thread.branches if b.number == branch for e in b.own if e.seq > after)
        return tree.copies(within(list(own)[:limit], lambda e: message_bytes(e.message), self.db.page_bytes))

    async def set_head(self, thread_id: str, message_id: str) -> None:
        """Make the branch that ends at a message the head. If no branch ends there, open one."""
        execution.branch_at(self.db, self.db.get(self.tenant, thread_id), check_uuid(message_id, "message_id"), "")

    async def lock_imports(self) -> MemoryImportLock:
        """Take the lock of the tenant's imports. Raises LockedError if another import holds it."""
        return MemoryImportLock(self.db, self.tenant)

    async def set_label(self, thread_id: str, label: str, message_id: str | None = None) -> None:
        """Give a label to the branch that stores a message, or to the head (B9)."""
        thread = self.db.get(self.tenant, thread_id)
        label = check_label(label)
        branch = thread.head if message_id is None else tree.branch_of(thread, check_uuid(message_id, "message_id"))
        if label not in thread.labels and len(thread.labels) >= MAX_LABELS:
            message = f"thread {thread_id} has {MAX_LABELS} labels, which is the maximum; remove one"
            raise InvalidInputError(message, thread_id=thread_id, field="label")
        thread.labels[label] = branch

    async def remove_label(self, thread_id: str, label: str) -> None:
        """Remove a label."""
        self.db.get(self.tenant, thread_id).labels.pop(check_label(label), None)

    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Store a message without a run. Make the thread if it does not exist (B1)."""
        check_id(thread_id, "thread_id")
        message = check_messages([message])[0].by_caller()
        limits.check_size(self.db, [message])
        parent_id = check_uuid(parent_id, "parent_id") if parent_id is not None else None
        expected_leaf = check_uuid(expected_leaf, "expected_leaf") if expected_leaf is not None else None
        thread = self.db.find(self.tenant, thread_id)
        if thread is None:
            if parent_id not in (None, ROOT_ID):
                raise MessageNotFoundError(f"thread {thread_id!r} has no message {parent_id}", message_id=parent_id)
            if expected_leaf is not None:
                raise LeafMovedError(f"thread {thread_id!r} is empty", expected=expected_leaf, leaf=None)
            thread = self.db.create(self.tenant, thread_id)
        self.db.tell(lanes.admit_thread(self.db, thread))
        if known := _known(thread, message, parent_id):
            return tree.copies([known])[0]
        branch = tree.branch_ending_at(thread, parent_id) if parent_id is not None else thread.head
        if branch is not None and (busy := thread.lane(branch.lane)):
            raise lanes.busy_error(thread, busy[0])
        _check_leaf(thread, branch or thread.head, expected_leaf)
        if parent_id is not None:
            branch = execution.branch_at(self.db, thread, parent_id, branch.lane if branch else "")
        assert branch is not None
        last = tree.last_visible(thread, branch)
        entry = self.db.store(thread, branch, message, parent=last.id if last else None, run_id=None)
        self.db.note(thread, "message.stored")
        return tree.copies([entry])[0]

    async def fork(self, request: ForkRequest) -> Forked:
        """Make a new thread with copies of the messages that ``request.cut`` shows (F1 to F8)."""
        existing = self.db.find(self.tenant, request.new)
        if existing is not None and existing.fork_hash == request.fork_hash:
            return Forked(existing.thread.model_copy(deep=True), False)
        src = self.db.get(self.tenant, request.src)
        self.db.tell(lanes.admit_thread(self.db, src))
        tags = check_tags(check_json(dict(request.tags), "tags"), check_json(request.title, "title"))
        metadata = check_json(request.metadata, "metadata")
        cut = tree.resolve(src, request.cut)
        if existing is not None:
            raise ThreadAlreadyExistsError(f"thread {request.new!r} exists; choose another id", thread_id=request.new)
        child = self.db.create(self.tenant, request.new)
        child.root.prefix, child.root.ancestral = cut.entries, cut.ancestral
        child.next_seq, child.next_completion = src.next_seq, src.next_completion
        child.fork_hash = request.fork_hash
        extra = {key: value for key, value in copied(cut.extra).items() if key != "fork"}
        if request.metadata is not None:
            extra["fork"] = metadata
        child.base_extra = extra
        child.thread = child.thread.model_copy(
            update={
                "parent_thread_id": src.id,
                "forked_after_run_id": cut.run_id,
                "forked_at_seq": cut.entries[-1].seq if cut.entries else None,
                "agent": request.agent or src.thread.agent,
                "title": request.title,
                "tags": tags,
                "extra": dict(extra),
                "config": copied(src.thread.config),
            }
            | ({} if request.reset_usage else {"usage": tree.usage_of(self.db, cut)})
        )
        for message in closing(cut.open_calls, FORKED):
            self.db.store(child, child.root, message, parent=cut.entries[-1].id, run_id=None)
        self.db.note(child, "thread.forked")
        return Forked(child.thread.model_copy(deep=True), True)

    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete the thread. Its forks keep the messages that they see. ``cancel``: True to cancel live runs first."""
        thread = self.db.get(self.tenant, thread_id)
        _check_unchanged(thread, expected)
        live = lanes.live_runs(thread)
        if live and not cancel:
            raise ThreadBusyError(
                f"run {live[0].id!r} of thread {thread_id!r} is live; cancel it", thread_id=thread_id, run_id=live[0].id
            )
        effects = Effects(deleted=[thread.key])
        for run in live:
            if run.run.status is RunStatus.RUNNING:
                effects.cancels.append(RunRef(thread.key, run.id))
            if run.lane_seq is None:
                run.lane_seq, run.run.lane, run.run.admitted_at = self.db.number(), run.id, self.db.now()
            ended = lanes.end_outside(self.db, thread, run, RunStatus.CANCELLED)
            effects += Effects(events=ended.events, withdrawn=ended.withdrawn)
            effects += lanes.wake_starter(self.db, run)
        thread.deleted = True
        thread.thread.deleted_at = self.db.now()
        thread.labels.clear()
        self.db.note(thread, "thread.deleted")
        for key in [key for key, state in self.db.requests.items() if state.thread_key == thread.key]:
            del self.db.requests[key]
        self.db.waits = [state for state in self.db.waits if state.thread_key != thread.key]
        waits.forget_signals(self.db, thread.key)
        deletion.hide_runs(thread, erase=False)
        return effects

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete the thread. Replace its messages in forks by tombstones."""
        thread = self.db.get(self.tenant, thread_id)
        effects = await self.delete_thread(thread_id, cancel=cancel, expected=expected)
        thread.erased = True
        deletion.hide_runs(thread, erase=True)
        erase_extra(thread, self.db.threads.values())
        for other in self.db.threads.values():
            for branch in other.branches:
                branch.prefix = _without(thread.key, branch.prefix)
                branch.own = list(_without(thread.key, tuple(branch.own)))
                for run_id, old in branch.ancestral.items():
                    branch.ancestral[run_id] = replace(old, snapshot=_without(thread.key, old.snapshot))
            for run in other.runs.values():
                run.context, run.snapshot = _without(thread.key, run.context), _without(thread.key, run.snapshot)
        return effects


def _check_unchanged(thread: ThreadState, expected: datetime | None) -> None:
    if expected is not None and thread.thread.updated_at != expected:
        raise PreconditionFailedError(f"thread {thread.id!r} has changed since {expected}; read it again", thread_id=thread.id)


def _known(thread: ThreadState, message: Message, parent_id: str | None) -> Entry | None:
    """Return the stored message with the id of ``message``, or None. Raises InvalidInputError if the stored message belongs to
    a run, or has another content or parent."""
    if (known := tree.holder_of(thread, message.id)) is None:
        return None
    elsewhere = parent_id not in (None, known.message.parent_id or ROOT_ID)
    if known.run_id is not None or not known.message.says(message) or elsewhere:
        raise tree.id_taken(thread.id, message.id)
    return known


def _check_leaf(thread: ThreadState, branch: Branch, expected: str | None) -> None:
    """Raise LeafMovedError if ``expected`` is given and is not the last visible message of the branch."""
    last = tree.last_visible(thread, branch)
    leaf = last.id if last else None
    if expected is not None and expected != leaf:
        raise LeafMovedError(f"the last message is {leaf}, not {expected}", expected=expected, leaf=leaf)


def _without(owner: int, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(erased(e) if e.owner == owner else e for e in entries)


def _own_visible(thread: ThreadState, branch: Branch) -> bool:
    return len(tree.view(thread, branch)) > len(branch.prefix)


def _segments(path: list[Entry]) -> list[PathSegment]:
    """Return the segments of a path. Every segment ends with its last message on the path."""
    last = {f"{entry.owner}.{entry.branch}": entry.seq for entry in path}
    return [PathSegment(segment=segment, until_seq=seq) for segment, seq in last.items()]
