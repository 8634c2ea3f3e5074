"""The checks of a deployment. Each check is a pure function from facts to findings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from runyard.domain.agent_names import is_agent, namespace_of, served_words
from runyard.domain.webhooks import NO_SECRET, WebhookDelivery
from runyard.models import Run
from runyard.ports.workers import QueueInfo, WorkerInfo

from ..quantities import clock, count, duration
from .workers import blocked_words, outage_words, state

if TYPE_CHECKING:
    from runyard_backends.postgres.health import PostgresFacts
    from runyard_backends.redis.health import RedisFacts

Level = Literal["ok", "warn", "fail"]

MAX_SKEW_SECONDS: Final = 1.0
"""Maximum seconds by which two clocks may differ without a warning."""
LONG_WAIT_SECONDS: Final = 60.0
"""Maximum seconds for which the oldest run may be queued without a warning."""
BESIDE_POOL: Final = 4
"""Number of connections that a worker has besides its pool. Two are for its heartbeat thread, one is for its heartbeat process,
and one is for LISTEN."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``do``: the solution of the problem, or empty if there is no problem."""

    level: Level
    about: str
    says: str
    do: str = ""


def of_postgres(facts: PostgresFacts) -> Iterator[Finding]:
    """Check the Postgres server and the schema."""
    name = f"Postgres {facts.version}"
    if facts.in_recovery:
        yield Finding("fail", "postgres", f"{name}, a standby that takes no writes", "name the primary in RUNYARD_POSTGRES_URL")
    else:
        yield Finding("ok", "postgres", f"{name}, answers in {facts.round_trip * 1000:.1f} ms")
    if facts.schema_trouble:
        yield Finding(
            "fail", "schema", facts.schema_trouble, "run `runyard migrate`, or install the release that fits the schema"
        )
    elif facts.edited:
        names = ", ".join(facts.edited)
        yield Finding(
            "fail", "schema", f"functions or triggers were changed by hand: {names}", "`runyard migrate` restores them"
        )
    else:
        yield Finding("ok", "schema", f"version {facts.schema}")
    if facts.fsync != "on":
        yield Finding("warn", "durability", "fsync is off: a crash of the machine can destroy the database", "set fsync = on")
    elif facts.synchronous_commit == "off":
        yield Finding(
            "warn",
            "durability",
            "synchronous_commit is off: a crash of Postgres can lose runs that were accepted",
            "set synchronous_commit = on",
        )
    else:
        yield Finding("ok", "durability", f"fsync on, synchronous_commit {facts.synchronous_commit}")
    if facts.no_timeout:
        yield Finding(
            "warn",
            "timeouts",
            f"sessions have no {', '.join(facts.no_timeout)}: a frozen client or a lost connection can hold locks without end",
            "PgBouncer does not pass these settings on: set them with ALTER ROLE … SET",
        )


def of_feed(facts: PostgresFacts) -> Finding:
    """Check that no old transaction delays the feed."""
    delay = facts.feed_delay
    if delay.holder is None:
        return Finding("ok", "feed", "no old transaction delays the feed")
    says = f"the feed, webhooks and usage are delayed for {duration(delay.seconds)} by {delay.holder}"
    return Finding("warn", "feed", says, "commit or end that transaction: SELECT pg_terminate_backend(pid)")


def of_connections(facts: PostgresFacts, workers: Sequence[WorkerInfo], pool: int) -> Finding:
    """Compare the connections of all workers with the number that Postgres allows. ``pool``: the number of connections of one
    pool."""
    live = sum(worker.dead_at is None for worker in workers)
    budget = live * (pool + BESIDE_POOL)
    says = (
        f"workers need {live} × {pool + BESIDE_POOL}; {facts.connections} are open now, and {facts.max_connections} are allowed"
    )
    if budget > facts.max_connections:
        return Finding("fail", "connections", says, "raise max_connections, lower RUNYARD_MAX_POOL_SIZE, or use PgBouncer")
    if budget > 0.8 * facts.max_connections:
        return Finding("warn", "connections", says, "few connections are left for other clients; raise max_connections")
    return Finding("ok", "connections", says)


def of_redis(facts: RedisFacts) -> Iterator[Finding]:
    """Check the Redis server, its eviction policy and its persistence."""
    if facts.role not in ("master", "?"):
        yield Finding(
            "fail", "redis", f"{facts.server}, a {facts.role} that takes no writes", "point RUNYARD_REDIS_URL at the primary"
        )
    elif facts.refuses_writes:
        yield Finding(
            "fail",
            "redis",
            f"{facts.server}: {facts.refuses_writes}",
            "repair the server; no run starts while it takes no writes",
        )
    else:
        yield Finding("ok", "redis", f"{facts.server}, answers in {facts.round_trip * 1000:.1f} ms")
    if facts.eviction not in ("noeviction", "?"):
        yield Finding(
            "warn",
            "eviction",
            f"maxmemory-policy is {facts.eviction}: a full Redis evicts locks and queues, which delays runs",
            "set maxmemory-policy noeviction",
        )
    else:
        bound = f"{facts.maxmemory / 2**20:.0f} MiB" if facts.maxmemory else "no bound"
        yield Finding("ok", "eviction", f"noeviction, {bound}")
    kept = "append-only file" if facts.appendonly else "no append-only file"
    yield Finding("ok", "persistence", f"{kept}; a loss of the data of Redis delays runs by seconds and loses no run")


def of_clocks(postgres: PostgresFacts, redis: RedisFacts | None) -> Finding:
    """Compare the clocks of the servers with the clock of this machine."""
    ahead = {"Postgres": postgres.clock_ahead} | ({"Redis": redis.clock_ahead} if redis is not None else {})
    says = ", ".join(f"{name} {seconds:+.3f} s" for name, seconds in ahead.items())
    if max(map(abs, ahead.values())) > MAX_SKEW_SECONDS:
        return Finding(
            "warn",
            "clocks",
            f"ahead of this host: {says}",
            "run NTP; displayed times are wrong, but no decision depends on them",
        )
    return Finding("ok", "clocks", f"ahead of this host: {says}")


def of_workers(workers: Sequence[WorkerInfo], leader: str | None) -> Iterator[Finding]:
    """Check that there are live workers, that they have one version, and that one is the leader."""
    live = [worker for worker in workers if worker.dead_at is None]
    for worker in workers:
        if (blocked := blocked_words(worker)) is not None:
            says = f"{worker.worker_id}: {blocked}"
            yield Finding("warn", "main loop", says, "move the blocking call to a thread: `await asyncio.to_thread(…)`")
    if not live:
        yield Finding("fail", "workers", "there is no live worker", "start one: `runyard worker MODULE:APP`")
        return
    silent = [worker.worker_id for worker in live if state(worker) == "silent"]
    if silent:
        yield Finding(
            "warn", "workers", f"{len(live)}, silent: {', '.join(silent)}", "see their logs and `runyard workers stacks`"
        )
    else:
        draining = sum(worker.draining for worker in live)
        yield Finding("ok", "workers", f"{len(live)} live" + (f", {draining} of them draining" if draining else ""))
    for worker in live:
        if (outage := outage_words(worker)) is not None:
            says = f"{worker.worker_id} {outage}"
            yield Finding(
                "fail", "redis", says, "start Redis, or correct RUNYARD_REDIS_URL of the worker; it claims no run until then"
            )
    versions = sorted({worker.app_version or "none" for worker in live})
    if len(versions) > 1:
        yield Finding(
            "warn", "versions", f"workers run {', '.join(versions)}", "finish the deploy, or drain the workers of old versions"
        )
    yield from _of_default_agents(live)
    yield _of_leader(live, leader)


def _of_leader(live: Sequence[WorkerInfo], leader: str | None) -> Finding:
    """Check that there is a leader. If the leader is blocked, another worker becomes the leader."""
    if leader is not None:
        return Finding("ok", "leader", leader)
    blocked = [worker.worker_id for worker in live if worker.blocked is not None]
    if not blocked:
        says = "there is no leader: lost jobs and dead workers are not noticed"
        return Finding("fail", "leader", says, "restart a worker and read its log")
    if len(blocked) < len(live):
        says = (
            f"there is no leader yet: the main loop of {', '.join(blocked)} is blocked; "
            "another worker becomes the leader within seconds"
        )
        return Finding("warn", "leader", says, "run `runyard doctor` again")
    says = f"there is no leader while the main loop of every worker is blocked: {', '.join(blocked)}"
    return Finding("warn", "leader", says, "move the blocking call to a thread: `await asyncio.to_thread(…)`")


def _of_default_agents(live: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Check that the workers of a namespace have the same default agent."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    for worker in live:
        if worker.default_agent is not None:
            named[namespace_of(worker.default_agent)].add(worker.default_agent)
    for namespace, agents in sorted(named.items()):
        if len(agents) > 1:
            where = f"namespace {namespace}" if namespace else "apps without a namespace"
            says = f"{', '.join(sorted(agents))} are default agents of {where}; one of them gets all new threads"
            yield Finding("warn", "agents", says, "finish the deploy; or give each program a RUNYARD_NAMESPACE of its own")


def of_waiting_runs(runs: Sequence[Run], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Check that each of the queued runs ``runs`` has a worker with its agent and a suitable version."""
    unserved: Counter[tuple[str, str]] = Counter()
    left: Counter[tuple[str, str]] = Counter()
    homeless: Counter[str] = Counter()
    live = [worker for worker in workers if worker.dead_at is None and worker.agents]
    for run in runs:
        if run.admitted_at is None:  # the run is due later
            continue
        serving = [w for w in workers if w.dead_at is None and not w.draining and run.queue in w.queues]
        if any(worker.takes(run) for worker in serving):
            continue
        if any(worker.serves(run.agent) for worker in serving):
            left[run.queue, run.app_version or "none"] += 1
        elif serving:
            unserved[run.queue, served_words(run.agent)] += 1
        elif not is_agent(run.agent) and not any(namespace_of(w.default_agent) == namespace_of(run.agent) for w in live):
            homeless[served_words(run.agent)] += 1
    for (queue, agent), number in unserved.items():
        says = f"no live worker of queue {queue} serves {agent}, {count(number, 'run waits', 'runs wait')}"
        yield Finding("fail", "agents", says, "start a worker whose app has the agent, or cancel the runs")
    for agent, number in homeless.items() if live else ():
        names = ", ".join(sorted({namespace_of(worker.default_agent) or "none" for worker in live}))
        says = f"{count(number, 'run waits', 'runs wait')} for {agent}; live workers have the namespaces {names}"
        yield Finding("fail", "agents", says, "set RUNYARD_NAMESPACE to the same value for clients and workers")
    for (queue, version), number in left.items():
        says = f"no live worker of queue {queue} has version {version}, {count(number, 'run waits', 'runs wait')} for it"
        yield Finding("fail", "versions", says, "start a worker of this version, or one with on_version_mismatch='run'")


def of_deliveries(deliveries: Sequence[WebhookDelivery]) -> Iterator[Finding]:
    """Check that the workers have the secret that signs webhooks. A failed delivery says nothing about the present workers."""
    if unsigned := sum(delivery.status == "pending" and delivery.error == NO_SECRET for delivery in deliveries):
        says = f"{count(unsigned, 'delivery', 'deliveries')} cannot be sent: RUNYARD_WEBHOOK_SECRET is not set for the workers"
        do = "set RUNYARD_WEBHOOK_SECRET for every worker; `runyard webhooks redeliver` sends failed deliveries again"
        yield Finding("fail", "webhooks", says, do)


def of_queues(queues: Sequence[QueueInfo]) -> Iterator[Finding]:
    """Check that queued runs have workers and do not wait long."""
    for info in queues:
        queued = count(info.queued, "run waits", "runs wait")
        if info.paused_at is not None:
            yield Finding(
                "warn",
                "queues",
                f"{info.queue} is paused since {clock(info.paused_at)}, {queued}",
                f"`runyard queues resume {info.queue}`",
            )
        elif info.queued and not info.workers:
            yield Finding(
                "fail",
                "queues",
                f"{queued} in {info.queue} and no worker serves it",
                f"start a worker with RUNYARD_QUEUES={info.queue}",
            )
    waiting = max(queues, key=lambda info: info.oldest or 0.0, default=None)
    if waiting is None or waiting.oldest is None:
        yield Finding("ok", "oldest run", "nothing waits")
    elif waiting.oldest > LONG_WAIT_SECONDS:
        yield Finding(
            "warn",
            "oldest run",
            f"waits for {duration(waiting.oldest)} in {waiting.queue}",
            "`runyard queues list`, then `runyard runs explain` for the run; add workers or slots, unless its lane is busy",
        )
    else:
        yield Finding("ok", "oldest run", f"waits for {duration(waiting.oldest)} in {waiting.queue}")
