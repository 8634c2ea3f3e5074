"""Prometheus metrics of a process. ``docs/reference/metrics.md`` lists them.

Labels are closed sets: outcomes, kinds, error codes, and the agents and queues that workers serve (:func:`serve`). Any other
agent or queue is counted under the empty name, which no agent can have. A label is never an id or a text from a client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, TypeVar, get_args

from prometheus_client import Counter, Gauge, Histogram

from ..domain.requests import HitlRequest
from ..domain.runs import Run, RunKind
from ..domain.states import ENDED, RunStatus
from ..domain.webhooks import TRY_OUTCOMES
from ..errors import BY_CODE
from ..ports.scheduling import OutsideEvent
from ..ports.workers import QueueInfo

M = TypeVar("M", Counter, Histogram)

_SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
_HUMAN: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)

OUTCOMES: Final = tuple(sorted(status.value for status in ENDED))
"""Outcomes of a run."""
ATTEMPT_OUTCOMES: Final = (*OUTCOMES, RunStatus.SUSPENDED.value, "released", "lost")
"""Outcomes of an attempt: the outcome of its run, or an outcome after which another attempt follows."""

RUNS_ACCEPTED: Final = Counter(
    "runyard_runs_accepted_total", "Runs that a client in this process enqueued. Repeated requests are not counted.", ["kind"]
)
RUNS_FINISHED: Final = Counter("runyard_runs_finished_total", "Runs that ended.", ["outcome", "agent", "queue"])
ATTEMPTS_STARTED: Final = Counter("runyard_attempts_started_total", "Attempts that began.", ["agent", "queue"])
ATTEMPTS_ENDED: Final = Counter(
    "runyard_attempts_ended_total",
    "Attempts that ended. released: the run is queued again. lost: another attempt has the run.",
    ["outcome", "agent", "queue"],
)

PICKUP: Final = Histogram(
    "runyard_pickup_seconds", "Time for which a run waits only for a worker, until its claim.", ["queue"], buckets=_SHORT
)
QUEUE_WAIT: Final = Histogram(
    "runyard_queue_wait_seconds",
    "Time from a run's due time to its first claim: the wait for its lane and for a worker.",
    ["queue"],
    buckets=_LONG,
)
RUN: Final = Histogram(
    "runyard_run_seconds",
    "Time from a run's due time to its end in an attempt, including every wait.",
    ["outcome", "agent"],
    buckets=_LONG,
)
ATTEMPT: Final = Histogram("runyard_attempt_seconds", "Duration of an attempt.", ["outcome", "agent"], buckets=_LONG)
FIRST_TOKEN: Final = Histogram(
    "runyard_first_token_seconds",
    "Time from a run's due time to its first streamed text, for first attempts.",
    ["agent"],
    buckets=_LONG,
)
SUSPENDED: Final = Histogram(
    "runyard_suspended_seconds", "Time from a suspension to the answer that ended the suspension.", ["agent"], buckets=_HUMAN
)
FORK: Final = Histogram("runyard_fork_seconds", "Duration of a fork in the store.", buckets=_SHORT)

TAKEOVERS: Final = Counter("runyard_takeovers_total", "Runs taken over from a dead worker.")
STALE_WRITES: Final = Counter("runyard_stale_writes_total", "Writes refused because another attempt holds the run.")
LOCK_LOSSES: Final = Counter("runyard_lock_losses_total", "Locks in Redis that were lost while their run was being executed.")
LOST_TASKS: Final = Counter("runyard_lost_tasks_total", "Runs that this worker released because their task had vanished.")
RESCUES: Final = Counter(
    "runyard_rescues_total", "Lane heads that the reconciler submitted because no queue had them. 0 without faults."
)
WORKERS_DEAD: Final = Counter("runyard_workers_dead_total", "Workers that this worker declared dead while it was the leader.")

EVENTS_DROPPED: Final = Counter(
    "runyard_events_dropped_total", "Events that this worker did not write to a stream. Readers of these streams get a gap."
)
STREAM_BYTES: Final = Gauge("runyard_stream_bytes", "Bytes of all event streams in Redis. Only the leader reports it.")
STREAMS_DROPPED: Final = Counter(
    "runyard_streams_dropped_total",
    "Event streams that were dropped before they expired, because all streams together reached their limit. Only the leader "
    "reports it.",
)

WEBHOOK_DELIVERIES: Final = Counter(
    "runyard_webhook_deliveries_total",
    "Tries of webhook deliveries. retried: the try failed and another follows. gone: the receiver answered 410.",
    ["outcome"],
)
OLDEST_WEBHOOK: Final = Gauge(
    "runyard_oldest_undelivered_webhook_seconds",
    "Age of the oldest feed entry that a webhook has not received. Only the leader reports it.",
)

SLOTS: Final = Gauge("runyard_slots", "Most runs that this worker executes at once.")
SLOTS_IN_USE: Final = Gauge("runyard_slots_in_use", "Runs that this worker holds.")

SILENCE: Final = Gauge(
    "runyard_main_loop_silence_seconds", "Time since the main loop last ran. It grows while user code blocks the loop."
)

STAND_IN_HEARTBEATS: Final = Counter(
    "runyard_stand_in_heartbeats_total",
    "Heartbeats that the heartbeat process sent because the heartbeat thread could not run: native code held the interpreter.",
)

LEADING: Final = Gauge("runyard_leading", "1 if this worker is the leader.")
QUEUED: Final = Gauge(
    "runyard_queued_runs", "Runs that are due and wait for their lane or a worker. Only the leader reports it.", ["queue"]
)
DEEPEST_LANE: Final = Gauge(
    "runyard_deepest_lane_runs", "Most queued runs in one lane of the queue. Only the leader reports it.", ["queue"]
)
OLDEST: Final = Gauge("runyard_oldest_queued_seconds", "Longest wait of a queued run. Only the leader reports it.", ["queue"])
SUSPENDED_RUNS: Final = Gauge("runyard_suspended_runs", "Runs that wait for a human. Only the leader reports it.", ["queue"])
SERVING: Final = Gauge(
    "runyard_serving_workers", "Live workers that claim runs from the queue. Only the leader reports it.", ["queue"]
)
PAUSED: Final = Gauge("runyard_paused_queue", "1 if the queue is paused. Only the leader reports it.", ["queue"])
OF_QUEUES: Final = (QUEUED, DEEPEST_LANE, OLDEST, SUSPENDED_RUNS, SERVING, PAUSED)

FEED_DELAY: Final = Gauge(
    "runyard_feed_delay_seconds",
    "Time for which committed entries of the feed cannot be read, because an older transaction is open. "
    "Only the leader reports it.",
)

HTTP: Final = Histogram(
    "runyard_http_request_seconds",
    "Time from a request of the HTTP API to the end of its answer, or for a stream to its beginning.",
    ["method", "route", "status"],
    buckets=_SHORT,
)
HTTP_REJECTED: Final = Counter("runyard_http_rejected_total", "Requests that the HTTP API answered with a problem.", ["code"])
STREAMS_OPEN: Final = Gauge("runyard_http_streams", "Event streams that are open in this process.")
STREAM_EVENTS: Final = Counter("runyard_http_stream_events_total", "Events sent to readers of streams.")

_agents: set[str] = set()
_queues: set[str] = set()


def serve(agents: Mapping[str, str], queues: Iterable[str]) -> None:
    """Start the counters of ``agents`` (name → queue) and ``queues`` at zero, so that their first count is an increase."""
    _agents.update(agents)
    _queues.update(queues)
    for kind in get_args(RunKind):
        RUNS_ACCEPTED.labels(kind=kind)
    for came_of in TRY_OUTCOMES:
        WEBHOOK_DELIVERIES.labels(outcome=came_of)
    for queue in queues:
        PICKUP.labels(queue=queue)
        QUEUE_WAIT.labels(queue=queue)
    for agent, queue in (*agents.items(), *(("", queue) for queue in queues)):
        ATTEMPTS_STARTED.labels(agent=agent, queue=queue)
        for outcome in OUTCOMES:
            RUNS_FINISHED.labels(outcome=outcome, agent=agent, queue=queue)
        for outcome in ATTEMPT_OUTCOMES:
            ATTEMPTS_ENDED.labels(outcome=outcome, agent=agent, queue=queue)
    for agent in (*agents, ""):
        FIRST_TOKEN.labels(agent=agent)
        SUSPENDED.labels(agent=agent)
        for outcome in OUTCOMES:
            RUN.labels(outcome=outcome, agent=agent)
        for outcome in ATTEMPT_OUTCOMES:
            ATTEMPT.labels(outcome=outcome, agent=agent)


def serve_http(routes: Iterable[tuple[str, str, int]]) -> None:
    """Start the counters of the HTTP API at zero. ``routes``: per route its method, path template and status of a success."""
    for method, route, status in routes:
        HTTP.labels(method=method, route=route, status=str(status))
    for code in BY_CODE:
        HTTP_REJECTED.labels(code=code)


@cache
def child(metric: M, *values: str) -> M:
    """Return ``metric.labels(*values)``, from a cache. ``values``: one of each label, in their order."""
    found: M = metric.labels(*values)
    return found


def labels(agent: str | None, queue: str) -> dict[str, str]:
    """Return the labels of an agent and a queue."""
    return {"agent": agent_label(agent), "queue": queue_label(queue)}


def agent_label(agent: str | None) -> str:
    """Return the label of an agent."""
    return agent if agent in _agents else ""


def queue_label(queue: str) -> str:
    """Return the label of a queue."""
    return queue if queue in _queues else ""


def count_rejected(code: str) -> None:
    """Count a request that was answered with a problem. ``code``: the error's code. The label of an unknown code is empty."""
    HTTP_REJECTED.labels(code=code if code in BY_CODE else "").inc()


def show_queues(found: Iterable[QueueInfo], before: Iterable[str]) -> set[str]:
    """Set the gauges of queues to a measurement. Return the names of the queues that are shown.

    A queue whose name comes from clients only is counted under the empty name. ``before``: the names that the previous call
    returned. Gauges of names that are missing in the measurement are removed.
    """
    shown: dict[str, QueueInfo] = {}
    for info in found:
        name = info.queue if info.known else ""
        sofar = shown.get(name, QueueInfo(queue=name))
        shown[name] = QueueInfo(
            queue=name,
            queued=sofar.queued + info.queued,
            deepest=max(sofar.deepest, info.deepest),
            oldest=max(sofar.oldest or 0.0, info.oldest or 0.0),
            suspended=sofar.suspended + info.suspended,
            workers=sofar.workers + info.workers,
            paused_at=info.paused_at,
        )
    for name in set(before) - shown.keys():
        for gauge in OF_QUEUES:
            gauge.remove(name)
    for name, info in shown.items():
        QUEUED.labels(queue=name).set(info.queued)
        DEEPEST_LANE.labels(queue=name).set(info.deepest)
        OLDEST.labels(queue=name).set(info.oldest or 0.0)
        SUSPENDED_RUNS.labels(queue=name).set(info.suspended)
        SERVING.labels(queue=name).set(info.workers)
        PAUSED.labels(queue=name).set(info.paused_at is not None)
    return set(shown)


def count_ends(events: Iterable[OutsideEvent]) -> None:
    """Count the runs that ended outside any attempt."""
    for event in events:
        outcome = event.type.removeprefix("run.")
        if outcome in OUTCOMES:
            RUNS_FINISHED.labels(outcome=outcome, **labels(event.agent, event.queue)).inc()


class RunMeter:
    """Measures one attempt of ``run`` by ``agent``, from its start."""

    def __init__(self, run: Run, agent: str | None) -> None:
        self._agent = agent_label(agent)
        self._first = run.attempt == 1
        self._waited = waited(run)
        self._began = time.monotonic()
        self._queue = queue_label(run.queue)
        child(ATTEMPTS_STARTED, self._agent, self._queue).inc()

    def resumed(self, answered: Iterable[HitlRequest]) -> None:
        """Record how long the run waited for the answer that started this attempt."""
        ages = [(r.created_at, r.answered_at - r.created_at) for r in answered if r.created_at and r.answered_at]
        if ages:
            SUSPENDED.labels(agent=self._agent).observe(max(ages)[1].total_seconds())

    def ended(self, status: RunStatus | None, spoke_at: float | None, *, outside: bool = False) -> None:
        """Record the end of the attempt.

        ``status``: the run's status after the attempt, or None if the attempt lost the run. ``spoke_at``: the time of the first
        streamed text in seconds of the monotonic clock, or None. ``outside``: whether :func:`count_ends` counts the end of the
        run, because the store makes the event of this end.
        """
        lasted = time.monotonic() - self._began
        outcome = "lost" if status is None else "released" if status is RunStatus.QUEUED else status.value
        child(ATTEMPTS_ENDED, outcome, self._agent, self._queue).inc()
        child(ATTEMPT, outcome, self._agent).observe(lasted)
        if outcome in OUTCOMES:
            if not outside:
                child(RUNS_FINISHED, outcome, self._agent, self._queue).inc()
            child(RUN, outcome, self._agent).observe(self._waited + lasted)
        if self._first and spoke_at is not None:
            child(FIRST_TOKEN, self._agent).observe(self._waited + spoke_at - self._began)


def waited(run: Run) -> float:
    """Return the seconds from a run's due time to the start of its present attempt, by the store's clock."""
    if run.started_at is None:
        return 0.0
    return max(0.0, (run.started_at - max(filter(None, (run.run_at, run.accepted_at)))).total_seconds())
