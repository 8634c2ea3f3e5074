"""Prometheus metrics of a process. ``docs/reference/metrics.md`` lists these metrics.

The number of label values is limited. Labels are outcomes, kinds, error codes, and the agents and queues that workers serve
(:func:`serve`). Any other agent or queue is counted under the empty name. The names of models come from agents. A process has
at most MAX_MODELS pairs of an agent and a model. A label is never an id or a text from a client.

A histogram has one series per bucket and combination of label values. A worker with five agents has at most 300 series."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar, get_args

from prometheus_client import GC_COLLECTOR, REGISTRY, Counter, Gauge, Histogram, Summary, disable_created_metrics

from ..domain.messages import Usage
from ..domain.runs import RunKind
from ..domain.states import ENDED, RunStatus
from ..domain.webhooks import TRY_OUTCOMES
from ..errors import BY_CODE, BackendUnavailableError, LockedError
from ..ports.scheduling import OutsideEvent
from . import tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span

M = TypeVar("M", Counter, Gauge, Histogram, Summary)

_FORKS: Final = (0.001, 0.005, 0.025, 0.1, 1.0)
_CALLS: Final = (0.005, 0.05, 0.5)
_REQUESTS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_PICKUPS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
_WAITS: Final = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
_FIRST_TOKENS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 15.0)
_RUNS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 3600.0)
_ANSWERS: Final = (5.0, 60.0, 600.0, 3600.0, 14400.0, 86400.0, 604800.0)

OUTCOMES: Final = tuple(sorted(status.value for status in ENDED))
"""Outcomes of a run."""
ATTEMPT_OUTCOMES: Final = (*OUTCOMES, RunStatus.SUSPENDED.value, "released", "lost")
"""Outcomes of an attempt: the outcome of its run, or an outcome after which another attempt follows."""
USUAL_ERRORS: Final = ("agent_error", "budget_exceeded", "invalid_input", "run_timeout")
"""Codes of errors whose counters start at 0 when a worker starts. The counter of any other code starts with its first error."""
MAX_MODELS: Final = 50
"""Maximum number of models of all agents in a process. Further models are counted under the empty name."""
MAX_MODEL_CHARACTERS: Final = 100
"""Maximum number of characters in the name of a model. A longer name is counted under the empty name."""

RUNS_ACCEPTED: Final = Counter(
    "runyard_runs_accepted_total", "Runs that a client in this process enqueued. Repeated requests are not counted.", ["kind"]
)
RUNS_FINISHED: Final = Counter("runyard_runs_finished_total", "Runs that ended.", ["outcome", "agent", "queue"])
ATTEMPTS_ENDED: Final = Counter(
    "runyard_attempts_ended_total",
    "Attempts that ended. released: the run is queued again. lost: another attempt has the run.",
    ["outcome"],
)
ATTEMPT_ERRORS: Final = Counter("runyard_attempt_errors_total", "Errors that ended an attempt, by their code.", ["code"])
ATTEMPTS_RUNNING: Final = Gauge("runyard_running_attempts", "Attempts that this worker executes.", ["agent"])

PICKUP: Final = Histogram(
    "runyard_pickup_seconds", "Time from the moment when a run needs only a worker to its claim.", ["queue"], buckets=_PICKUPS
)
QUEUE_WAIT: Final = Histogram(
    "runyard_queue_wait_seconds",
    "Time from a run's due time to its first claim. In this time the run waits for its lane and for a worker.",
    ["queue"],
    buckets=_WAITS,
)
RUN: Final = Histogram(
    "runyard_run_seconds",
    "Time from a run's due time to its end in an attempt. The waits of the run are included.",
    ["agent"],
    buckets=_RUNS,
)
ATTEMPT: Final = Summary("runyard_attempt_seconds", "Duration of an attempt.", ["agent"])
FIRST_TOKEN: Final = Histogram(
    "runyard_first_token_seconds",
    "Time from a run's due time to the first streamed text of its first attempt.",
    ["agent"],
    buckets=_FIRST_TOKENS,
)
SUSPENDED: Final = Histogram(
    "runyard_suspended_seconds", "Time from a suspension to the answer that ended the suspension.", buckets=_ANSWERS
)
FORK: Final = Histogram("runyard_fork_seconds", "Duration of the call of the store that makes a fork.", buckets=_FORKS)

TOKENS: Final = Counter(
    "runyard_tokens_total",
    "Tokens of model requests. input: sent to the model. output: generated.",
    ["agent", "model", "direction"],
)
COST: Final = Counter(
    "runyard_cost_dollars_total",
    "Cost of model requests in US dollars, without models whose price is not known.",
    ["agent", "model"],
)
MODEL_REQUESTS: Final = Counter("runyard_model_requests_total", "Model requests that were answered.", ["agent", "model"])

TAKEOVERS: Final = Counter("runyard_takeovers_total", "Runs that this worker took over from dead workers.")
STALE_WRITES: Final = Counter("runyard_stale_writes_total", "Writes refused because another attempt has claimed the run.")
LOCK_LOSSES: Final = Counter("runyard_lock_losses_total", "Locks in Redis that were lost during the execution of their run.")
LOST_TASKS: Final = Counter("runyard_lost_tasks_total", "Runs that this worker released because their task had vanished.")
RESCUES: Final = Counter(
    "runyard_rescues_total", "Runs that the reconciler submitted because their jobs were missing from Redis. 0 without faults."
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

ARQ_OUTCOMES: Final = ("accepted", "refused", "completed", "failed")
ARQ_JOBS: Final = Counter(
    "runyard_arq_jobs_total",
    "Jobs of arq's producers. accepted: a worker has accepted the run of the job. refused: the job got a failed result and has "
    "no run. completed and failed: the job got the result of its run.",
    ["outcome"],
)

WEBHOOK_DELIVERIES: Final = Counter(
    "runyard_webhook_deliveries_total",
    "Tries of webhook deliveries. retried: the try failed, and another try follows. gone: the receiver answered with 410.",
    ["outcome"],
)
OLDEST_WEBHOOK: Final = Gauge(
    "runyard_oldest_undelivered_webhook_seconds",
    "Age of the oldest feed entry that a webhook has not received. Only the leader reports it.",
)

SLOTS: Final = Gauge("runyard_slots", "Maximum number of runs that this worker executes at once.")
SLOTS_IN_USE: Final = Gauge("runyard_slots_in_use", "Runs that this worker holds.")

SILENCE: Final = Gauge(
    "runyard_main_loop_silence_seconds", "Time since the main loop last ran. It grows while user code blocks the loop."
)

STAND_IN_HEARTBEATS: Final = Counter(
    "runyard_stand_in_heartbeats_total",
    "Heartbeats that the heartbeat process sent while native code held the interpreter and the heartbeat thread could not run.",
)

LEADING: Final = Gauge("runyard_leading", "1 if this worker is the leader.")
QUEUED: Final = Gauge(
    "runyard_queued_runs", "Runs that are due and wait for their lane or a worker. Only the leader reports it.", ["queue"]
)
WAITING: Final = Gauge("runyard_waiting_runs", "Queued runs that need only a worker. Only the leader reports it.", ["queue"])
SCHEDULED: Final = Gauge(
    "runyard_scheduled_runs",
    "Runs that are not due yet: delayed runs, and runs that wait for a retry. Only the leader reports it.",
    ["queue"],
)
RUNNING: Final = Gauge("runyard_running_runs", "Runs that workers execute. Only the leader reports it.", ["queue"])
DEEPEST_LANE: Final = Gauge(
    "runyard_deepest_lane_runs", "Queued runs in the longest lane of the queue. Only the leader reports it.", ["queue"]
)
OLDEST: Final = Gauge("runyard_oldest_queued_seconds", "Longest wait of a queued run. Only the leader reports it.", ["queue"])
SUSPENDED_RUNS: Final = Gauge(
    "runyard_suspended_runs",
    "Runs that wait without a worker: for a human, a timer, a signal or a child. Only the leader reports it.",
    ["queue", "waits_for"],
)
SERVING: Final = Gauge(
    "runyard_serving_workers", "Live workers that claim runs from the queue. Only the leader reports it.", ["queue"]
)
PAUSED: Final = Gauge("runyard_paused_queue", "1 if the queue is paused. Only the leader reports it.", ["queue"])

PENDING_REQUESTS: Final = Gauge(
    "runyard_pending_requests", "HITL requests that wait for an answer. Only the leader reports it.", ["kind"]
)
OLDEST_REQUEST: Final = Gauge(
    "runyard_oldest_request_seconds", "Age of the oldest HITL request without an answer. Only the leader reports it."
)
FEED_DELAY: Final = Gauge(
    "runyard_feed_delay_seconds",
    "Time for which committed entries of the feed cannot be read, because an older transaction is open. "
    "Only the leader reports it.",
)

SERVERS: Final = ("postgres", "redis")
CALLS: Final = Histogram(
    "runyard_server_call_seconds",
    "Duration of a call of Postgres or Redis, from the wait for a connection to the reply. Waits for jobs are not measured.",
    ["server"],
    buckets=_CALLS,
)
CALLS_FAILED: Final = Counter(
    "runyard_server_calls_failed_total",
    "Calls of Postgres or Redis without a reply, or on a server that takes no writes.",
    ["server"],
)
POOL: Final = Gauge(
    "runyard_postgres_pool_connections", "Maximum number of connections to Postgres for the calls of this process."
)
POOL_IN_USE: Final = Gauge(
    "runyard_postgres_pool_connections_in_use", "Connections to Postgres that calls of this process use."
)
POSTGRES_BYTES: Final = Gauge("runyard_postgres_bytes", "Bytes of the database on disk. Only the leader reports it.")
POSTGRES_DEAD_ROWS: Final = Gauge(
    "runyard_postgres_dead_rows",
    "Rows of runyard's tables that vacuum has to remove, as Postgres estimates. Only the leader reports it.",
)
POSTGRES_CONNECTIONS: Final = Gauge(
    "runyard_postgres_connections", "Open connections of all clients to the Postgres server. Only the leader reports it."
)
POSTGRES_MAX_CONNECTIONS: Final = Gauge(
    "runyard_postgres_max_connections",
    "Maximum number of connections of roles that are not superusers. Only the leader reports it.",
)
POSTGRES_COMMITS: Final = Counter(
    "runyard_postgres_commits_total", "Transactions that all clients committed in the database. Only the leader reports it."
)
REDIS_BYTES: Final = Gauge(
    "runyard_redis_bytes",
    "Bytes that count for the memory limit of Redis. In a cluster, of its fullest server. Only the leader reports it.",
)
REDIS_MAX_BYTES: Final = Gauge(
    "runyard_redis_max_bytes",
    "Memory limit of the fullest server of Redis (maxmemory), or 0 without a limit. Only the leader reports it.",
)

HTTP: Final = Histogram(
    "runyard_http_request_seconds",
    "Time from a request of the HTTP API to the end of its answer, or to the beginning of a stream.",
    ["method", "route", "status"],
    buckets=_REQUESTS,
)
HTTP_REJECTED: Final = Counter("runyard_http_rejected_total", "Requests that the HTTP API answered with a problem.", ["code"])
STREAMS_OPEN: Final = Gauge("runyard_http_streams", "Event streams that are open in this process.")
STREAM_EVENTS: Final = Counter("runyard_http_stream_events_total", "Events that the HTTP API sent to readers of streams.")

_agents: set[str] = set()
_queues: set[str] = set()
_models: set[tuple[str, str]] = set()
"""The (agent, model) pairs that have a series."""


def hide_leader_gauges() -> None:
    """Set the gauges of servers and requests to NaN. A query with ``max`` ignores NaN. The value 0 would mean an empty
    server."""
    for gauge in (
        OLDEST_REQUEST,
        POSTGRES_BYTES,
        POSTGRES_DEAD_ROWS,
        POSTGRES_CONNECTIONS,
        POSTGRES_MAX_CONNECTIONS,
        REDIS_BYTES,
        REDIS_MAX_BYTES,
        STREAM_BYTES,
    ):
        gauge.set(float("nan"))


hide_leader_gauges()


def own_registry() -> None:
    """Remove unused series from the default registry: creation times of counters, and metrics of the garbage collector.

    Call this function only in a process that runyard started. In any other process, the registry belongs to the host."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    with suppress(KeyError):  # a second call
        REGISTRY.unregister(GC_COLLECTOR)


def serve(agents: Mapping[str, str], queues: Iterable[str]) -> None:
    """Start the counters of ``agents`` (name → queue) and ``queues`` at zero. The first count then appears as an increase."""
    queues = list(queues)
    _agents.update(agents)
    _queues.update(queues)
    for kind in get_args(RunKind):
        RUNS_ACCEPTED.labels(kind=kind)
    for came_of in TRY_OUTCOMES:
        WEBHOOK_DELIVERIES.labels(outcome=came_of)
    for outcome in ATTEMPT_OUTCOMES:
        ATTEMPTS_ENDED.labels(outcome=outcome)
    for code in USUAL_ERRORS:
        ATTEMPT_ERRORS.labels(code=code)
    _serve_calls()
    for queue in queues:
        PICKUP.labels(queue=queue)
        QUEUE_WAIT.labels(queue=queue)
    for agent, queue in (*agents.items(), *(("", queue) for queue in queues)):
        for outcome in OUTCOMES:
            RUNS_FINISHED.labels(outcome=outcome, agent=agent, queue=queue)
    for agent in agents:
        for metric in (ATTEMPTS_RUNNING, ATTEMPT, RUN, FIRST_TOKEN):
            metric.labels(agent=agent)


def serve_arq() -> None:
    """Start the counters of the jobs of arq's producers at zero."""
    for outcome in ARQ_OUTCOMES:
        ARQ_JOBS.labels(outcome=outcome)


def serve_http(routes: Iterable[tuple[str, str, int]]) -> None:
    """Start the counters of the HTTP API at zero. ``routes``: the method, path template and success status of each route."""
    for method, route, status in routes:
        HTTP.labels(method=method, route=route, status=str(status))
    for code in BY_CODE:
        HTTP_REJECTED.labels(code=code)
    for kind in get_args(RunKind):
        RUNS_ACCEPTED.labels(kind=kind)
    _serve_calls()


def _serve_calls() -> None:
    for server in SERVERS:
        CALLS.labels(server=server)
        CALLS_FAILED.labels(server=server)


@cache
def child(metric: M, *values: str) -> M:
    """Return ``metric.labels(*values)`` from a cache. ``values``: the values of the labels, in their order."""
    found: M = metric.labels(*values)
    return found


def observe(histogram: Histogram, value: float, span: Span | None = None) -> None:
    """Add a measurement. ``span``: the span whose ids are the exemplar, by default the current span (T5)."""
    histogram.observe(value, tracing.exemplar(span))


def labels(agent: str | None, queue: str) -> dict[str, str]:
    """Return the labels of an agent and a queue."""
    return {"agent": agent_label(agent), "queue": queue_label(queue)}


def agent_label(agent: str | None) -> str:
    """Return the label of an agent."""
    return agent if agent in _agents else ""


def queue_label(queue: str) -> str:
    """Return the label of a queue."""
    return queue if queue in _queues else ""


def model_label(agent: str, model: str) -> str:
    """Return the label for a model: its name or the empty name. ``agent``: the label of the agent that uses the model.

    The label is empty for a long name, for a name with unprintable characters, and for a model after the first MAX_MODELS."""
    if len(model) > MAX_MODEL_CHARACTERS or not model.isprintable():
        return ""
    if len(_models) < MAX_MODELS:
        _models.add((agent, model))
    return model if (agent, model) in _models else ""


@contextmanager
def measured_call(server: str) -> Iterator[None]:
    """Measure the block as one call of ``server``. Count a failure, unless its cause was the row lock of another call."""
    began = time.perf_counter()
    try:
        yield
    except BackendUnavailableError as error:
        if not isinstance(error, LockedError):
            child(CALLS_FAILED, server).inc()
        raise
    finally:
        child(CALLS, server).observe(time.perf_counter() - began)


def count_usage(agent: str, usage: Usage, model: str) -> None:
    """Count the usage of model requests. ``agent``: the name of the agent. ``model``: the name of the model, or empty."""
    agent = agent_label(agent)
    names = agent, model_label(agent, model)
    child(TOKENS, *names, "input").inc(usage.input_tokens)
    child(TOKENS, *names, "output").inc(usage.output_tokens)
    child(COST, *names).inc(usage.cost)
    child(MODEL_REQUESTS, *names).inc(usage.requests)


def count_error(code: str) -> None:
    """Count an error that ended an attempt. ``code``: the error's code. The label of an unknown code is empty."""
    child(ATTEMPT_ERRORS, code if code in BY_CODE or code in USUAL_ERRORS else "").inc()


def count_rejected(code: str) -> None:
    """Count a request that was answered with a problem. ``code``: the error's code. The label of an unknown code is empty."""
    HTTP_REJECTED.labels(code=code if code in BY_CODE else "").inc()


def count_ends(events: Iterable[OutsideEvent]) -> None:
    """Count the runs that ended outside of attempts."""
    for event in events:
        outcome = event.type.removeprefix("run.")
        if outcome in OUTCOMES:
            RUNS_FINISHED.labels(outcome=outcome, **labels(event.agent, event.queue)).inc()
