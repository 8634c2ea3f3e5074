"""The port for the checkpoints of graphs. A framework such as LangGraph saves the states of its graphs as checkpoints.

The store does not interpret the framework's data. Contents, values and items are bytes with a ``kind``. The kind is a text
that the framework's serializer returns together with the bytes. A **line** is a sequence of checkpoints under one name. A line
belongs to a saver without runs, or to the runs of one thread. A **stream** contains items of lists. Items are only appended to
a stream. The store keeps a list as **segments**. A segment names a stream, the number of the segment's first item, and the
number after the segment's last item.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ..domain.size_limits import JsonObject
from .refs import AttemptToken

Segments = tuple[int, ...]

NEW_ITEMS: Final = 0
"""In the segments of a :class:`NewValue`, this stream number stands for the value's new items."""


@dataclass(frozen=True, slots=True)
class LineRef:
    """The name of a line. ``attempt``: the attempt that writes the line, or None for the line of a saver without runs."""

    graph_id: str
    attempt: AttemptToken | None = None

    @property
    def owner_key(self) -> int:
        """The key of the thread to which the line belongs, or 0."""
        return self.attempt.thread_key if self.attempt is not None else 0


@dataclass(frozen=True, slots=True)
class NewValue:
    """The value of a channel to store.

    ``kind``: None if the channel is empty. ``data``: the value, or None for a list in segments. ``chunks``: the new items of
    the list. Each chunk has a number of items and their bytes. If ``stream`` belongs to the line and has ``length`` items, the
    new items are appended to ``stream``. Otherwise they are appended to a new stream. In ``segments``, the stream
    :data:`NEW_ITEMS` stands for the new items.
    """

    channel: str
    version: str
    kind: str | None
    data: bytes | None = None
    segments: Segments | None = None
    stream: int | None = None
    length: int = 0
    chunks: Sequence[tuple[int, bytes]] = ()


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint to store.

    ``content``: the checkpoint without values. ``versions``: the versions of all channels of the checkpoint, as text.
    ``values``: the values of the channels that changed. For each other channel in ``versions``, the value was stored earlier,
    with the same version.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    kind: str
    content: bytes
    metadata: JsonObject
    versions: Mapping[str, str]
    values: Sequence[NewValue]


class StoredList(NamedTuple):
    """A stored list. ``stream``: the stream to which the line can append, or None. ``length``: the length of the stream."""

    segments: Segments
    stream: int | None
    length: int


class Value(NamedTuple):
    """The stored value of a channel. Either ``data`` or ``segments`` is set."""

    channel: str
    kind: str
    data: bytes | None
    segments: Segments | None


class TaskWrite(NamedTuple):
    """A pending write: a value that a task wrote to a channel after the checkpoint."""

    task_id: str
    idx: int
    task_path: str
    channel: str
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A stored checkpoint. ``writes``: its pending writes, in the order of task_path, task_id and idx."""

    graph_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    kind: str
    content: bytes
    metadata: JsonObject
    values: list[Value]
    writes: list[TaskWrite]


@dataclass(frozen=True, slots=True)
class CheckpointFilter:
    """The conditions for the checkpoints of a list. None means no condition.

    ``metadata``: keys and values that the metadata of a checkpoint must have. ``before``: the id of a checkpoint must be lower
    than this id.
    """

    graph_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    metadata: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class GraphStart:
    """The state with which a run's graph begins (F13).

    ``line``: the line of the run. ``began``: whether an earlier attempt has written to the line. ``base_id``: the last of the
    thread's messages in the state, or None. ``unseen``: the ids of messages before ``base_id`` that the state lacks. Such
    messages were stored after the run of ``base_id`` began, or their run was redriven after this time.
    """

    line: LineRef
    began: bool
    base_id: str | None
    unseen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GraphState:
    """The state from which a probe begins.

    ``base_id``, ``unseen``: as in :class:`GraphStart`. ``checkpoints``: one per namespace.
    """

    base_id: str | None
    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    unseen: frozenset[str] = frozenset()


class GraphCheckpointStore(Protocol):
    """The checkpoints of graphs of one tenant. A backend without such checkpoints raises CapabilityMissingError (R14).

    ``scope``: the servers and the tenant. Stores with the same scope have the same checkpoints.

    ``put``: store a checkpoint. Return the stored lists by channel. Store nothing and return None if a stream was deleted. Do
    the same if a channel has no new value, and the store lacks the channel's value of this version. ``put_writes``: store
    writes of a task. A write is (idx, channel, kind, data). A stored write with the same idx is replaced only if idx < 0.
    ``latest``: return the newest checkpoint of a namespace, or the checkpoint with ``checkpoint_id``, or None. ``page``: return
    checkpoints in descending order of their ids, beginning after the checkpoint ``after``. An empty list means the end.
    ``items``: return the chunks of each segment, with the number of the first item of its first chunk. Return None if the list
    was deleted.

    ``copy``: copy the checkpoints of a thread to another thread. Raises ThreadAlreadyExistsError if the target has checkpoints.
    The time of the copy does not depend on the number of checkpoints. ``delete``: delete the checkpoints of a thread.
    ``prune``: keep only the newest checkpoint of each namespace. ``delete`` and ``prune`` do nothing for a thread without
    checkpoints. ``delete_runs``: delete the checkpoints whose metadata contain one of these run ids. Return the threads that
    showed such a checkpoint. ``prune`` and ``delete_runs`` raise CapabilityMissingError if a state is rebuilt from earlier
    checkpoints.

    ``begin``: begin the graph of an attempt's run. ``candidates``: the ids of the messages before the run that may have a
    state, the newest first. The list is empty for a graph without an earlier state. ``input_id``: the id of the run's input.
    ``mark``: bind the present state of the line to a message. ``state``: return the state for a probe of the thread: the state
    of the first candidate that has a state. ``begin`` and ``state`` raise CheckpointMissingError if no candidate has
    a state (F13). Writes of an attempt raise StaleFenceError and CancelRequestedError (I2).
    """

    @property
    def scope(self) -> Hashable: ...
    async def put(self, line: LineRef, checkpoint: NewCheckpoint) -> dict[str, StoredList] | None: ...
    async def put_writes(
        self,
        line: LineRef,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        task_path: str,
        writes: Sequence[tuple[int, str, str, bytes]],
    ) -> None: ...
    async def latest(self, line: LineRef, namespace: str, checkpoint_id: str | None = None) -> StoredCheckpoint | None: ...
    async def page(
        self, where: CheckpointFilter, *, after: StoredCheckpoint | None = None, limit: int = 100, owner_key: int = 0
    ) -> list[StoredCheckpoint]: ...
    async def items(self, segments: Segments) -> list[tuple[int, list[bytes]]] | None: ...
    async def copy(self, source: str, target: str) -> None: ...
    async def delete(self, graph_id: str) -> None: ...
    async def delete_runs(self, run_ids: Sequence[str]) -> Sequence[str]: ...
    async def prune(self, graph_id: str) -> None: ...
    async def begin(self, attempt: AttemptToken, candidates: Sequence[str], input_id: str | None) -> GraphStart: ...
    async def mark(self, line: LineRef, message_id: str) -> None: ...
    async def state(self, thread_id: str, candidates: Sequence[str], namespaces: Sequence[str]) -> GraphState: ...


@dataclass(frozen=True, slots=True)
class AttemptGraphs:
    """The checkpoints of graphs for an attempt. ``attempt``: None in a probe, which only reads checkpoints (F9)."""

    store: GraphCheckpointStore
    attempt: AttemptToken | None = None
