"""A completed run claims the next run of its lane, for the same worker."""

from __future__ import annotations

from runyard.ports.refs import AttemptToken
from runyard.ports.results import Ended
from runyard.ports.scheduling import Job

from . import execution
from .state import Database


def claim_next(db: Database, attempt: AttemptToken, ended: Ended) -> None:
    """Claim the next run of the lane of a run that has just ended. Add the claim to ``ended``, the end of this run.

    Nothing is claimed if the worker of the run is dead or draining, or does not serve the queue of the next run. Nothing is
    claimed either if running runs are limited. The next permit may then belong to a run of another lane.
    """
    thread, run = db.run(attempt.ref)
    worker = db.workers.get(run.attempts[-1].worker_id or "") if run.attempts else None
    following = [job for job in ended.effects.jobs if _is_next(job, thread.key, run.run.lane)]
    if not following or worker is None or worker.dead_at is not None or worker.draining:
        return
    limited = any(name in ("running_per_agent", "running_per_tenant") for name, _ in db.limits)
    if limited or following[0].queue not in worker.queues:
        return
    claim = execution.claim(db, worker.worker_id, following[0].ref)
    if claim.outcome == "claimed":
        thread.runs[claim.ref.run_id].chained = True
    ended.add_next(claim)


def _is_next(job: Job, thread_key: int, lane: str | None) -> bool:
    return job.kind == "prompt" and (job.thread_key, job.lane) == (thread_key, lane)
