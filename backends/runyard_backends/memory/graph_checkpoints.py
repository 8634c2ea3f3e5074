"""The checkpoints of graphs in memory (F13). A line is the history of a graph's state. A mark is a copy of the line as it was
when a message was stored."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from runyard.errors import CapabilityMissingError, CheckpointMissingError, ThreadAlreadyExistsError
from runyard.ports.graph_checkpoints import (
    NEW_ITEMS,
    CheckpointFilter,
    GraphStart,
    GraphState,
    LineRef,
    NewCheckpoint,
    NewValue,
    Segments,
    StoredCheckpoint,
    StoredList,
    TaskWrite,
    Value,
)
from runyard.ports.refs import AttemptToken

from . import execution
from .state import Database, ThreadState

CheckpointKey = tuple[str, str]
"""A namespace and a checkpoint id."""


@dataclass
class Line:
    """The checkpoints of one graph on one thread or run. ``values``: values by namespace, channel and version. ``writes``: the
    pending writes by task and by index in the task. ``owners``: the keys of the threads whose runs wrote a part of the line.
    ``holder``: the last run that began or continued the line. ``began``: True if this run has written. ``base_id``: the last
    message that the state contained when the run began. ``changes``: the number of writes."""

    checkpoints: dict[CheckpointKey, tuple[NewCheckpoint, list[Value]]] = field(default_factory=dict)
    values: dict[tuple[str, str, str], Value | None] = field(default_factory=dict)
    writes: dict[CheckpointKey, dict[tuple[str, int], TaskWrite]] = field(default_factory=dict)
    owners: frozenset[int] = frozenset()
    holder: str | None = None
    began: bool = False
    base_id: str | None = None
    changes: int = 0

    def copy(self) -> Line:
        """Return a line with the same rows."""
        made = copy.copy(self)
        made.checkpoints, made.values = dict(self.checkpoints), dict(self.values)
        made.writes = {key: dict(writes) for key, writes in self.writes.items()}
        return made

    def stored(self, graph_id: str, key: CheckpointKey) -> StoredCheckpoint:
        """Return a checkpoint with its values and its pending writes."""
        new, values = self.checkpoints[key]
        writes = sorted(self.writes.get(key, {}).values(), key=lambda w: (w.task_path, w.task_id, w.idx))
        return StoredCheckpoint(
            graph_id, *key, new.parent_id, new.kind, new.content, copy.deepcopy(new.metadata), list(values), writes
        )

    def newest(self, namespace: str, checkpoint_id: str | None = None) -> CheckpointKey | None:
        """Return the key of the checkpoint with this id. Without an id, return the key of the namespace's newest checkpoint.
        Return None if there is no such checkpoint."""
        keys = [key for key in self.checkpoints if key[0] == namespace and checkpoint_id in (None, key[1])]
        return max(keys, default=None)


@dataclass(frozen=True)
class Mark:
    """The state of a line at a message. ``base_id``: the last message that the state contains."""

    name: str
    owner_key: int
    line: Line
    base_id: str | None


@dataclass
class GraphDatabase:
    """The lines of all tenants, and the streams with the items of their lists. ``lines``: by tenant, owner and name.
    ``streams``: the encoded items, by stream number. ``counts``: the number of items in each chunk of a stream, by stream
    number. ``marks``: by thread and message."""

    lines: dict[tuple[str, int, str], Line] = field(default_factory=dict)
    streams: dict[int, list[bytes]] = field(default_factory=dict)
    counts: dict[int, list[int]] = field(default_factory=dict)
    marks: dict[tuple[int, str], Mark] = field(default_factory=dict)
    identity: object = field(default_factory=object)


class MemoryGraphCheckpointStore:
    """The checkpoints of graphs of one tenant."""

    def __init__(self, db: Database, graphs: GraphDatabase, tenant: str) -> None:
        self.db, self.graphs, self.tenant = db, graphs, tenant
        self.scope = graphs.identity, tenant

    def _line(self, ref: LineRef) -> Line:
        key = self.tenant, ref.owner_key, ref.graph_id
        if ref.attempt is None:
            return self.graphs.lines.setdefault(key, Line())
        execution.writer(self.db, ref.attempt)
        line = self.graphs.lines.get(key)
        if line is None or self._erased(line):
            raise CheckpointMissingError(
                f"the state of run {ref.attempt.run_id} was erased with a thread that it continues; start another thread",
                run_id=ref.attempt.run_id,
            )
        return line

    def _erased(self, line: Line) -> bool:
        return any(self.db.threads[owner].erased for owner in line.owners)

    async def put(self, line: LineRef, checkpoint: NewCheckpoint) -> dict[str, StoredList] | None:
        """Store a checkpoint. Return the stored lists by channel. Return None if a stream was deleted, or if the store lacks a
        version of a channel."""
        of = self._line(line)
        new = {(value.channel, value.version) for value in checkpoint.values}
        if any(pair not in new and (checkpoint.namespace, *pair) not in of.values for pair in checkpoint.versions.items()):
            return None
        for value in checkpoint.values:
            if any(s != NEW_ITEMS and s not in self.graphs.streams for s in (value.segments or ())[::3]):
                return None
        lists: dict[str, StoredList] = {}
        for value in checkpoint.values:
            stored = Value(value.channel, value.kind, value.data, None) if value.kind is not None else None
            if value.segments is not None:
                lists[value.channel] = self._append(value)
                stored = Value(value.channel, value.kind or "", None, lists[value.channel].segments)
            of.values[checkpoint.namespace, value.channel, value.version] = stored
        found = (of.values.get((checkpoint.namespace, channel, version)) for channel, version in checkpoint.versions.items())
        key = checkpoint.namespace, checkpoint.checkpoint_id
        of.checkpoints[key] = checkpoint, [value for value in found if value is not None]
        of.began, of.changes = True, of.changes + 1
        return lists

    def _append(self, value: NewValue) -> StoredList:
        counts, added = self.graphs.counts, sum(count for count, _ in value.chunks)
        stream = value.stream if value.stream in counts and sum(counts[value.stream]) == value.length else None
        if stream is None and added:
            stream = len(self.graphs.streams) + 1
            self.graphs.streams[stream], counts[stream] = [], []
        at = sum(counts[stream]) if stream is not None else 0
        if stream is not None:
            self.graphs.streams[stream] += [items for _, items in value.chunks]
            counts[stream] += [count for count, _ in value.chunks]
        segments: list[int] = []
        triples = value.segments or ()
        for s, first, last in zip(triples[::3], triples[1::3], triples[2::3], strict=True):
            if s == NEW_ITEMS:
                assert stream is not None
                s, first, last = stream, first + at, last + at
            if segments and segments[-3] == s and segments[-1] == first:
                segments[-1] = last
            else:
                segments += (s, first, last)
        return StoredList(tuple(segments), stream, at + added)

    async def put_writes(
        self,
        line: LineRef,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        task_path: str,
        writes: Sequence[tuple[int, str, str, bytes]],
    ) -> None:
        """Store pending writes of a task."""
        of = self._line(line)
        known = of.writes.setdefault((namespace, checkpoint_id), {})
        for idx, channel, kind, data in writes:
            if idx < 0 or (task_id, idx) not in known:
                known[task_id, idx] = TaskWrite(task_id, idx, task_path, channel, kind, data)
        of.began, of.changes = True, of.changes + 1

    async def latest(self, line: LineRef, namespace: str, checkpoint_id: str | None = None) -> StoredCheckpoint | None:
        """Return the checkpoint with ``checkpoint_id``. Without it, return the newest checkpoint of the namespace. Return None
        if there is no such checkpoint."""
        of = self.graphs.lines.get((self.tenant, line.owner_key, line.graph_id))
        key = of.newest(namespace, checkpoint_id) if of is not None else None
        return of.stored(line.graph_id, key) if of is not None and key is not None else None

    async def page(
        self, where: CheckpointFilter, *, after: StoredCheckpoint | None = None, limit: int = 100, owner_key: int = 0
    ) -> list[StoredCheckpoint]:
        """Return a page of checkpoints, in descending order of their ids."""
        found = [
            (checkpoint_id, namespace, graph_id, line)
            for (tenant, owner, graph_id), line in self.graphs.lines.items()
            for (namespace, checkpoint_id), (new, _) in line.checkpoints.items()
            if (tenant, owner) == (self.tenant, owner_key)
            and where.graph_id in (None, graph_id)
            and where.namespace in (None, namespace)
            and where.checkpoint_id in (None, checkpoint_id)
            and (where.before is None or checkpoint_id < where.before)
            and (after is None or (checkpoint_id, namespace, graph_id) < (after.checkpoint_id, after.namespace, after.graph_id))
            and all(key in new.metadata and new.metadata[key] == value for key, value in (where.metadata or {}).items())
        ]
        found.sort(key=lambda row: row[:3], reverse=True)
        return [line.stored(graph_id, (namespace, checkpoint_id)) for checkpoint_id, namespace, graph_id, line in found[:limit]]

    async def items(self, segments: Segments) -> list[tuple[int, list[bytes]]] | None:
        """Return the chunks with the items of each segment."""
        return [(0, list(self.graphs.streams[stream])) for stream in segments[::3]]

    async def copy(self, source: str, target: str) -> None:
        """Copy the checkpoints of a thread. Raises ThreadAlreadyExistsError."""
        line = self.graphs.lines.get((self.tenant, 0, source))
        if line is None:
            return
        if (self.tenant, 0, target) in self.graphs.lines:
            raise ThreadAlreadyExistsError(f"thread {target} has checkpoints; copy to another thread", thread_id=target)
        self.graphs.lines[self.tenant, 0, target] = line.copy()

    async def delete(self, graph_id: str) -> None:
        """Delete the checkpoints of a thread."""
        self.graphs.lines.pop((self.tenant, 0, graph_id), None)

    async def delete_runs(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Delete the checkpoints of runs. Return the threads that showed them. Raises CapabilityMissingError."""
        doomed = [
            (graph_id, line, key)
            for (tenant, owner, graph_id), line in self.graphs.lines.items()
            for key, (new, _) in line.checkpoints.items()
            if (tenant, owner) == (self.tenant, 0) and new.metadata.get("run_id") in run_ids
        ]
        for _, line, key in doomed:
            _refuse_deltas(line.checkpoints[key][0])
        for _, line, key in doomed:
            new, _ = line.checkpoints.pop(key)
            line.writes.pop(key, None)
            kept = {
                (namespace, *pair) for (namespace, _), (other, _) in line.checkpoints.items() for pair in other.versions.items()
            }
            for pair in new.versions.items():
                if (key[0], *pair) not in kept:
                    line.values.pop((key[0], *pair), None)
        return [graph_id for graph_id, _, _ in doomed]

    async def prune(self, graph_id: str) -> None:
        """Keep only the newest checkpoint of each namespace. Raises CapabilityMissingError."""
        line = self.graphs.lines.get((self.tenant, 0, graph_id))
        if line is None:
            return
        kept = {key: line.checkpoints[key] for ns in {ns for ns, _ in line.checkpoints} if (key := line.newest(ns))}
        for new, _ in kept.values():
            _refuse_deltas(new)
        line.checkpoints = kept
        line.writes = {key: writes for key, writes in line.writes.items() if key in kept}

    async def begin(self, attempt: AttemptToken, candidates: Sequence[str], input_id: str | None) -> GraphStart:
        """Begin or continue the graph of an attempt's run. Raises CheckpointMissingError."""
        thread, _ = execution.writer(self.db, attempt)
        own = [(key, line) for key, line in self.graphs.lines.items() if key[:2] == (self.tenant, thread.key)]
        for (_, _, name), line in own:
            if line.holder == attempt.run_id:
                return GraphStart(LineRef(name, attempt), line.began, line.base_id, self._unseen(thread, line.base_id))
        mark = self._mark(thread, candidates) if candidates else None
        name = f"{attempt.run_id}:{attempt.fence}"
        line = Line(base_id=mark.base_id if mark else None)
        if mark is not None:
            present = self.graphs.lines.get((self.tenant, thread.key, mark.name)) if mark.owner_key == thread.key else None
            holder = thread.runs.get(present.holder or "") if present is not None else None
            if present is not None and present.changes == mark.line.changes and (holder is None or not holder.live):
                name, line = mark.name, present
            else:
                line = mark.line.copy()
        line.owners |= {thread.key}
        line.holder, line.began, line.base_id = attempt.run_id, False, mark.base_id if mark is not None else None
        self.graphs.lines[self.tenant, thread.key, name] = line
        if input_id is not None:
            self.graphs.marks[thread.key, input_id] = Mark(name, thread.key, line.copy(), line.base_id)
        return GraphStart(LineRef(name, attempt), False, line.base_id, self._unseen(thread, line.base_id))

    async def mark(self, line: LineRef, message_id: str) -> None:
        """Store the present state of the line as the mark of a message."""
        of = self._line(line)
        self.graphs.marks[line.owner_key, message_id] = Mark(line.graph_id, line.owner_key, of.copy(), message_id)

    async def state(self, thread_id: str, candidates: Sequence[str], namespaces: Sequence[str]) -> GraphState:
        """Return the state from which a probe begins. Raises ThreadNotFoundError, CheckpointMissingError."""
        thread = self.db.get(self.tenant, thread_id)
        mark = self._mark(thread, candidates)
        keys = [key for namespace in namespaces if (key := mark.line.newest(namespace)) is not None]
        checkpoints = [mark.line.stored(thread_id, key) for key in keys]
        return GraphState(mark.base_id, checkpoints, self._unseen(thread, mark.base_id))

    def _unseen(self, thread: ThreadState, base_id: str | None) -> frozenset[str]:
        """Return the ids of the messages that come before the message ``base_id`` on its branch. Leave out the messages of the
        run that wrote ``base_id``, and the messages that this run saw when it began."""
        for key in _family(thread):
            for run in self.db.threads[key].runs.values():
                own = run.own()
                if not any(entry.id == base_id for entry in own):
                    continue
                seen = {entry.place for entry in (*run.context, *own)}
                last = max(entry.seq for entry in own if entry.id == base_id)
                assert run.branch is not None
                return frozenset(entry.id for entry in run.branch.own if entry.seq < last and entry.place not in seen)
        return frozenset()

    def _mark(self, thread: ThreadState, candidates: Sequence[str]) -> Mark:
        family = _family(thread)
        for message_id in candidates:
            for key in family:
                mark = self.graphs.marks.get((key, message_id))
                if mark is not None and not self._erased(mark.line):
                    return mark
        raise CheckpointMissingError(
            f"thread {thread.id} has no checkpoint of a graph at message {candidates[0]}; fork it at a message with a "
            "checkpoint, or prompt the agent that wrote the message",
            thread_id=thread.id,
            message_id=candidates[0],
        )


def _family(thread: ThreadState) -> set[int]:
    """Return the keys of the thread and of the threads whose messages it shows."""
    return {thread.key} | {entry.owner for branch in thread.branches for entry in branch.prefix}


def _refuse_deltas(checkpoint: NewCheckpoint) -> None:
    if "counters_since_delta_snapshot" in checkpoint.metadata:
        raise CapabilityMissingError(
            "the thread uses a DeltaChannel, whose state is rebuilt from earlier checkpoints; delete the whole thread instead"
        )
