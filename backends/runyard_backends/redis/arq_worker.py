"""A subclass of arq's worker. The class uses arq's registry of functions, job format and hooks. The main loop is runyard's own.

arq's loop polls Redis. The loop repeats the jobs of a crashed worker only after the longest timeout of all jobs.
:meth:`ArqWorker.main` therefore runs :class:`runyard.worker.worker.Worker` instead of arq's loop. This worker takes jobs with
the scheduler's scripts, and claims their runs in Postgres. arq's hooks are called before and after each claimed run. The worker
writes none of arq's keys for results, retries and jobs in progress. ``arq_intake.py`` accepts the jobs of arq's own client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import arq.worker
import structlog

from runyard.app import App
from runyard.domain.webhooks import WebhookPolicy
from runyard.execution.executor import Execution
from runyard.ports.results import Ended
from runyard.ports.scheduling import Job
from runyard.ports.stores import Backend, WebhookSender
from runyard.ports.worker_defaults import DEFAULT_GRACE_SECONDS, DEFAULT_SLOTS, DEFAULT_WATCHDOG_SECONDS
from runyard.ports.workers import Retention
from runyard.support.tracebacks import logged_traceback
from runyard.worker.claim_loop import KINDS
from runyard.worker.heartbeat import Connect
from runyard.worker.heartbeat_process import HeartbeatProcess
from runyard.worker.isolation import Isolation
from runyard.worker.worker import Worker

from .job_codec import packb, unpackb

if TYPE_CHECKING:
    from arq.typing import StartupShutdown, WorkerCoroutine

ARQ_JOB_TIMEOUT_SECONDS: Final = 10 * 365 * 86400
"""arq's own timeout of a job, in seconds. The value is so large that the timeout never expires. The executor enforces the
timeout of a run."""

log = structlog.get_logger("runyard.worker")


class ArqWorker(arq.worker.Worker):
    """Serves ``app`` from ``backend``. ``host``: the worker that claims and executes the runs.

    arq's hooks (``on_startup``, ``on_shutdown``, ``on_job_start``, ``on_job_end``, ``after_job_end``) are called as arq
    documents them. An error in a hook of a job is logged. Such an error does not change the outcome of the run.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        queues: Sequence[str] | None = None,
        slots: int = DEFAULT_SLOTS,
        grace: float = DEFAULT_GRACE_SECONDS,
        watchdog: float = DEFAULT_WATCHDOG_SECONDS,
        connect: Connect | None = None,
        heartbeat_process: HeartbeatProcess | None = None,
        retention: Retention | None = None,
        address: str | None = None,
        isolation: Isolation | None = None,
        sender: WebhookSender | None = None,
        webhooks: WebhookPolicy | None = None,
        loops: Sequence[Callable[[], Awaitable[None]]] = (),
        **hooks: Any,
    ) -> None:
        super().__init__(
            functions=[arq.worker.func(cast("WorkerCoroutine", self._dispatch), name=kind) for kind in KINDS],
            handle_signals=False,
            max_jobs=slots,
            job_timeout=ARQ_JOB_TIMEOUT_SECONDS,
            keep_result=0,
            job_serializer=packb,
            job_deserializer=unpackb,
            **hooks,
        )
        self.host = Worker(
            app,
            backend,
            queues=queues,
            slots=slots,
            grace=grace,
            watchdog=watchdog,
            connect=connect,
            heartbeat_process=heartbeat_process,
            address=address,
            isolation=isolation,
            dispatch=self._dispatch,
            kinds=self.functions.keys(),
            retention=retention,
            sender=sender,
            webhooks=webhooks,
            loops=loops,
        )

    async def main(self) -> None:
        """Serve until ``host.stop()`` is called."""
        if self.on_startup is not None:
            await self.on_startup(self.ctx)
        try:
            await self.host.run()
        finally:
            if self.on_shutdown is not None:
                await self.on_shutdown(self.ctx)

    async def close(self) -> None:
        """Do nothing, because the connections belong to the backend."""

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        """Log a job that this version cannot decode. The scheduler has returned the job to the queue, for workers of another
        version."""
        log.warning("job_not_decoded", job_id=job_id, error="arq could not decode the job")

    async def _dispatch(self, job: Job, execution: Execution) -> Ended | None:
        """Execute a claimed run between arq's hooks, and count the run as arq counts its jobs."""
        key = f"{job.id}#{execution.attempt.fence}"
        ctx = {**self.ctx, "job_id": job.id, "job_try": execution.record.attempt}
        task = asyncio.current_task()
        assert task is not None
        self.tasks[key] = task
        try:
            await self._hook(self.on_job_start, ctx)
            ended = await execution.run()
            self.jobs_complete += 1
            await self._hook(self.on_job_end, ctx)
        except Exception:
            self.jobs_failed += 1
            raise
        finally:
            del self.tasks[key]
        await self._hook(self.after_job_end, ctx)
        return ended

    async def _hook(self, hook: StartupShutdown | None, ctx: dict[str, Any]) -> None:
        if hook is not None:
            try:
                await hook(ctx)
            except Exception as error:
                name = getattr(hook, "__name__", repr(hook))
                trace = logged_traceback(error, self.host.app.traceback_filter)
                log.error("arq_hook_failed", hook=name, job_id=ctx["job_id"], error=str(error), **trace)
