"""What the doctor makes of what it sees. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from backends.postgres.diagnosis import PostgresFacts
from backends.redis.diagnosis import RedisFacts
from runner.exchange import QueueInfo, WorkerInfo

from .output import clock, count, duration
from .workers import state

Level = Literal["ok", "warn", "fail"]

CLOCKS: Final = 1.0
"""Seconds by which two clocks may differ without a word."""
OLD: Final = 60.0
"""Seconds after which a queued run waits long."""
BESIDE_POOL: Final = 3
"""Connections of a worker beside its pool: two of its liveness thread, one that listens."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``do``: what to do about it, empty if nothing."""

    level: Level
    about: str
    says: str
    do: str = ""


def of_postgres(facts: PostgresFacts) -> Iterator[Finding]:
    """The server and the schema."""
    name = f"Postgres {facts.version}"
    if facts.in_recovery:
        yield Finding("fail", "postgres", f"{name}, a standby that takes no writes", "name the primary in RUNYARD_POSTGRES_URL")
    else:
        yield Finding("ok", "postgres", f"{name}, answers in {facts.round_trip * 1000:.1f} ms")
    if facts.schema_trouble:
        yield Finding("fail", "schema", facts.schema_trouble, "`runyard migrate`, or install the release that fits")
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


def of_connections(facts: PostgresFacts, workers: Sequence[WorkerInfo], pool: int) -> Finding:
    """The pools of all workers against what the server allows. ``pool``: connections per worker's pool at most."""
    live = sum(worker.dead_at is None for worker in workers)
    budget = live * (pool + BESIDE_POOL)
    says = f"{live} × {pool + BESIDE_POOL} for workers, {facts.connections} open now, {facts.max_connections} allowed"
    if budget > facts.max_connections:
        return Finding("fail", "connections", says, "raise max_connections, lower RUNYARD_MAX_POOL_SIZE, or use PgBouncer")
    if budget > 0.8 * facts.max_connections:
        return Finding("warn", "connections", says, "little is left for your own clients; raise max_connections")
    return Finding("ok", "connections", says)


def of_redis(facts: RedisFacts) -> Iterator[Finding]:
    """The server and what it does when it is full or restarted."""
    if facts.role not in ("master", "?"):
        yield Finding(
            "fail", "redis", f"{facts.server}, a {facts.role} that takes no writes", "point RUNYARD_REDIS_URL at the primary"
        )
    else:
        yield Finding("ok", "redis", f"{facts.server}, answers in {facts.round_trip * 1000:.1f} ms")
    if facts.eviction not in ("noeviction", "?"):
        yield Finding(
            "warn",
            "eviction",
            f"maxmemory-policy is {facts.eviction}: a full Redis drops locks and queues, runs get late",
            "set maxmemory-policy noeviction",
        )
    else:
        bound = f"{facts.maxmemory / 2**20:.0f} MiB" if facts.maxmemory else "no bound"
        yield Finding("ok", "eviction", f"noeviction, {bound}")
    kept = "append-only file" if facts.appendonly else "no append-only file"
    yield Finding("ok", "persistence", f"{kept}; an empty Redis makes runs late by seconds and loses none")


def of_clocks(postgres: PostgresFacts, redis: RedisFacts | None) -> Finding:
    """This host's clock and the servers'."""
    ahead = {"Postgres": postgres.clock_ahead} | ({"Redis": redis.clock_ahead} if redis is not None else {})
    says = ", ".join(f"{name} {seconds:+.3f} s" for name, seconds in ahead.items())
    if max(map(abs, ahead.values())) > CLOCKS:
        return Finding(
            "warn", "clocks", f"against this host: {says}", "run NTP; times shown are off, nothing is decided by them"
        )
    return Finding("ok", "clocks", f"against this host: {says}")


def of_workers(workers: Sequence[WorkerInfo], leader: str | None) -> Iterator[Finding]:
    """Who lives, which versions they run, and who leads."""
    live = [worker for worker in workers if worker.dead_at is None]
    if not live:
        yield Finding("fail", "workers", "no worker lives", "start one: `runyard worker MODULE:APP`")
        return
    silent = [worker.worker_id for worker in live if state(worker) == "silent"]
    if silent:
        yield Finding("warn", "workers", f"{len(live)}, silent: {', '.join(silent)}", "look at their logs and stacks")
    else:
        draining = sum(worker.draining for worker in live)
        yield Finding("ok", "workers", f"{len(live)} live" + (f", {draining} of them draining" if draining else ""))
    versions = sorted({worker.app_version or "none" for worker in live})
    if len(versions) > 1:
        yield Finding("warn", "versions", f"workers run {', '.join(versions)}", "finish the deploy, or drain the old ones")
    if leader is None:
        yield Finding(
            "fail", "leader", "nobody leads: lost wake-ups and dead workers go unnoticed", "restart a worker and read its log"
        )
    else:
        yield Finding("ok", "leader", leader)


def of_queues(queues: Sequence[QueueInfo]) -> Iterator[Finding]:
    """What waits, and whether anybody will take it."""
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
    elif waiting.oldest > OLD:
        yield Finding(
            "warn",
            "oldest run",
            f"waits for {duration(waiting.oldest)} in {waiting.queue}",
            "`runyard queues list`, then `runyard runs explain` for the run: more workers or slots, or a busy lane",
        )
    else:
        yield Finding("ok", "oldest run", f"waits for {duration(waiting.oldest)} in {waiting.queue}")
