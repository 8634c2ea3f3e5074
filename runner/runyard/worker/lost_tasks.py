"""Detection of lost tasks: the store says that this worker executes a run, but the worker has no task for the run (W4).

A worker searches only for its own lost tasks. ``lost_jobs.py`` handles runs without a worker whose jobs Redis has lost.
"""

from __future__ import annotations

import structlog

from ..errors import BackendUnavailableError, RunyardError
from ..ports.refs import AttemptToken
from ..ports.stores import Backend
from ..support import metrics
from .claim_loop import ClaimLoop
from .effects_sender import EffectsSender
from .slots import Slots

log = structlog.get_logger("runyard.worker")


class LostTaskDetector:
    """Releases an attempt that has no task in two successive calls of :meth:`check`."""

    def __init__(self, backend: Backend, slots: Slots, claim_loop: ClaimLoop, effects_sender: EffectsSender) -> None:
        self._backend, self._slots, self._claim_loop, self._effects_sender = backend, slots, claim_loop, effects_sender
        self._suspects: set[AttemptToken] = set()

    async def check(self, worker_id: str) -> None:
        """Compare the worker's attempts in the store with its tasks."""
        suspects = {attempt for attempt in await self._backend.workers.running(worker_id) if not self._has_task(attempt)}
        for attempt in suspects & self._suspects:
            if not self._has_task(attempt):  # it may have begun during the release before it
                await self._release(attempt, worker_id)
        self._suspects = suspects - self._suspects

    def _has_task(self, attempt: AttemptToken) -> bool:
        if attempt.ref in self._claim_loop.claiming:
            return True
        execution = self._slots.execution(attempt.ref)
        return execution is not None and execution.attempt.fence == attempt.fence

    async def _release(self, attempt: AttemptToken, worker_id: str) -> None:
        names = {"thread_key": attempt.thread_key, "run_id": attempt.run_id, "fence": attempt.fence}
        log.error("run_task_lost", worker_id=worker_id, **names)
        metrics.LOST_TASKS.inc()
        try:
            ended = await self._backend.runs.release(attempt, first_event=None)
        except BackendUnavailableError:
            raise
        except RunyardError as error:
            log.info("attempt_without_task_not_released", worker_id=worker_id, **names, error=str(error))
        else:
            self._effects_sender.carry_out(ended.effects)
