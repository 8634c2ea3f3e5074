"""The checkpoints of graphs on Postgres (F13)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from runyard.errors import CheckpointMissingError
from runyard.ports.graph_checkpoints import (
    CheckpointFilter,
    GraphStart,
    GraphState,
    LineRef,
    NewCheckpoint,
    Segments,
    StoredCheckpoint,
    StoredList,
    TaskWrite,
    Value,
)
from runyard.ports.refs import AttemptToken

from ..codec.values import Row, from_json, to_json
from .database import Database


class PostgresGraphCheckpointStore:
    """The checkpoints of graphs of one tenant."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    @property
    def scope(self) -> Hashable:
        """A value that identifies this store among the stores of all deployments and tenants."""
        return self.db.servers, self.tenant

    def _of(self, line: LineRef) -> tuple[str, int, str, str | None, int | None]:
        attempt = line.attempt
        run_id, fence = (attempt.run_id, attempt.fence) if attempt is not None else (None, None)
        return self.tenant, line.owner_key, line.graph_id, run_id, fence

    async def put(self, line: LineRef, checkpoint: NewCheckpoint) -> dict[str, StoredList] | None:
        """Store a checkpoint. Return the stored lists by channel. Return None if a stream was deleted, or if the store lacks a
        version of a channel."""
        new = [
            (
                value.channel,
                value.version,
                value.kind,
                value.data,
                value.segments,
                value.stream,
                value.length,
                [count for count, _ in value.chunks],
                [items for _, items in value.chunks],
            )
            for value in checkpoint.values
        ]
        rows = await self.db.rows(
            "graph_put",
            *self._of(line),
            checkpoint.namespace,
            checkpoint.checkpoint_id,
            checkpoint.parent_id,
            checkpoint.kind,
            checkpoint.content,
            to_json(checkpoint.metadata),
            list(checkpoint.versions),
            list(checkpoint.versions.values()),
            new,
        )
        if rows and rows[0]["channel"] is None:
            return None
        return {row["channel"]: StoredList(tuple(row["segments"]), row["stream_id"], row["length"]) for row in rows}

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
        of = self._of(line)
        await self.db.row("graph_put_writes", *of, namespace, checkpoint_id, task_id, task_path, writes)

    async def latest(self, line: LineRef, namespace: str, checkpoint_id: str | None = None) -> StoredCheckpoint | None:
        """Return the checkpoint with ``checkpoint_id``. Without it, return the newest checkpoint of the namespace. Return None
        if there is no such checkpoint."""
        row = await self.db.row("graph_latest", self.tenant, line.owner_key, line.graph_id, namespace, checkpoint_id)
        return _checkpoint(row, row["graph_id"]) if row is not None else None

    async def page(
        self, where: CheckpointFilter, *, after: StoredCheckpoint | None = None, limit: int = 100, owner_key: int = 0
    ) -> list[StoredCheckpoint]:
        """Return a page of checkpoints in descending order of their ids."""
        rows = await self.db.rows(
            "graph_read",
            self.tenant,
            owner_key,
            where.graph_id,
            where.namespace,
            where.checkpoint_id,
            where.before,
            to_json(where.metadata) if where.metadata is not None else None,
            after.checkpoint_id if after is not None else None,
            after.namespace if after is not None else None,
            after.graph_id if after is not None else None,
            limit,
        )
        return [_checkpoint(row, row["graph_id"]) for row in rows]

    async def items(self, segments: Segments) -> list[tuple[int, list[bytes]]] | None:
        """Return the chunks with the items of each segment, or None if the list was deleted."""
        parts: list[tuple[int, list[bytes]]] = [(-1, []) for _ in range(len(segments) // 3)]
        for row in await self.db.rows("graph_items", segments):
            first, chunks = parts[row["part"]]
            chunks.append(row["items"])
            parts[row["part"]] = (row["first"] if first < 0 else first, chunks)
        return None if any(first < 0 for first, _ in parts) else parts

    async def copy(self, source: str, target: str) -> None:
        """Copy the checkpoints of a thread. Raises ThreadAlreadyExistsError."""
        await self.db.row("graph_copy", self.tenant, source, target)

    async def delete(self, graph_id: str) -> None:
        """Delete the checkpoints of a thread."""
        await self.db.row("graph_delete", self.tenant, graph_id)

    async def delete_runs(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Delete the checkpoints of runs. Return the threads that showed them. Raises CapabilityMissingError."""
        names: list[str] = (await self.db.one("graph_delete_runs", self.tenant, list(run_ids)))["graph_ids"]
        return names

    async def prune(self, graph_id: str) -> None:
        """Keep only the newest checkpoint of each checkpoint namespace of the graph, with its pending writes.

        Raises CapabilityMissingError if a kept checkpoint has a DeltaChannel.
        """
        await self.db.row("graph_prune", self.tenant, graph_id)

    async def begin(self, attempt: AttemptToken, candidates: Sequence[str], input_id: str | None) -> GraphStart:
        """Begin or continue the graph of an attempt's run. Raises CheckpointMissingError."""
        row = await self.db.one("graph_begin", attempt.thread_key, attempt.run_id, attempt.fence, list(candidates), input_id)
        began, base_id = row["began"], row["base_id"]
        unseen = await self._unseen(base_id, None, attempt.thread_key) if not began else frozenset()
        return GraphStart(LineRef(row["graph_id"], attempt), began, base_id, unseen)

    async def mark(self, line: LineRef, message_id: str) -> None:
        """Store the present state of the line as the mark of a message."""
        assert line.attempt is not None
        attempt = line.attempt
        await self.db.row("graph_mark", attempt.thread_key, attempt.run_id, attempt.fence, line.graph_id, message_id)

    async def state(self, thread_id: str, candidates: Sequence[str], namespaces: Sequence[str]) -> GraphState:
        """Return the state from which a probe begins. Raises ThreadNotFoundError, CheckpointMissingError."""
        rows = await self.db.rows("graph_state", self.tenant, thread_id, list(candidates), list(namespaces))
        if not rows:
            raise CheckpointMissingError(f"thread {thread_id} has no checkpoint of a graph", thread_id=thread_id)
        found = [_checkpoint(row, thread_id) for row in rows if row["checkpoint_id"] is not None]
        base_id = rows[0]["base_id"]
        return GraphState(base_id, found, await self._unseen(base_id, thread_id, None))

    async def _unseen(self, base_id: str | None, thread_id: str | None, thread_key: int | None) -> frozenset[str]:
        if base_id is None:
            return frozenset()
        rows = await self.db.rows("graph_unseen", self.tenant, thread_id, thread_key, base_id)
        return frozenset(row["message_id"] for row in rows)


def _checkpoint(row: Row, graph_id: str) -> StoredCheckpoint:
    return StoredCheckpoint(
        graph_id,
        row["namespace"],
        row["checkpoint_id"],
        row["parent_id"],
        row["kind"],
        row["content"],
        from_json(row["details"]),
        [Value(v["channel"], v["kind"], v["data"], tuple(v["segments"]) if v["segments"] else None) for v in row["values"]],
        [TaskWrite(*w.values()) for w in row["writes"]],
    )
