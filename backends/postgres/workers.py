"""The register of workers, the leader's lease, and what the reconciler reads, on Postgres."""

from __future__ import annotations

from datetime import datetime, timedelta

from runner.errors import WorkerDeadError
from runner.exchange import Attempt, Head, Retention, RunRef, Standing, WorkerInfo

from . import codec
from .database import Database
from .migrate import CODE_VERSION


class PostgresWorkerStore:
    """Over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def register(self, worker: WorkerInfo) -> None:
        """Begin to work under a fresh worker id."""
        agents = codec.to_json(dict(worker.agents))
        await self.db.row(
            "register",
            worker.worker_id,
            list(worker.queues),
            agents,
            worker.app_version,
            worker.on_version_mismatch,
            worker.slots,
            worker.address,
            list(worker.asking),
        )

    async def beat(self, worker_id: str) -> Standing:
        """Say that the worker lives, and hear what is asked of it. Raises WorkerDeadError."""
        row = await self.db.one("beat", worker_id)
        return Standing(row["draining"], frozenset(row["paused"]), row["oldest_code"] <= CODE_VERSION)

    async def leave(self, worker_id: str) -> None:
        """Take the worker out of the register."""
        await self.db.row("leave", worker_id)

    async def drain(self, worker_id: str) -> None:
        """Say that the worker claims no more, or ask it to. Raises WorkerDeadError."""
        if await self.db.row("drain", worker_id) is None:
            raise WorkerDeadError(f"worker {worker_id!r} is not registered, or was declared dead", worker_id=worker_id)

    async def workers(self) -> list[WorkerInfo]:
        """All workers known, the dead included."""
        return [
            WorkerInfo(
                worker_id=row["worker_id"],
                queues=row["queues"],
                agents=codec.from_json(row["agents"]),
                app_version=row["app_version"],
                on_version_mismatch=row["on_version_mismatch"],
                slots=row["slots"],
                address=row["address"],
                heartbeat_at=row["heartbeat_at"],
                silent_for=row["silent_for"],
                dead_at=row["dead_at"],
                draining=row["draining"],
            )
            for row in await self.db.rows("workers")
        ]

    async def lead(self, worker_id: str, ttl: float) -> bool:
        """Take or renew the leader's lease for ``ttl`` seconds."""
        led: bool = await self.db.value("lead", worker_id, ttl)
        return led

    async def mark_dead(self, worker_id: str, heartbeat_at: datetime) -> bool:
        """Declare the worker dead unless it has beaten since ``heartbeat_at``."""
        return await self.db.row("mark_dead", worker_id, heartbeat_at) is not None

    async def running(self, worker_id: str) -> list[Attempt]:
        """The attempts that this worker's rows say it has."""
        return [Attempt(row["thread_key"], row["run_id"], row["fence"]) for row in await self.db.rows("running", worker_id)]

    async def cancelling(self, worker_id: str) -> list[RunRef]:
        """Those of this worker's runs that a cancel waits for."""
        return [RunRef(row["thread_key"], row["run_id"]) for row in await self.db.rows("cancelling", worker_id)]

    async def heads(self, *, unchanged: timedelta, after: tuple[int, str] | None = None, limit: int = 1000) -> list[Head]:
        """Lane heads that wait for a worker, or whose worker is dead or gone, and were not touched for ``unchanged``."""
        key, lane = after or (0, "")
        rows = await self.db.rows("heads", unchanged, key, lane, limit)
        return [Head(codec.job(codec.from_json(row["job"])), row["status"] == "running", row["cancelled"]) for row in rows]

    async def prune(self, retention: Retention, limit: int = 5000) -> bool:
        """Delete what was kept for its time; True if there may be more."""
        gone: int = await self.db.value("prune", retention.feed, retention.results, retention.workers, limit)
        return gone >= limit
