"""RunyardSaver: a checkpoint saver of LangGraph that writes to a store of runyard.

docs/how-to/langgraph.md describes the use of the saver. :mod:`.langgraph_values` describes the storage of values.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, Final, Self, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from ..client.client import Client
from ..client.sync import SyncClient
from ..domain.size_limits import JsonObject
from ..domain.validation import check_id
from ..errors import InvalidInputError
from ..ports.graph_checkpoints import (
    CheckpointFilter,
    GraphCheckpointStore,
    LineRef,
    NewCheckpoint,
    NewValue,
    StoredCheckpoint,
)
from .connections import Connections, Shared, connections
from .langgraph_cache import Key, KnownList, ListCache
from .langgraph_reading import apart, read
from .langgraph_values import Encoded, encode_list, is_itemised

T = TypeVar("T")

PAGE_CHECKPOINTS: Final = 20
"""Number of checkpoints that :meth:`RunyardSaver.alist` reads at once."""


class RunyardSaver(BaseCheckpointSaver[str]):
    """Checkpoints of LangGraph in a runyard store: ``graph.compile(checkpointer=RunyardSaver(url))``.

    ``where``: a URL such as ``postgresql://…``, or a :class:`~runyard.Client` or ``SyncClient`` whose connections the saver
    shares. ``runyard migrate`` makes the schema at the URL. A saver for a URL connects at its first call in each event loop,
    and makes synchronous calls in a separate thread. Close such a saver at the end (``with``, ``async with``). A saver for a
    Client must be made in the event loop of the Client. Call the synchronous methods of such a saver only from other threads,
    not in this event loop. ``tenant``: the tenant, for a URL. ``serde``: the serializer, by default LangGraph's. ``cache``:
    the lists that the saver has read or written. Several savers may share a cache.

    The saver stores the changes of a list channel. A superstep writes only the added items of a list, even if the list is long.
    A message that a node changes in place is stored again.

    Calls raise BackendUnavailableError and SchemaError. Calls raise CapabilityMissingError if the store has no checkpoints of
    graphs (R14). Calls raise InvalidInputError for an invalid thread id, and for metadata that cannot be written as JSON. A
    saver sees only the checkpoints of its tenant.
    """

    def __init__(
        self,
        where: str | Client | SyncClient | Shared,
        *,
        tenant: str = "",
        serde: SerializerProtocol | None = None,
        cache: ListCache | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._cache = cache or ListCache()
        self._connections: Connections = where if isinstance(where, Shared) else connections(where, tenant)

    # -- LangGraph's asynchronous methods ------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint whose id is in ``config``.

        Without an id, return the newest checkpoint of the thread and namespace.

        Return None if there is no such checkpoint.
        """
        return await self._here(self._get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints in descending order of their ids. ``filter``: metadata keys with their values."""
        after: StoredCheckpoint | None = None
        while limit is None or limit > 0:
            page = await self._here(self._page(config, filter, before, after, limit))
            for stored, found in page:
                after = stored
                yield found
            if not page:
                return
            limit = None if limit is None else limit - len(page)

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Store a checkpoint, with the values of the channels in ``new_versions``. Return the config of this checkpoint."""
        return await self._here(self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes that a task made after a checkpoint."""
        await self._here(self._put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints of a thread. Copies of the thread keep their checkpoints."""
        await self._here(self._delete([thread_id]))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata contain one of ``run_ids``.

        Raises CapabilityMissingError if one of these checkpoints has a DeltaChannel.
        """
        await self._here(self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to a new thread, in constant time. Raises ThreadAlreadyExistsError."""
        await self._here(self._copy(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads. ``keep_latest`` keeps the newest checkpoint of each namespace.

        ``delete`` deletes all checkpoints.

        Raises CapabilityMissingError for ``keep_latest`` on a thread with a DeltaChannel.
        """
        await self._here(self._prune(thread_ids, strategy))

    async def aclose(self) -> None:
        """Close the connections of a saver that was made for a URL."""
        await self._connections.aclose()

    # -- LangGraph's synchronous methods -------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Synchronous form of :meth:`aget_tuple`."""
        return self._wait(self._get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Synchronous form of :meth:`alist`."""
        after: StoredCheckpoint | None = None
        while limit is None or limit > 0:
            page = self._wait(self._page(config, filter, before, after, limit))
            for stored, found in page:
                after = stored
                yield found
            if not page:
                return
            limit = None if limit is None else limit - len(page)

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        """Synchronous form of :meth:`aput`."""
        return self._wait(self._put(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Synchronous form of :meth:`aput_writes`."""
        self._wait(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Synchronous form of :meth:`adelete_thread`."""
        self._wait(self._delete([thread_id]))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Synchronous form of :meth:`adelete_for_runs`."""
        self._wait(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Synchronous form of :meth:`acopy_thread`."""
        self._wait(self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Synchronous form of :meth:`aprune`."""
        self._wait(self._prune(thread_ids, strategy))

    def close(self) -> None:
        """If the saver was made for a URL, close the connections of its synchronous calls.

        :meth:`aclose` closes all connections.
        """
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """Return the version that follows ``current``.

        A random part makes the version different from the versions of the thread's other branches.
        """
        number, width = (current, 12) if isinstance(current, int) else (0, 12)
        if isinstance(current, str):
            digits = current.split(".")[0]
            number, width = int(digits), len(digits)
        return f"{number + 1:0{width}}.{random.getrandbits(48):012x}"

    # -- methods that are executed in the event loop of the connections ------------------------------------------------

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._connections.wait(work)

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._connections.here(work)

    async def _store(self) -> GraphCheckpointStore:
        return (await self._connections.backend()).graphs

    def _line(self, thread_id: object) -> LineRef:
        return LineRef(check_id(str(thread_id), "thread_id"))

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        configurable = config["configurable"]
        line = self._line(configurable["thread_id"])
        namespace = configurable.get("checkpoint_ns", "")
        while True:
            stored = await (await self._store()).latest(line, namespace, get_checkpoint_id(config))
            if stored is None:
                return None
            found = await self.decoded(stored, str(configurable["thread_id"]), line)
            if found is not None:
                return found

    async def _page(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,
        before: RunnableConfig | None,
        after: StoredCheckpoint | None,
        limit: int | None,
    ) -> Sequence[tuple[StoredCheckpoint, CheckpointTuple]]:
        configurable = config["configurable"] if config is not None else {}
        line = self._line(configurable["thread_id"]) if config is not None else None
        where = CheckpointFilter(
            graph_id=line.graph_id if line is not None else None,
            namespace=configurable.get("checkpoint_ns"),
            checkpoint_id=get_checkpoint_id(config) if config is not None else None,
            before=get_checkpoint_id(before) if before is not None else None,
            metadata=filter or None,
        )
        most = min(limit or PAGE_CHECKPOINTS, PAGE_CHECKPOINTS)
        owner = line.owner_key if line is not None else 0
        while True:
            page = await (await self._store()).page(where, after=after, limit=most, owner_key=owner)
            found = []
            for stored in page:
                thread_id = str(configurable.get("thread_id", stored.graph_id))
                if (one := await self.decoded(stored, thread_id)) is not None:
                    found.append((stored, one))
            if found or not page:
                return found
            after = page[-1]

    async def decoded(self, stored: StoredCheckpoint, thread_id: str, line: LineRef | None = None) -> CheckpointTuple | None:
        """Return a stored checkpoint in LangGraph's form. Return None if the checkpoint was deleted during the read.

        ``line``: the line of the checkpoint, by which the cache finds lists. If ``line`` is None, the cache is not used.
        """

        store = await self._store()

        def key(channel: str) -> Key | None:
            return _key(store, line, stored.namespace, channel) if line is not None else None

        return await read(store, stored, thread_id, self.serde, self._cache, key)

    async def _put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: ChannelVersions
    ) -> RunnableConfig:
        configurable = config["configurable"]
        thread_id, namespace = configurable["thread_id"], configurable.get("checkpoint_ns", "")
        line, store = self._line(thread_id), await self._store()
        changed = new_versions
        while True:
            values, lists = [], {}
            for channel, version in changed.items():
                value: Any = checkpoint["channel_values"].get(channel)
                if channel not in checkpoint["channel_values"]:
                    values.append(NewValue(channel, str(version), None))
                elif is_itemised(value):
                    known = self._cache.get(_key(store, line, namespace, channel))
                    encoded = lists[channel] = await self._encode(channel, str(version), value, known)
                    values.append(encoded.value)
                else:
                    kind, data = self.serde.dumps_typed(value)
                    values.append(NewValue(channel, str(version), kind, data))
            content = {key: value for key, value in checkpoint.items() if key != "channel_values"}
            kind, data = self.serde.dumps_typed(content)
            new = NewCheckpoint(
                namespace,
                checkpoint["id"],
                configurable.get("checkpoint_id"),
                kind,
                data,
                cast(JsonObject, get_serializable_checkpoint_metadata(config, metadata)),
                {channel: str(version) for channel, version in checkpoint["channel_versions"].items()},
                values,
            )
            stored = await store.put(line, new)
            if stored is not None:
                break
            self._forget(store, line)  # the store has deleted lists or values, and all values must be stored again
            changed = checkpoint["channel_versions"]
        for channel, encoded in lists.items():
            self._cache.put(_key(store, line, namespace, channel), encoded.known(stored[channel]))
        return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]}}

    async def _encode(self, channel: str, version: str, value: Sequence[Any], known: KnownList | None) -> Encoded:
        new = len(value) - len(known.items) if known is not None else len(value)
        return await apart(new, lambda: encode_list(channel, version, value, known, self.serde))

    async def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> None:
        configurable = config["configurable"]
        line, namespace = self._line(configurable["thread_id"]), configurable.get("checkpoint_ns", "")
        encoded = [
            (WRITES_IDX_MAP.get(channel, idx), channel, *self.serde.dumps_typed(value))
            for idx, (channel, value) in enumerate(writes)
        ]
        store = await self._store()
        await store.put_writes(line, namespace, configurable["checkpoint_id"], task_id, task_path, encoded)

    async def _delete(self, thread_ids: Sequence[str]) -> None:
        store = await self._store()
        for thread_id in thread_ids:
            line = self._line(thread_id)
            self._forget(store, line)
            await store.delete(line.graph_id)

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        if not run_ids:
            return
        store = await self._store()
        for graph_id in await store.delete_runs([str(run_id) for run_id in run_ids]):
            self._forget(store, LineRef(graph_id))

    async def _copy(self, source: str, target: str) -> None:
        await (await self._store()).copy(self._line(source).graph_id, self._line(target).graph_id)

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy == "delete":
            await self._delete(thread_ids)
            return
        if strategy != "keep_latest":
            raise InvalidInputError(f"strategy must be keep_latest or delete, got {strategy!r}", field="strategy")
        store = await self._store()
        for thread_id in thread_ids:
            line = self._line(thread_id)
            self._forget(store, line)
            await store.prune(line.graph_id)

    def _forget(self, store: GraphCheckpointStore, line: LineRef) -> None:
        self._cache.drop(lambda key: key[:3] == (store.scope, line.owner_key, line.graph_id))


def _key(store: GraphCheckpointStore, line: LineRef, namespace: str, channel: str) -> Key:
    return store.scope, line.owner_key, line.graph_id, namespace, channel
