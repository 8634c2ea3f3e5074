"""Jobs that a worker took from Redis without claiming their runs in Postgres (O4, W2)."""

from __future__ import annotations

import asyncio

from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.workers import WorkerInfo
from runyard.worker.lost_jobs import Rescue
from runyard_backends.postgres.backend import connect


async def test_a_job_that_a_dead_worker_took_is_submitted_before_its_lock_expires(postgres_url: str, redis_url: str) -> None:
    """The worker reaches only Redis, and renews its locks."""
    backend = await connect(postgres_url, redis=redis_url)
    try:
        await backend.workers.register(WorkerInfo(worker_id="dead", queues=["default"]))
        accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hello")))
        await backend.scheduler.submit(accepted.effects.jobs)
        taken = await backend.scheduler.claim("dead", ["default"], 9)
        assert [delivery.job.ref for delivery in taken] == [job.ref for job in accepted.effects.jobs]
        [dead] = await backend.workers.workers()
        assert dead.heartbeat_at is not None and await backend.workers.mark_dead("dead", dead.heartbeat_at)
        rescue = Rescue(backend, lambda: "leader", lambda effects: None, lambda: True)
        async with asyncio.timeout(60):  # the locks never expire, so that the bound only ends a test that fails
            while not rescue.rescued:
                assert await backend.scheduler.renew("dead", taken) == []
                await rescue.step()
                await asyncio.sleep(0.1)
        assert [delivery.job.ref for delivery in await backend.scheduler.claim("heir", ["default"], 9)] == [taken[0].job.ref]
    finally:
        await backend.close()
