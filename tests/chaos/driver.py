"""One run of chaos: servers, workers, clients and faults for a time, then a time without faults, then the check."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg

from runyard import Client
from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.postgres.migrate import migrate
from tests.chaos.checker import Violation, violations
from tests.chaos.faults import CLIENTS, WORKERS, Fault, counts, schedule
from tests.chaos.history import HOST_TABLE, History, collect, leftovers
from tests.chaos.load import Load
from tests.chaos.redis_setups import SETUPS, Kind, RedisSetup
from tests.support.agents.chaos import TRACE_VARIABLE
from tests.support.failovers import PostgresPair, through
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import Fleet, WorkerProcess, scrape, total, until

APP: Final = "tests.support.agents.chaos_app:app"
OBSERVER: Final = "observer"
"""Owner of the links that have no wire faults."""
GRACE: Final = 2.0
"""Seconds that a replaced worker lets its runs finish."""
WATCHDOG: Final = 5.0
SETTLE: Final = 60.0
"""Seconds after the last fault within which all accepted runs must end."""
STREAMS: Final = 1000
"""Maximum number of runs whose events are read again at the end."""
COUNTED: Final = (
    "runyard_stale_writes_total",
    "runyard_rescues_total",
    "runyard_takeovers_total",
    "runyard_workers_dead_total",
)


@dataclass(slots=True)
class Report:
    """The outcome. ``struck``: the faults, as they were carried out. ``totals``: the sums of the workers' metrics, by name."""

    seed: int
    duration: float
    history: History
    struck: list[Fault]
    totals: dict[str, int]
    settled: float
    violations: list[Violation]


@dataclass
class Servers:
    """The servers, and a proxy before Postgres for each owner (the clients, each worker, the observer)."""

    postgres_pair: PostgresPair
    redis: RedisSetup
    proxies: dict[str, FaultProxy]

    @property
    def postgres(self) -> EmbeddedPostgres:
        """The primary."""
        return self.postgres_pair.primary

    def url(self, owner: str, server: str) -> str:
        """Return the URL at which ``owner`` reaches ``server``."""
        if server == "redis":
            return self.redis.url(owner)
        return through(self.postgres.url, self.proxies[owner].port)

    def lead_to_primary(self) -> None:
        """Let every address of Postgres lead to the primary. Open connections do not change."""
        for proxy in self.proxies.values():
            proxy.upstream_port = self.postgres.port


@asynccontextmanager
async def servers(redis: Kind, seed: int) -> AsyncIterator[Servers]:
    """Start private servers with the schema, and a proxy for each link. ``redis``: how Redis fails over. ``seed``: what its
    faults are drawn from."""
    owners = [CLIENTS, OBSERVER, *(str(n) for n in range(WORKERS))]
    async with AsyncExitStack() as stack:
        # Durable: a crash must not lose what was acknowledged.
        pair = stack.enter_context(PostgresPair(durable=True, max_connections=300))
        await migrate(pair.primary.url)
        connection = await asyncpg.connect(pair.primary.url)
        await connection.execute(HOST_TABLE)
        await connection.close()
        setup = await stack.enter_async_context(SETUPS[redis](owners, seed))
        port = pair.primary.port
        proxies = {owner: await stack.enter_async_context(FaultProxy("127.0.0.1", port)) for owner in owners}
        yield Servers(pair, setup, proxies)


@dataclass
class Crew:
    """The workers, each in its place. A worker that is killed or replaced has a successor."""

    fleet: Fleet
    servers: Servers
    log: Path
    complaints: list[str]
    places: dict[int, WorkerProcess] = field(default_factory=dict)
    expected: set[int] = field(default_factory=set)
    counted: dict[tuple[int, str], int] = field(default_factory=dict)

    async def fill(self, place: int) -> None:
        """Start the worker of ``place``."""
        with self.log.open("ab") as log:
            self.places[place] = await self.fleet.spawn(
                APP,
                log=log.fileno(),
                postgres_url=self.servers.url(str(place), "postgres"),
                redis_url=self.servers.url(str(place), "redis"),
                grace=GRACE,
                watchdog=WATCHDOG,
                slots=50,
                max_pool_size=5,
            )

    def send(self, place: int, number: int) -> WorkerProcess:
        """Send a signal to the worker of ``place``. After SIGKILL and SIGTERM, the end of the worker is expected."""
        process = self.places[place]
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.expected.add(process.pid)
        with suppress(ProcessLookupError):
            process.send_signal(number)
        return process

    async def watch(self) -> None:
        """Read the metrics of live workers, and replace workers that end by themselves, which is a violation."""
        while True:
            for place, process in [*self.places.items()]:
                if process.returncode is not None and process.pid not in self.expected:
                    self.expected.add(process.pid)
                    self.complaints.append(f"worker {process.pid} ended by itself with {process.returncode}")
                    await self.fill(place)
            await asyncio.gather(*(self._count(process.pid) for process in self.places.values()))
            await asyncio.sleep(0.5)

    async def _count(self, pid: int) -> None:
        with suppress(OSError, ValueError):
            text = await asyncio.to_thread(scrape, self.fleet.metrics[pid], 1.0)
            for name in (name for name in COUNTED if name in text):  # a worker that has just started counts nothing yet
                self.counted[pid, name] = int(total(text, name, {}))

    def totals(self) -> dict[str, int]:
        """Return the sums of the metrics of all workers, dead ones included. They may lack the last half second."""
        return {name: sum(value for (_, one), value in self.counted.items() if one == name) for name in COUNTED}

    def defects(self) -> list[str]:
        """Return the tracebacks in the workers' log that are defects. An unreachable server is logged without a traceback."""
        found = {}
        for line in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and "exception" in entry and not _explained(entry):
                    found[entry["event"], entry["exception"].splitlines()[-1]] = entry["exception"]
        return [f"a worker logged {event!r}: {trace}" for (event, _), trace in found.items()]


def _explained(entry: Mapping[str, object]) -> bool:
    """Return True if a traceback is no defect. Errors of the agent are part of its plan. asyncpg logs a traceback for each lost
    connection. If a connection is abandoned while it is opened, the event loop logs its error."""
    event = str(entry.get("event"))
    return (
        event in ("run_ended", "probe_failed")
        or str(entry.get("logger")).startswith("asyncpg")
        or (event.startswith("Future exception was never retrieved") and "unexpected connection_lost() call" in event)
    )


class Injector:
    """Carries out faults."""

    def __init__(self, servers: Servers, crew: Crew) -> None:
        self.servers, self.crew = servers, crew
        self.struck: list[Fault] = []
        self._postgres, self._redis = asyncio.Lock(), asyncio.Lock()

    async def run(self, faults: list[Fault]) -> None:
        """Carry out each fault at its time. Faults may overlap. Return when the last one is over."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                self.struck.append(fault)
                group.create_task(self._strike(fault))

    async def _strike(self, fault: Fault) -> None:
        act: Callable[[Fault], Awaitable[Any]] = getattr(self, f"_{fault.kind}")
        await act(fault)

    async def _kill(self, fault: Fault) -> None:
        process = self.crew.send(fault.worker, signal.SIGKILL)
        await process.wait()
        await asyncio.sleep(fault.seconds)
        if self.crew.places[fault.worker] is process:
            await self.crew.fill(fault.worker)

    async def _pause(self, fault: Fault) -> None:
        process = self.crew.send(fault.worker, signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)

    async def _replace(self, fault: Fault) -> None:
        for place in range(WORKERS):
            process = self.crew.send(place, signal.SIGTERM)
            await self.crew.fill(place)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 20)
            if process.returncode is None:
                process.kill()
                self.crew.complaints.append(f"worker {process.pid} did not end within 20 s of SIGTERM")

    async def _flush(self, fault: Fault) -> None:
        async with self._redis:
            await self.servers.redis.flush()

    async def _empty(self, fault: Fault) -> None:
        async with self._redis:
            await self.servers.redis.lose_data(fault.seconds)

    async def _crash(self, fault: Fault) -> None:
        async with self._postgres:
            await asyncio.to_thread(self.servers.postgres.kill)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(self.servers.postgres.start)

    async def _disconnect(self, fault: Fault) -> None:
        async with self._postgres:
            connection = await asyncpg.connect(self.servers.postgres.url)
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            await connection.close()

    async def _redis_failover(self, fault: Fault) -> None:
        async with self._redis:
            await self.servers.redis.fail_over(fault.seconds)

    async def _postgres_failover(self, fault: Fault) -> None:
        async with self._postgres:
            pair = self.servers.postgres_pair
            await pair.in_sync()
            await asyncio.to_thread(pair.primary.shut_down)
            await pair.promote()
            await asyncio.to_thread(pair.take_back)
            await asyncio.sleep(fault.seconds)
            self.servers.lead_to_primary()

    async def _wire(self, fault: Fault) -> None:
        owner, server = fault.link
        if server == "redis":
            await self.servers.redis.disturb(fault)
        else:
            await self.servers.proxies[owner].disturb(fault.wire, fault.seconds, fault.amount)


async def run_chaos(duration: float, seed: int, directory: Path, redis: Kind = "pair") -> Report:
    """Make chaos for ``duration`` seconds, then wait at most SETTLE seconds. ``directory``: for the trace and the log.
    ``redis``: how Redis fails over."""
    trace, log = directory / "trace", directory / "workers.log"
    faults = schedule(seed, duration)
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(servers(redis, seed))
        watched = both.url(OBSERVER, "postgres"), both.url(OBSERVER, "redis")
        observer = await stack.enter_async_context(Client.connect(watched[0], redis=watched[1]))
        urls = both.url(CLIENTS, "postgres"), both.url(CLIENTS, "redis")
        client = await stack.enter_async_context(Client.connect(urls[0], redis=urls[1], command_timeout=10))
        fleet = Fleet(*watched, observer, observer.backend, environment={TRACE_VARIABLE: str(trace)})
        stack.push_async_callback(fleet.stop)
        load = Load(client, urls[0], random.Random(seed))
        crew = Crew(fleet, both, log, load.seen.complaints)
        injector = Injector(both, crew)
        for place in range(WORKERS):
            await crew.fill(place)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(load.run()), group.create_task(crew.watch())]
            await injector.run(faults)
            load.calm.set()
            settled = await _settle(both, load)
            for task in background:
                task.cancel()
        load.seen.complaints += crew.defects()
        totals = crew.totals()
        primaries = [server.url for server in await both.redis.primaries()]
        history = await collect(both.postgres.url, primaries, observer, trace, load.seen, STREAMS)
        history.pauses = counts(injector.struck)["pause"]
        history.stale_writes = totals[COUNTED[0]]
    return Report(seed, duration, history, injector.struck, totals, settled, violations(history))


async def _settle(both: Servers, load: Load) -> float:
    """Wait until every call is answered, every run has ended, Redis has no keys of them, and the live readers have ended. Wait
    at most SETTLE seconds. Return the seconds."""

    async def nothing_scheduled() -> bool:
        return not await leftovers([server.url for server in await both.redis.primaries()])

    began = time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLE):
            await load.quiet.wait()
            connection = await asyncpg.connect(both.postgres.url)
            try:
                await until(lambda: connection.fetchval("SELECT every(finished_at IS NOT NULL) FROM runyard.runs"), SETTLE)
            finally:
                await connection.close()
            await until(nothing_scheduled, SETTLE)
            await load.readers_ended()
    return time.monotonic() - began
