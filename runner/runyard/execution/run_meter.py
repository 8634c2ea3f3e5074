"""The metrics of one attempt of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..domain.requests import HitlRequest
from ..domain.runs import Run
from ..domain.states import RunStatus
from ..ports.refs import RunRef
from ..ports.results import Ended
from ..support import metrics, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class RunMeter:
    """Measures one attempt of a run, from the start of the attempt.

    ``ref`` and ``run``: the reference and the record of the run. ``agent``: the name of the agent, or None for a run without an
    agent. ``span``: the span of the attempt, for exemplars.
    """

    def __init__(self, ref: RunRef, run: Run, agent: str | None, span: Span = tracing.NO_SPAN) -> None:
        self._ref = ref
        self._span = span
        self._agent = metrics.agent_label(agent)
        self._of_agent = agent is not None
        self._first = run.attempt == 1
        self._waited = waited(run)
        self._began = time.monotonic()
        self._queue = metrics.queue_label(run.queue)

    def running(self) -> AbstractContextManager[object]:
        """Count the attempt as running inside the block."""
        running: AbstractContextManager[object] = metrics.child(metrics.ATTEMPTS_RUNNING, self._agent).track_inprogress()
        return running

    def resumed(self, answered: Iterable[HitlRequest]) -> None:
        """Record the time of the run's wait for an answer. The answer started this attempt."""
        ages = [(r.created_at, r.answered_at - r.created_at) for r in answered if r.created_at and r.answered_at]
        if ages:
            metrics.observe(metrics.SUSPENDED, max(ages)[1].total_seconds(), self._span)

    def ended(self, ended: Ended | None, spoke_at: float | None) -> None:
        """Record the end of the attempt.

        ``ended``: the end that was written, or None if the attempt lost the run. ``spoke_at``: the time of the first streamed
        text in seconds of the monotonic clock, or None. If the store made the event of the end, ``metrics.count_ends`` counts
        the end instead of this method.
        """
        lasted = time.monotonic() - self._began
        outcome = "lost" if ended is None else "released" if ended.status is RunStatus.QUEUED else ended.status.value
        metrics.child(metrics.ATTEMPTS_ENDED, outcome).inc()
        if ended is not None and ended.error is not None:
            metrics.count_error(ended.error.code)
        outside = ended is not None and any(event.ref == self._ref for event in ended.effects.events)
        if outcome in metrics.OUTCOMES and not outside:
            metrics.child(metrics.RUNS_FINISHED, outcome, self._agent, self._queue).inc()
        if not self._of_agent:
            return
        metrics.child(metrics.ATTEMPT, self._agent).observe(lasted)
        if outcome in metrics.OUTCOMES:
            metrics.observe(metrics.child(metrics.RUN, self._agent), self._waited + lasted, self._span)
        if self._first and spoke_at is not None:
            metrics.observe(metrics.child(metrics.FIRST_TOKEN, self._agent), self._waited + spoke_at - self._began, self._span)


def waited(run: Run) -> float:
    """Return the seconds from a run's due time to the start of its present attempt, by the store's clock."""
    if run.started_at is None:
        return 0.0
    return max(0.0, (run.started_at - max(filter(None, (run.run_at, run.accepted_at)))).total_seconds())
