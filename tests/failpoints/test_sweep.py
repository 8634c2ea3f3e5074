"""Every call that a process makes of its servers, cut before and after: the history stays as it has to be. The short form takes
half of the losses, and a third of the deaths beside those of GUARANTEED.

The points are found by running the scenario once and noting each call, so a verb that is added to a port is swept as soon as
the scenario reaches it; a verb that it does not reach has to be listed below with the reason.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import pytest
from redis.asyncio import Redis

from runyard import Client
from runyard.ports.workers import WorkerInfo
from runyard.support.failpoints import MOMENTS, VARIABLE, verbs
from runyard_backends.embedded import EmbeddedRedis
from tests.conftest import Databases
from tests.failpoints.scenario import Names, check, until
from tests.failpoints.wires import Thief, of_postgres, of_redis
from tests.support.agents.sweep import EFFECTS, MENDED
from tests.support.long_form import LONG, some
from tests.support.process_nursery import Child, Nursery

# One after the other with the tests of failovers: both load the machine, and those measure times.
pytestmark = [pytest.mark.xdist_group("failovers"), pytest.mark.timeout(600)]

Role: TypeAlias = Literal["worker", "driver"]

ROLES: Final[tuple[Role, ...]] = ("worker", "driver")

AT_ONCE: Final = 15
"""Cases that are under way together, each with a database of Postgres and one of Redis."""

CASE_SECONDS: Final = 300.0
"""Seconds that one case may take on a loaded machine."""

LATE: Final = ("workers.drain", "workers.leave")
"""What a worker says when it stops."""
SLOWEST: Final = "workers.mark_dead.after"
"""What a worker does last of all that it does now and then."""
HOLD: Final = 15.0
"""Seconds that the scenario waits for the points of its case at most."""
TOGETHER: Final = 4
"""Parts into which the verbs are divided that are cut in one scenario; neighbours are in different ones."""

GUARANTEED: Final = {f"runs.{verb}" for verb in ("claim", "append", "start_step", "finish_step", "suspend", "fail", "complete")}
"""Writes on which the guarantees of a run rest."""
READS: Final = {
    "threads.thread", "threads.thread_key", "threads.messages", "threads.cut_messages",
    "runs.run", "runs.last_message_id", "runs.run_events", "runs.requests", "runs.context", "runs.ledger",
    "workers.workers", "workers.running", "workers.cancelling", "workers.orphans", "workers.waiting", "workers.measure",
    "scheduler.missing_jobs", "events.read",
}  # fmt: skip
"""Verbs that change nothing: a process that dies at one dies between two others. Their answers are lost all the same."""

CHANCE: Final = {
    "workers.measure": "asked by a leader now and then, and changes nothing",
    "workers.still_waiting": "asked about runs that Redis did not hold twice, and changes nothing",
    "workers.report_redis": "said while Redis is slow to answer, and said anew: tests/unit/worker/test_heartbeat.py",
    "scheduler.ping": "asked while a worker holds nothing",
    "scheduler.end_wait": "said to a worker that waits for a job when it has to stop",
    "events.holds": "asked for a reader who waits for a run that has events already and goes on",
}
"""Verbs that a scenario reaches or not, and that nothing is lost with."""

ELSEWHERE: Final = {
    "checkpointer": "one statement per call, made by embedders; nothing follows it that a crash could leave undone",
    "threads": "as above, but for fork, which a worker calls too",
    "runs.isolate": "after two crashes only: tests/integration/worker/test_isolation.py",
    "runs.bury": "as above",
    "workers.report_block": "one statement while user code blocks the main loop: tests/integration/worker/test_blocked_loop.py",
    "runs.delete_run": "one statement of a run that ended; nothing follows it that a crash could leave undone",
    "events.forget": "called after the deletion of a thread, whose streams expire without it",
    "runs.accept_many": "the transactions of runs.accept, one for each part: tests/integration/postgres/test_accept_many.py",
    "runs.recent": "a read of agents that use a window; runs.context is the same read",
    "runs.attempts": "a read for people",
    "runs.request": "a read for people",
    "runs.answered": "a read after a repeated answer",
    "runs.explain": "a read for people",
    "runs.runs": "a read for people",
    "graphs": "called by graphs of LangGraph only: tests/integration/graphs/test_graph_kills.py",
}
"""Ports and verbs that the scenario does not reach, and why that is right."""


@dataclass(frozen=True)
class Case:
    """``rules``: the failpoints of the workers that serve the case, one after another as each dies, or of its drivers.

    ``points``: those that note that they were reached; the scenario waits for them, ``hold`` seconds at most.
    ``cut``: the verbs whose connection is cut between request and reply, for all processes of the role.
    """

    name: str
    role: Role
    rules: Sequence[str]
    points: Sequence[str] = ()
    hold: float = 0.0
    cut: Sequence[str] = ()

    @property
    def early(self) -> int:
        """How many points are reached before the worker is told to stop."""
        return sum(not point.startswith(LATE) for point in self.points)


def crashes(name: str, role: Role, points: Sequence[str], hold: float = 0.0) -> Case:
    """One process after another dies, each at the next of ``points``."""
    rules = [f"{point}=crash" for point in points]
    rules[-1] = f"{points[-1]}=note({{fired}});{rules[-1]}"
    return Case(f"{name}-crash", role, rules, points[-1:], hold)


def losses(name: str, role: Role, points: Sequence[str], hold: float) -> Case:
    """One process loses the request or the answer at each of ``points``, twice."""
    rules = [f"{point}=note({{fired}})*1;{point}=error*2" for point in points]
    return Case(f"{name}-loss", role, [";".join(rules)], points, hold)


def cuts(role: Role, verbs: Sequence[str], hold: float) -> Case:
    """The connection is cut once for each of ``verbs`` that travels as one statement or script."""
    carried = [*of_postgres(verbs), *of_redis(verbs)]
    return Case(f"{role}-cut", role, [], carried, hold, carried)


@dataclass
class Place:
    """The servers and the files of one case. ``detour``: where the role that is tested finds the servers instead."""

    directory: Path
    postgres: str
    redis: str
    case: Case
    detour: dict[str, str] = field(default_factory=dict)
    fired: Path = field(init=False)
    effects: Path = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.fired, self.effects = self.directory / "fired", self.directory / "effects"

    def log(self, role: Role) -> Path:
        return self.directory / f"{role}.log"

    def end_of_log(self, role: Role) -> str:
        return self.log(role).read_text()[-2000:]

    def env(self, role: Role, rule: str | None) -> dict[str, str]:
        return {
            "RUNYARD_POSTGRES_URL": self.postgres,
            "RUNYARD_REDIS_URL": self.redis,
            "RUNYARD_LOG_LEVEL": "warning",
            "SWEEP_CASE": self.case.name,
            "SWEEP_FIRED": str(self.fired),
            "SWEEP_POINTS": str(self.case.early),
            "SWEEP_HOLD": str(self.case.hold),
            EFFECTS: str(self.effects),
            MENDED: str(self.directory / "mended"),
            **({VARIABLE: rule.format(fired=self.fired)} if rule else {}),
            **(self.detour if role == self.case.role else {}),
        }

    @asynccontextmanager
    async def wired(self) -> AsyncIterator[None]:
        """While the block lasts, proxies cut what the case says."""

        def stolen(verb: str) -> None:
            with self.fired.open("a") as file:
                file.write(f"{verb}\n")

        wanted = {"RUNYARD_POSTGRES_URL": of_postgres(self.case.cut), "RUNYARD_REDIS_URL": of_redis(self.case.cut)}
        async with AsyncExitStack() as stack:
            for variable, url in (("RUNYARD_POSTGRES_URL", self.postgres), ("RUNYARD_REDIS_URL", self.redis)):
                parts = urlsplit(url)
                assert parts.port is not None
                proxy = await stack.enter_async_context(Thief("127.0.0.1", parts.port, wanted=wanted[variable], stolen=stolen))
                login, _, _ = parts.netloc.rpartition("@")
                self.detour[variable] = urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{proxy.port}"))
            yield


@dataclass
class Lab:
    """Plays cases, some at a time."""

    nursery: Nursery
    databases: Databases
    template: str
    redis: str
    directory: Path
    free: asyncio.Queue[int]

    @asynccontextmanager
    async def place(self, case: Case) -> AsyncIterator[Place]:
        number = await self.free.get()
        url = await self.databases.create(self.template)
        redis = urlunsplit(urlsplit(self.redis)._replace(path=f"/{number}"))
        try:
            async with Redis.from_url(redis) as server:
                await server.flushdb()
            yield Place(self.directory / case.name, url, redis, case)
        finally:
            await self.databases.drop(url)
            self.free.put_nowait(number)

    async def play(self, case: Case) -> None:
        async with (
            self.place(case) as place,
            asyncio.timeout(CASE_SECONDS),
            Client.connect(place.postgres, redis=place.redis) as client,
        ):
            # Somebody who is silent, so that the leader has one to declare dead.
            await client.backend.workers.register(WorkerInfo(worker_id=f"silent-{case.name}", queues=[]))
            async with place.wired() if case.cut else nullcontext():
                deaths = await self._serve(case, place, client)
            await check(client, Names(case.name), place.effects, deaths)
            reached = place.fired.read_text().split() if place.fired.exists() else []
            assert set(reached) == set(case.points), f"not reached: {set(case.points) - set(reached)}"

    async def _serve(self, case: Case, place: Place, client: Client) -> int:
        """Let the driver have its way, with one worker after another. Returns how many workers died."""
        rules: dict[Role, list[str]] = {"worker": [], "driver": []}
        rules[case.role] = list(case.rules)
        deaths = 0

        async def start(role: Role) -> Child:
            rule = rules[role].pop(0) if rules[role] else None
            return await self.nursery.fork(role, place.env(role, rule), place.log(role))

        children: dict[Role, Child] = {"driver": await start("driver"), "worker": await start("worker")}
        try:
            while children["driver"].code != 0:
                await asyncio.wait([child.ended for child in children.values()], return_when=asyncio.FIRST_COMPLETED)
                for role, child in children.items():
                    if child.code is not None and not (role == "driver" and child.code == 0):
                        assert child.code == -signal.SIGKILL, f"the {role} ended by itself: {place.end_of_log(role)}"
                        deaths += role == "worker"
                        children[role] = await start(role)
            children["worker"].signal(signal.SIGTERM)
            while await children["worker"].ended == -signal.SIGKILL and rules["worker"]:
                children["worker"] = await start("worker")
                await until(lambda: _registered(client, children["worker"]), 20)
                children["worker"].signal(signal.SIGTERM)
            assert children["worker"].code in (0, -signal.SIGKILL), f"not drained: {place.end_of_log('worker')}"
        finally:
            for child in children.values():
                child.signal(signal.SIGKILL)
                await child.ended
        assert not any(rules.values()), f"not reached: {rules}"
        return deaths


async def _registered(client: Client, worker: Child) -> bool:
    return any(f"-{worker.pid}-" in known.worker_id for known in await client.backend.workers.workers())


@asynccontextmanager
async def laboratory(databases: Databases, template: str, redis: EmbeddedRedis, directory: Path) -> AsyncIterator[Lab]:
    free: asyncio.Queue[int] = asyncio.Queue()
    for number in range(1, AT_ONCE + 1):
        free.put_nowait(number)
    async with Nursery() as nursery:
        yield Lab(nursery, databases, template, redis.url, directory, free)


@dataclass(frozen=True)
class Reached:
    """The verbs that a scenario without faults goes through, in their order, by who calls them."""

    worker: list[str]
    driver: list[str]

    @property
    def writes(self) -> list[str]:
        """What a worker may die at."""
        return [verb for verb in self.worker if verb not in READS]


@pytest.fixture(scope="module")
def reached(
    databases: Databases, migrated_template: str, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Reached:
    directory = tmp_path_factory.mktemp("reached")

    async def run() -> Reached:
        async with laboratory(databases, migrated_template, redis_server, directory) as lab:
            notes = [f"*=note({directory / role}.txt)" for role in ROLES]
            # When it has declared somebody dead, a worker has done everything that it does now and then.
            patient = Case("worker", "worker", [f"{notes[0]};{SLOWEST}=note({{fired}})"], [SLOWEST], HOLD)
            await asyncio.gather(lab.play(patient), lab.play(Case("driver", "driver", notes[1:])))
        return Reached(*(noted(directory / f"{role}.txt") for role in ROLES))

    return asyncio.run(run())


def noted(path: Path) -> list[str]:
    points = path.read_text().split()
    found = dict.fromkeys(point.rpartition(".")[0] for point in points)
    return [verb for verb in found if verb not in CHANCE]


def test_every_verb_is_swept_or_has_a_reason_not_to_be(reached: Reached) -> None:
    swept = {*reached.worker, *reached.driver}
    excused = {verb for verb in verbs() if {verb, verb.partition(".")[0]} & (ELSEWHERE.keys() | CHANCE.keys())}
    assert set(verbs()) - swept - excused == set()
    assert READS | CHANCE.keys() <= set(verbs())
    assert {verb for verb in ELSEWHERE if verb in swept} == set(), "no longer excused"


@pytest.fixture
async def lab(databases: Databases, migrated_template: str, redis_server: EmbeddedRedis, tmp_path: Path) -> AsyncIterator[Lab]:
    async with laboratory(databases, migrated_template, redis_server, tmp_path) as lab:
        yield lab


async def test_wherever_a_worker_dies(lab: Lab, reached: Reached) -> None:
    """I1 to I5, R3, R6, R9, F1, E2, the ledger: one worker dies before a write, the next one after it, the third goes on."""
    chosen = [*(GUARANTEED & {*reached.writes}), *some(sorted({*reached.writes} - GUARANTEED), 3)]
    await all_of(lab, [crashes(verb, "worker", [f"{verb}.{m}" for m in MOMENTS], HOLD) for verb in chosen])


async def test_wherever_a_web_backend_dies(lab: Lab, reached: Reached) -> None:
    """I1, R2, H3: started again, it says everything again."""
    writes = [verb for verb in reached.driver if verb not in READS]
    await all_of(lab, [crashes(f"{m}-{n}", "driver", [f"{verb}.{m}" for verb in writes[n::TOGETHER]]) for n, m in parts()])


@pytest.mark.parametrize("role", ROLES)
async def test_whichever_request_or_answer_is_lost(lab: Lab, reached: Reached, role: Role) -> None:
    """I1 to I5, R2, R3, R6, F1, E2, H3: said again, it happens once. Lost by the port's error, and by a reset of the connection
    after the server has done what it was asked."""
    called, hold = (reached.worker, HOLD) if role == "worker" else (reached.driver, 0.0)
    lost = [losses(f"{m}-{n}", role, [f"{verb}.{m}" for verb in called[n::TOGETHER]], hold) for n, m in parts()]
    await all_of(lab, [cuts(role, [verb for verb in called if verb not in READS], hold), *lost])


def parts() -> Sequence[tuple[int, str]]:
    """The parts of the verbs, each with every moment. In the short form, each part has one moment."""
    return [(n, moment) for n in range(TOGETHER) for m, moment in enumerate(MOMENTS) if LONG or m == n % len(MOMENTS)]


async def all_of(lab: Lab, cases: Sequence[Case]) -> None:
    """Play ``cases``; all that went wrong is told together, by name."""

    async def told(case: Case) -> Exception | None:
        try:
            await lab.play(case)
        except Exception as error:
            error.add_note(case.name)
            return error
        return None

    if errors := [error for error in await asyncio.gather(*map(told, cases)) if error]:
        raise ExceptionGroup(f"{len(errors)} of {len(cases)} cases", errors)
