"""The register of workers, the leader's lease, the reconciler's queries, and the queues, on Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg
import structlog

from runyard.domain.waits import WaitsFor
from runyard.errors import BackendUnavailableError, RunyardError, WorkerDeadError
from runyard.models import check_id
from runyard.ports.queries import PageRequest
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Page
from runyard.ports.scheduling import Job
from runyard.ports.workers import (
    BlockedLoop,
    DeploymentFigures,
    HeartbeatReply,
    Orphan,
    OrphanPage,
    QueueInfo,
    RedisOutage,
    Retention,
    WaitingCursor,
    WaitingPage,
    WorkerInfo,
)

from ..queue_pages import names_after, page_of_names
from . import codec
from .database import Database
from .migrate import CODE_VERSION

log = structlog.get_logger("runyard.workers")


class PostgresWorkerStore:
    """Workers of the deployment, over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def register(self, worker: WorkerInfo) -> None:
        """Register a worker. The id of a worker that was declared dead cannot be used again.

        The budgets of agents are stored for display only. If they cannot be stored, the worker is registered without them, and
        the failure is logged. Raises WorkerDeadError. After a BackendUnavailableError, the call can be repeated.
        """
        agents = codec.to_json(dict(worker.agents))
        await self.db.row(
            "register",
            worker.worker_id,
            list(worker.queues),
            agents,
            worker.default_agent,
            worker.app_version,
            worker.on_version_mismatch,
            worker.slots,
            worker.address,
            list(worker.asking),
        )
        if worker.budgets:
            await self._announce_budgets(worker)

    async def _announce_budgets(self, worker: WorkerInfo) -> None:
        try:
            await self.db.row("announce_budgets", worker.worker_id, codec.to_json(dict(worker.budgets)))
        except BackendUnavailableError:
            raise
        except (RunyardError, asyncpg.PostgresError) as error:
            log.warning("budgets_not_announced", worker_id=worker.worker_id, error=str(error))

    async def beat(self, worker_id: str) -> HeartbeatReply:
        """Record a heartbeat. Return the state to which the worker must react. Raises WorkerDeadError."""
        row = await self.db.one("beat", worker_id)
        return HeartbeatReply(row["draining"], frozenset(row["paused"]), row["oldest_code"] <= CODE_VERSION)

    async def leave(self, worker_id: str) -> None:
        """Remove the worker from the register."""
        await self.db.row("leave", worker_id)

    async def drain(self, worker_id: str) -> None:
        """Mark the worker as draining. A draining worker claims no more runs. Raises WorkerDeadError."""
        if await self.db.row("drain", worker_id) is None:
            raise WorkerDeadError(f"worker {worker_id!r} is not registered, or was declared dead", worker_id=worker_id)

    async def report_block(self, worker_id: str, blocked: BlockedLoop | None) -> None:
        """Record where user code blocks the worker's main loop. If ``blocked`` is None, nothing blocks the loop any more."""
        said = (blocked.seconds, blocked.place, blocked.stack) if blocked else (None, None, None)
        await self.db.row("report_block", worker_id, *said)

    async def report_redis(self, worker_id: str, reason: str | None) -> None:
        """Record the reason why the worker cannot reach Redis. If ``reason`` is None, the worker reaches Redis again."""
        await self.db.row("report_redis", worker_id, reason)

    async def workers(self) -> list[WorkerInfo]:
        """Return all known workers, including dead ones."""
        return [
            WorkerInfo(
                worker_id=row["worker_id"],
                queues=row["queues"],
                agents=codec.from_json(row["agents"]),
                default_agent=row["default_agent"],
                budgets=codec.from_json(row["budgets"]) if row["budgets"] is not None else {},
                app_version=row["app_version"],
                on_version_mismatch=row["on_version_mismatch"],
                slots=row["slots"],
                address=row["address"],
                heartbeat_at=row["heartbeat_at"],
                silent_for=row["silent_for"],
                dead_at=row["dead_at"],
                draining=row["draining"],
                blocked=BlockedLoop(row["blocked_for"], row["blocked_at"], row["blocked_stack"]) if row["blocked_at"] else None,
                redis_outage=RedisOutage(row["redis_lost_at"], row["redis_error"]) if row["redis_error"] else None,
            )
            for row in await self.db.rows("workers")
        ]

    async def lead(self, worker_id: str, ttl: float) -> bool:
        """Take or renew the leader's lease for ``ttl`` seconds. Return True if the worker holds the lease."""
        led: bool = await self.db.value("lead", worker_id, ttl)
        return led

    async def mark_dead(self, worker_id: str, heartbeat_at: datetime) -> bool:
        """Declare the worker dead if its last heartbeat was at ``heartbeat_at``. Return True if this call declared the worker
        dead."""
        return await self.db.row("mark_dead", worker_id, heartbeat_at) is not None

    async def running(self, worker_id: str) -> list[AttemptToken]:
        """Return the attempts that the worker holds in Postgres."""
        return [
            AttemptToken(row["thread_key"], row["run_id"], row["fence"]) for row in await self.db.rows("running", worker_id)
        ]

    async def cancelling(self, worker_id: str) -> list[RunRef]:
        """Return this worker's runs for which a cancel was requested."""
        return [RunRef(row["thread_key"], row["run_id"]) for row in await self.db.rows("cancelling", worker_id)]

    async def orphans(self, *, after: str = "", limit: int = 1000) -> OrphanPage:
        """Return a page of the running runs of dead and missing workers, worker by worker. The page ends when it has at least
        ``limit`` runs and all runs of its last worker. ``after``: the last worker of the previous page."""
        rows = await self.db.rows("orphans", after, limit)
        found = [Orphan(codec.job(codec.from_json(row["job"])), row["worker_id"], row["cancelled"]) for row in rows]
        return OrphanPage(found, rows[-1]["worker_id"] if len(rows) >= limit else None)

    async def waiting(
        self,
        *,
        unchanged: timedelta,
        after: WaitingCursor | None = None,
        within: timedelta | None = None,
        limit: int = 1000,
    ) -> WaitingPage:
        """Examine at most ``limit`` queued runs. Return the jobs of the runs that are the heads of their lanes and wait only
        for a worker. ``unchanged``: minimum time since the last change of an examined run. ``within``: maximum time since this
        change, or None for no maximum."""
        rows = await self.db.rows("waiting", unchanged, within, *(after or (None, None)), limit)
        jobs = [codec.job(codec.from_json(row["job"])) for row in rows if row["job"] is not None]
        more = bool(rows) and rows[-1]["job"] is None
        return WaitingPage(jobs, (rows[-1]["place_time"], rows[-1]["place_no"]) if more else None)

    async def still_waiting(self, refs: Sequence[RunRef], *, unchanged: timedelta) -> list[Job]:
        """Return the jobs of the runs ``refs`` that still wait only for a worker, as in :meth:`waiting`."""
        keys, ids = [ref.thread_key for ref in refs], [ref.run_id for ref in refs]
        return [codec.job(codec.from_json(row["job"])) for row in await self.db.rows("still_waiting", unchanged, keys, ids)]

    async def prune(self, retention: Retention, limit: int = 5000) -> bool:
        """Delete data whose retention has passed, at most about ``limit`` rows of each kind. There is no maximum for dead
        workers. Return True if more data is possibly left to delete."""
        gone: int = await self.db.value("prune", retention.feed, retention.results, retention.workers, limit)
        return gone >= limit

    async def measure(self) -> DeploymentFigures:
        """Return the figures of the deployment. The cost grows with the number of HITL requests without an answer."""
        return DeploymentFigures(**await self.db.one("measure"))


class PostgresQueueStore:
    """Queues of the deployment, over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def queues(self, page: PageRequest | None = None, *, known: bool = False) -> Page[QueueInfo]:
        """Return queues that have live runs, are paused or have a live worker, in the order of their names. The cost grows with
        the number of live runs."""
        after, most = names_after(page)
        rows = await self.db.rows("queues", known, after, most)
        suspended: dict[str, dict[WaitsFor, int]] = {}
        for row in await self.db.rows("suspended_runs", [row["queue"] for row in rows]):
            suspended.setdefault(row["queue"], {})[row["waiting_for"]] = row["runs"]
        return page_of_names([QueueInfo(**row, waits_for=suspended.get(row["queue"], {})) for row in rows], page)

    async def pause(self, queue: str) -> datetime:
        """Stop claims of runs of ``queue``. Return the time at which the pause began."""
        since: datetime = await self.db.value("pause", check_id(queue, "queue"))
        return since

    async def resume(self, queue: str) -> bool:
        """Allow claims of runs of ``queue`` again. Return True if the queue was paused."""
        return await self.db.row("resume", queue) is not None
