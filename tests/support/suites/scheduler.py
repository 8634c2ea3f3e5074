"""Tests of every scheduler on Redis: several connections at once, and a server that is emptied during the test.

The tests of each implementation import this module and define two fixtures: ``redis_url``, the URL of an emptied server, and
``somebody_waits``. The tests of the order of starts use ``any_scheduler``, which may also be a scheduler without Redis.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import pytest

from runyard.errors import InvalidInputError
from runyard.models import Event, Priority
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Delivery, Job, Scheduler, queued_event
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer
from runyard_backends.redis.job_codec import encode

QUEUES = ["default"]
BOUND = 30.0
"""Seconds that calls may take on a slow machine. A claim that waits in vain with ``long_waits`` takes twice as long."""

SomebodyWaits: TypeAlias = Callable[[RedisServer], Awaitable[None]]
"""Returns when a claim waits at the server. The server has no event for this."""


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[RedisServer]:
    server = RedisServer(redis_url)
    yield server
    await server.close()


@pytest.fixture
def scheduler(server: RedisServer) -> RedisScheduler:
    return RedisScheduler(server, RedisEventLog(server))


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that nobody wakes waits for longer than BOUND, so that a wake-up that is lost does not pass for a slow one."""
    monkeypatch.setattr("runyard_backends.redis.scheduler.LANE_POLL_SECONDS", 2 * BOUND)


async def claim_within(scheduler: RedisScheduler, worker: str, seconds: float = BOUND) -> list[Delivery]:
    """Wait and claim as a worker does, until a claim returns jobs."""
    found: list[Delivery] = []
    async with asyncio.timeout(seconds):
        while not found:
            found = await scheduler.claim(worker, QUEUES, 100, wait=2 * BOUND)
    return found


async def test_each_job_is_delivered_once_and_one_lane_at_a_time(redis_url: str) -> None:
    """I2: many workers have connections of their own. Each run is delivered once, and never two of a lane at the same time."""
    lanes, per_lane = 20, 10
    jobs = {lane: [Job(lane, f"r{n}") for n in range(per_lane)] for lane in range(lanes)}
    delivered: Counter[str] = Counter()
    busy: set[str] = set()

    async def work(name: str) -> None:
        server = RedisServer(redis_url)
        scheduler = RedisScheduler(server, RedisEventLog(server))
        while delivered.total() < lanes * per_lane:
            for delivery in await scheduler.claim(name, QUEUES, 5, wait=0.05):
                job = delivery.job
                assert job.lane_key not in busy, "one holder per lane"
                busy.add(job.lane_key)
                delivered[job.id] += 1
                await asyncio.sleep(0)
                busy.discard(job.lane_key)
                following, jobs[job.thread_key] = jobs[job.thread_key][:1], jobs[job.thread_key][1:]
                await scheduler.release(name, [delivery], following)
        await server.close()

    server = RedisServer(redis_url)
    await RedisScheduler(server, RedisEventLog(server)).submit([jobs[lane].pop(0) for lane in jobs])
    async with asyncio.timeout(2 * BOUND), asyncio.TaskGroup() as workers:
        for n in range(8):
            workers.create_task(work(f"w{n}"))
    assert set(delivered.values()) == {1}
    assert await server.command("KEYS", "*:job:*") == []
    assert await server.command("KEYS", "*:lock:*") == []
    await server.close()


@pytest.mark.parametrize("shards", [1, 4])
async def test_a_submission_tells_the_stream_once_and_before_the_job_can_be_taken(redis_url: str, shards: int) -> None:
    """E6: the event is written in the same round trip, also to a stream in another shard. A repetition adds none, nor does a
    run that has begun meanwhile."""
    server = RedisServer(redis_url, shards=shards)
    events = RedisEventLog(server)
    scheduler = RedisScheduler(server, events)
    jobs = [Job(n, "r", lane=lane, queued=queued_event("t", "r", 7, 1)) for n, lane in enumerate(("", "side", "", "side"))]

    async def told(job: Job) -> list[str | None]:
        return [event.id for event in await events.read(job.ref)]

    async def take() -> list[list[str | None]]:
        deliveries = await claim_within(scheduler, "w")
        return [await told(delivery.job) for delivery in deliveries]

    taking = asyncio.create_task(take())
    await scheduler.submit(jobs)
    seen = await taking
    assert seen and all(ids == ["7-1"] for ids in seen)
    await scheduler.submit(jobs)
    await events.append(0, [Event(id="8-1", type="run.started", thread_id="t", run_id="r")])
    await scheduler.submit(jobs)
    assert [await told(job) for job in jobs] == [["7-1", "8-1"], ["7-1"], ["7-1"], ["7-1"]]
    await scheduler.submit([replace(jobs[0], queued=queued_event("t", "r", 9, 2))])
    assert await told(jobs[0]) == ["7-1", "8-1", "9-1"]
    await server.close()


async def test_high_priority_goes_first_and_limit_holds(scheduler: RedisScheduler) -> None:
    await scheduler.submit([Job(n, "r", priority=p) for n, p in enumerate(("low", "normal", "high", "normal", "high"))])  # type: ignore[arg-type]
    first = await scheduler.claim("w", QUEUES, 3)
    assert [delivery.job.priority for delivery in first] == ["high", "high", "normal"]
    assert [delivery.job.priority for delivery in await scheduler.claim("w", QUEUES, 3)] == ["normal", "low"]


async def test_respond_before_release(scheduler: RedisScheduler) -> None:
    """An answer that arrives before the release of the suspended attempt is never lost."""
    job = Job(1, "r")
    await scheduler.submit([job])
    [held] = await scheduler.claim("a", QUEUES, 1)
    await scheduler.submit([job])
    assert await scheduler.claim("a", QUEUES, 1) == [], "a worker never takes its own run from itself"
    await scheduler.release("a", [held])
    [held] = await claim_within(scheduler, "a")
    await scheduler.submit([job])
    [passed] = await scheduler.claim("b", QUEUES, 1)
    assert passed.job == job and passed.token > held.token
    await scheduler.release("a", [held])
    assert await scheduler.renew("a", [held]) == [held] and await scheduler.renew("b", [passed]) == []
    await scheduler.release("b", [passed])
    assert await scheduler.missing_jobs([job]) == [job]


async def test_locks_of_dead_workers_do_not_count(any_scheduler: Scheduler) -> None:
    """O4: a dead worker that reaches only Redis keeps the lock of its run. Another worker takes the run over."""
    mine, theirs, free = (Job(n, "r") for n in range(3))
    await any_scheduler.submit([mine])
    assert len(await any_scheduler.claim("dead", QUEUES, 9)) == 1
    await any_scheduler.submit([theirs])
    assert len(await any_scheduler.claim("dead-2", QUEUES, 9)) == 1
    jobs = [mine, theirs, free]
    assert await any_scheduler.missing_jobs(jobs) == [free]
    assert await any_scheduler.missing_jobs(jobs, ["other", "dead"]) == [mine, free]
    assert await any_scheduler.missing_jobs(jobs, ["dead-2", "dead"]) == jobs
    assert await any_scheduler.missing_jobs(jobs, ["ea", "ad-2"]) == [free]
    await any_scheduler.submit([mine])
    assert await any_scheduler.missing_jobs([mine], ["dead"]) == []
    assert len(await any_scheduler.claim("heir", QUEUES, 9)) == 1
    assert await any_scheduler.missing_jobs([mine], ["dead"]) == []


async def test_a_lock_passes_to_the_next_run_of_its_lane(any_scheduler: Scheduler) -> None:
    """I2, W3: A worker goes on with the next run of the lane. It renews and releases the same lock under the name of that run,
    with or without a renewal between two runs."""
    first, second, third, another = (Job(1, run_id) for run_id in ("r1", "r2", "r3", "r4"))
    await any_scheduler.submit([first])
    [held] = await any_scheduler.claim("a", QUEUES, 9)
    passed = replace(held, job=second)
    assert await any_scheduler.renew("a", [passed]) == []
    assert await any_scheduler.missing_jobs([second]) == [], "the lock has the name of the run that is executed"
    passed = replace(held, job=third)
    await any_scheduler.submit([another])
    assert await any_scheduler.claim("b", QUEUES, 9) == [], "the lane is locked throughout"
    await any_scheduler.release("a", [passed])
    [next_lock] = await any_scheduler.claim("a", QUEUES, 9)
    assert next_lock.job == another
    await any_scheduler.release("a", [passed])
    assert await any_scheduler.renew("a", [passed, next_lock]) == [passed], "only the lock with the same token is the same lock"


async def test_a_passed_lock_is_taken_over_with_its_run(any_scheduler: Scheduler) -> None:
    """O4: the worker is dead, but reaches Redis. After a renewal the lock has the name of the run that is taken over."""
    await any_scheduler.submit([Job(1, "r1")])
    [held] = await any_scheduler.claim("dead", QUEUES, 9)
    passed = replace(held, job=Job(1, "r2"))
    await any_scheduler.renew("dead", [passed])
    assert await any_scheduler.missing_jobs([passed.job], ["dead"]) == [passed.job]
    await any_scheduler.submit([passed.job])
    [taken] = await any_scheduler.claim("heir", QUEUES, 9)
    assert taken.job == passed.job and taken.token > held.token
    assert await any_scheduler.renew("dead", [passed]) == [passed]
    await any_scheduler.release("dead", [passed])
    assert await any_scheduler.renew("heir", [taken]) == [], "a lock of another token is not released"


async def test_release_wakes_who_waits_for_the_lane(scheduler: RedisScheduler) -> None:
    """A job that waits for another run's lock is due when the lock is released, and not only when it would expire."""
    await scheduler.submit([Job(1, "r1")])
    [held] = await scheduler.claim("a", QUEUES, 9)
    await scheduler.submit([Job(1, "r2")])
    assert await scheduler.claim("b", QUEUES, 9) == []
    waiting = asyncio.create_task(scheduler.claim("b", QUEUES, 9, wait=2.0))
    await scheduler.release("a", [held])
    assert [delivery.job.run_id for delivery in await waiting] == ["r2"]


async def test_a_lock_runs_out_unless_renewed(server: RedisServer) -> None:
    """After kill -9 of a holder, the lane is free when the lock expires. The next job of the lane is then delivered."""
    scheduler = RedisScheduler(server, RedisEventLog(server), lock=1.0)
    await scheduler.submit([Job(1, "r1"), Job(2, "r1")])
    dead, alive = sorted(await scheduler.claim("a", QUEUES, 9), key=lambda delivery: delivery.job.thread_key)
    await scheduler.submit([Job(1, "r2"), Job(2, "r2")])
    found: list[Delivery] = []
    async with asyncio.timeout(BOUND):
        while not found:
            assert await scheduler.renew("a", [alive]) == []
            found += await scheduler.claim("b", QUEUES, 9, wait=0.05)
    assert [delivery.job.id for delivery in found] == ["1:r2"]
    assert await scheduler.renew("a", [dead]) == [dead]


@pytest.mark.usefixtures("long_waits")
async def test_a_delayed_job_is_not_early_and_not_forgotten(scheduler: RedisScheduler) -> None:
    """An idle worker gets a job that becomes due before its next claim."""
    waiting = asyncio.create_task(scheduler.claim("w", QUEUES, 9, wait=2 * BOUND))
    await asyncio.sleep(0)
    started = time.monotonic()
    await scheduler.submit([Job(1, "r", delay=0.3)])
    assert await waiting == []
    await claim_within(scheduler, "w")
    assert time.monotonic() - started >= 0.3


async def test_tokens_are_never_issued_twice(server: RedisServer, scheduler: RedisScheduler) -> None:
    """I2: an old token is not valid again after a flush of the server."""
    job = Job(1, "r")
    tokens = []
    for _ in range(3):
        await scheduler.submit([job])
        [held] = await scheduler.claim("w", QUEUES, 1)
        tokens.append(held.token)
        await server.command("FLUSHALL")
    assert len(set(tokens)) == 3 and tokens == sorted(tokens)


async def test_wake_tokens_are_bounded_and_drained(server: RedisServer, scheduler: RedisScheduler) -> None:
    await scheduler.submit([Job(n, "r") for n in range(500)])
    for _ in range(300):
        await scheduler.submit([Job(1, "r")])
    wake = server.keys.wake("default")
    assert 0 < await server.command("LLEN", wake) <= 100
    assert len(await scheduler.claim("w", QUEUES, 499)) == 499
    assert await server.command("LLEN", wake) >= 1, "somebody must hear of the last one"
    assert len(await scheduler.claim("w", QUEUES, 9)) == 1
    assert await server.command("LLEN", wake) == 0
    started = time.monotonic()
    assert await scheduler.claim("w", QUEUES, 9, wait=0.1) == []
    assert time.monotonic() - started >= 0.1, "nothing wakes in vain"


@pytest.mark.usefixtures("long_waits")
async def test_a_waiting_claim_takes_what_it_is_woken_for(
    server: RedisServer, scheduler: RedisScheduler, somebody_waits: SomebodyWaits
) -> None:
    """The claim takes no more than its limit. The next claim gets the rest without a wait."""
    for n in range(8):
        waiting = asyncio.create_task(scheduler.claim("w", QUEUES, 2, wait=2 * BOUND))
        await somebody_waits(server)
        jobs = [Job(10 * n + m, "r") for m in range(5)]
        await scheduler.submit(jobs)
        found = await waiting
        assert 1 <= len(found) <= 2
        async with asyncio.timeout(BOUND):
            while len(found) < len(jobs):
                found += await scheduler.claim("w", QUEUES, 5 - len(found), wait=2 * BOUND)
        assert sorted(delivery.job.thread_key for delivery in found) == [job.thread_key for job in jobs]


@pytest.mark.usefixtures("long_waits")
async def test_a_claim_whose_wait_was_ended_loses_nothing(scheduler: RedisScheduler) -> None:
    """A worker that stops while a job arrives has either taken the job or left it in the queue."""
    for n in range(60):
        job = Job(n, "r")
        waiting = asyncio.create_task(scheduler.claim(f"w{n}", QUEUES, 9, wait=2 * BOUND))
        for _ in range(n % 5):
            await asyncio.sleep(0)
        calls = [scheduler.submit([job]), scheduler.end_wait(f"w{n}")]
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(calls if n % 2 else reversed(calls)))
            taken = await waiting
            left = await scheduler.claim("other", QUEUES, 9)
        assert [delivery.job for delivery in taken + left] == [job]


@pytest.mark.usefixtures("long_waits")
async def test_the_wait_of_one_worker_is_ended_also_before_it_begins(scheduler: RedisScheduler) -> None:
    async with asyncio.timeout(BOUND):
        await scheduler.end_wait("w")
        assert await scheduler.claim("w", QUEUES, 9, wait=2 * BOUND) == []
    await scheduler.end_wait("w")
    await scheduler.submit([Job(1, "r", delay=0.2)])
    assert [delivery.job.thread_key for delivery in await claim_within(scheduler, "other")] == [1]


async def test_a_cancelled_wait_or_call_corrupts_nothing(server: RedisServer, scheduler: RedisScheduler) -> None:
    for n in range(50):
        waiting = asyncio.create_task(scheduler.claim("w", QUEUES, 9, wait=2.0))
        claiming = asyncio.create_task(scheduler.missing_jobs([Job(n, "r")]))
        for _ in range(n % 7):
            await asyncio.sleep(0)
        waiting.cancel()
        claiming.cancel()
        await asyncio.wait([waiting, claiming])
        assert await server.command("ECHO", str(n)) == str(n).encode()
    await scheduler.submit([Job(1, "r")])
    assert len(await claim_within(scheduler, "w")) == 1


async def test_scripts_come_back_after_a_flush(
    server: RedisServer, scheduler: RedisScheduler, somebody_waits: SomebodyWaits
) -> None:
    """A SCRIPT FLUSH between two calls, or during a wait, has no effect. No call of the pipeline is executed twice."""
    for n in range(3):
        waiting = asyncio.create_task(scheduler.claim("w", QUEUES, 9, wait=2.0))
        await somebody_waits(server)
        await server.command("SCRIPT", "FLUSH")
        await scheduler.submit([Job(n, "r1")])
        [held] = await waiting
        await server.command("SCRIPT", "FLUSH")
        await scheduler.release("w", [held], [Job(n, "r2", delay=60)])
        assert await scheduler.missing_jobs([Job(n, "r1"), Job(n, "r2")]) == [Job(n, "r1")]


async def test_flushall_is_found_by_missing_jobs(server: RedisServer, scheduler: RedisScheduler) -> None:
    """After FLUSHALL all jobs and locks are lost. ``missing_jobs`` returns the jobs. Calls of old holders have no effect."""
    jobs = [Job(n, "r") for n in range(1500)]
    await scheduler.submit(jobs)
    held = await scheduler.claim("a", QUEUES, 10)
    assert await scheduler.missing_jobs(jobs) == []
    await server.command("FLUSHALL")
    assert await scheduler.missing_jobs(jobs) == jobs
    await scheduler.submit(jobs)
    again = await scheduler.claim("b", QUEUES, 1500)
    assert await scheduler.renew("a", held) == held
    await scheduler.release("a", held)
    assert await scheduler.renew("b", again) == []


async def test_an_unknown_envelope_is_put_back(server: RedisServer, scheduler: RedisScheduler) -> None:
    """A job of another version is offered again later. It is neither failed nor dropped."""
    await scheduler.submit([Job(1, "r"), Job(2, "r")])
    newer = encode(Job(1, "r")).replace(b"\xa1v\x01", b"\xa1v\x02")
    await server.command("SET", f"{server.keys.prefix(0)}job:1:r", newer)
    assert [delivery.job.thread_key for delivery in await scheduler.claim("w", QUEUES, 9)] == [2]
    assert await server.command("GET", f"{server.keys.prefix(0)}job:1:r") == newer
    assert await scheduler.missing_jobs([Job(1, "r")]) == []
    assert await server.command("EXISTS", f"{server.keys.prefix(0)}lock:1") == 0


async def test_a_worker_id_cannot_forge_a_lock(scheduler: RedisScheduler) -> None:
    with pytest.raises(InvalidInputError):
        await scheduler.claim("a|b", QUEUES, 1)


async def test_cancel_hints_reach_every_listener(server: RedisServer, scheduler: RedisScheduler) -> None:
    async def first() -> RunRef:
        return await anext(scheduler.cancel_hints())

    listening = [asyncio.create_task(first()) for _ in range(2)]
    async with asyncio.timeout(BOUND):
        while (await server.command("PUBSUB", "SHARDNUMSUB", server.keys.cancel_channel))[1] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(2):
            await scheduler.hint_cancel([RunRef(1, "r")])
        assert [await task for task in listening] == [RunRef(1, "r")] * 2


async def starts(scheduler: Scheduler, limit: int, enough: int) -> list[str]:
    """Return the tenants of the next ``enough`` starts, in order, with ``limit`` starts per claim."""
    order: list[str] = []
    while len(order) < enough:
        taken = await scheduler.claim("w", QUEUES, limit)
        order += [delivery.job.tenant for delivery in taken]
        await scheduler.release("w", taken)
    return order[:enough]


@pytest.fixture
def any_scheduler(scheduler: RedisScheduler) -> Scheduler:
    return scheduler


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_a_tenant_with_many_lanes_does_not_starve_another(any_scheduler: Scheduler, limit: int) -> None:
    """R16: a tenant submits 5 runs late. They start within twice its fair share of starts."""
    await any_scheduler.submit([Job(n, "r", tenant="many") for n in range(2000)])
    assert await starts(any_scheduler, limit, 10) == ["many"] * 10
    await any_scheduler.submit([Job(10_000 + n, "r", tenant="few") for n in range(5)])
    order = await starts(any_scheduler, limit, 40)
    assert order.count("few") == 5
    assert len(order) - order[::-1].index("few") <= 2 * 2 * 5


async def test_every_tenant_gets_its_share(any_scheduler: Scheduler) -> None:
    """R16: each tenant with waiting runs gets the same number of starts, in any order of submission."""
    for tenant, runs in (("a", 300), ("b", 60), ("c", 30)):
        await any_scheduler.submit([Job(ord(tenant) * 1000 + n, "r", tenant=tenant) for n in range(runs)])
    order = await starts(any_scheduler, 4, 90)
    assert all(abs(order[:part].count(tenant) - part / 3) <= 4 for part in (30, 60, 90) for tenant in "abc")
    assert set(await starts(any_scheduler, 4, 50)) == {"a", "b"}


@pytest.mark.parametrize("limit", [1, 5])
async def test_a_tenants_high_priority_takes_nobody_elses_turn(any_scheduler: Scheduler, limit: int) -> None:
    """R16: beside 200 runs of high priority of another tenant, a run of normal or low priority waits for about one turn."""
    await any_scheduler.submit([Job(n, "r", tenant="many", priority="high") for n in range(200)])
    assert await starts(any_scheduler, limit, 10) == ["many"] * 10
    await any_scheduler.submit([Job(1000, "r", tenant="few"), Job(1001, "r", tenant="least", priority="low")])
    assert {"few", "least"} <= set(await starts(any_scheduler, limit, 3 + 1))


async def test_priority_orders_a_tenants_own_turns(any_scheduler: Scheduler) -> None:
    """R11: a tenant's runs of high priority take its first turns, even if submitted last. Each priority keeps its order."""
    for tenant in "ab":
        await any_scheduler.submit([Job(ord(tenant) * 10 + n, "r", tenant=tenant) for n in range(3)])
    late: list[Priority] = ["low", "high", "normal", "high"]
    await any_scheduler.submit([Job(n, "r", tenant="a", priority=priority) for n, priority in enumerate(late)])
    order: list[Job] = []
    while len(order) < 10:
        taken = await any_scheduler.claim("w", QUEUES, 1)
        order += [delivery.job for delivery in taken]
        await any_scheduler.release("w", taken)
    assert all({job.tenant for job in order[n : n + 2]} == {"a", "b"} for n in (0, 2, 4))
    own = [job.thread_key for job in order if job.tenant == "a"]
    assert own == [1, 3, 970, 971, 972, 2, 0]


async def test_a_stream_of_others_starves_nobody(any_scheduler: Scheduler) -> None:
    """R16: a tenant waits for at most one run of each tenant before it, however many tenants join later."""
    await any_scheduler.submit([Job(n, "r", tenant="zz") for n in range(9)])
    order = []
    for n in range(60):
        await any_scheduler.submit([Job(100 + 2 * n + m, "r", tenant=f"new{2 * n + m}") for m in range(2)])
        order += await starts(any_scheduler, 1, 1)
    gaps = [n for n, tenant in enumerate(order) if tenant == "zz"]
    assert gaps[:4] == [0, 3, 10, 25]  # each time behind all that waited at its last turn: 2, then 6, then 14
    assert order[1:3] == ["new0", "new1"]


async def test_the_queues_of_a_worker_take_turns(any_scheduler: Scheduler) -> None:
    """R16: a full queue does not delay the other queues of a worker."""
    await any_scheduler.submit([Job(n, "r", tenant="many", queue="first", priority="high") for n in range(200)])
    await any_scheduler.submit([Job(1000, "r", tenant="few", queue="second")])
    order: list[str] = []
    for _ in range(3):
        taken = await any_scheduler.claim("w", ["first", "second"], 1)
        order += [delivery.job.tenant for delivery in taken]
    assert "few" in order


async def test_job_that_becomes_due_gets_a_turn(scheduler: RedisScheduler) -> None:
    """R16: a delayed job, and a job that waited for its lane, get the turn of a job that is submitted when they become due."""
    await scheduler.submit([Job(1, "r0", tenant="few")])
    [held] = await scheduler.claim("holder", QUEUES, 1)
    await scheduler.submit([Job(1, "r1", tenant="few")])
    assert await scheduler.claim("w", QUEUES, 1) == []
    await scheduler.submit([Job(100 + n, "r", tenant="many") for n in range(500)])
    await scheduler.release("holder", [held])
    assert "few" in await starts(scheduler, 1, 4), "its lane is free"
    await scheduler.submit([Job(2, "r", tenant="few", delay=0.02)])
    await asyncio.sleep(0.03)
    assert "few" in await starts(scheduler, 1, 4), "its time has come"


async def test_turns_are_forgotten_with_the_backlog(server: RedisServer, scheduler: RedisScheduler) -> None:
    """The state of the turns is bounded: only tenants with due jobs have turns, and an empty queue has no key."""
    turns = server.keys.prefix(0) + "turns:default"
    await scheduler.submit([Job(n, "r", tenant=f"t{n % 50}") for n in range(500)])
    assert await server.command("ZCARD", turns) == 50
    await scheduler.claim("w", QUEUES, 480)
    assert await server.command("ZCARD", turns) == 20
    await scheduler.claim("w", QUEUES, 500)
    assert await server.command("KEYS", "*default*") == []


async def test_job_of_a_run_that_ended_is_offered_no_more(any_scheduler: Scheduler) -> None:
    """A2: a run expires or is cancelled in a queue without workers. Its job is removed, and other jobs of the queue stay."""
    jobs = [Job(n, "r", tenant=tenant, delay=delay) for n, (tenant, delay) in enumerate(product("ab", (0.0, 60.0)))]
    await any_scheduler.submit(jobs)
    for _ in range(2):
        await any_scheduler.submit([replace(jobs[0], over=True), replace(jobs[1], over=True)])
    assert await any_scheduler.missing_jobs(jobs) == jobs[:2]
    assert [delivery.job.tenant for delivery in await any_scheduler.claim("w", QUEUES, 9)] == ["b"]


async def test_a_job_that_is_put_back_is_offered_to_workers_that_fulfil_its_requirement(any_scheduler: Scheduler) -> None:
    """R12: during the delay, and to no other worker. Each job is taken once, in the order of priority, by turns of tenants."""
    jobs = [
        Job(1, "r", tenant="a", priority="low"),
        Job(2, "r", tenant="a"),
        Job(3, "r", tenant="a", priority="high"),
        Job(4, "r", tenant="b"),
    ]
    await any_scheduler.submit(jobs)
    held = await any_scheduler.claim("clerks", QUEUES, 9, has=["clerk"])
    back = [replace(job, delay=30.0, requires="seller") for job in jobs]
    for delivery, job in zip(sorted(held, key=lambda each: each.job.thread_key), back, strict=True):
        await any_scheduler.release("clerks", [delivery], [job])
    for queues, has in ((QUEUES, ["clerk"]), (["other"], ["seller"]), (QUEUES, [])):
        assert await any_scheduler.claim("clerks", queues, 9, has=has) == []
    assert await any_scheduler.missing_jobs(jobs) == []
    taken = [
        delivery.job.thread_key
        for _ in range(5)
        for delivery in await any_scheduler.claim("sellers", QUEUES, 1, has=["clerk", "seller"])
    ]
    assert sorted(taken) == [1, 2, 3, 4] and [key for key in taken if key < 4] == [3, 2, 1] and taken.index(4) < 2
    assert await any_scheduler.missing_jobs(jobs) == []


async def test_offers_take_turns_with_due_jobs(scheduler: RedisScheduler) -> None:
    """R12: neither the jobs that were put back nor the due jobs of the queue wait for all of the others."""
    back = [Job(n, "r", delay=30.0, requires="seller") for n in range(10)]
    await scheduler.submit([*back, *(Job(n, "r") for n in range(10, 20))])
    taken = [(await scheduler.claim("w", QUEUES, 1, has=["seller"]))[0].job.thread_key for _ in range(20)]
    assert sorted(taken) == [*range(20)]
    assert 3 <= sum(key < 10 for key in taken[:10]) <= 7


async def test_offers_keep_the_turns_of_tenants(scheduler: RedisScheduler) -> None:
    """R16: many low jobs that were put back take no more turns than other jobs, and overtake no high job of their tenant."""
    back = [Job(n, "r", tenant="a", priority="low", delay=30.0, requires=f"seller{n % 3}") for n in range(60)]
    due = [Job(100 + n, "r", tenant="abcdefghij"[n % 10], priority="high") for n in range(100)]
    await scheduler.submit([*back, *due])
    has = [f"seller{n}" for n in range(3)]
    taken = [(await scheduler.claim("w", QUEUES, 1, has=has))[0].job for _ in range(100)]
    assert sum(job.tenant == "a" for job in taken) <= 12
    assert [job.priority for job in taken if job.tenant == "a"][:5] == ["high"] * 5


async def test_each_requirement_gets_its_turn(scheduler: RedisScheduler) -> None:
    back = [Job(n, "r", delay=30.0, requires="xy"[n % 2]) for n in range(20)]
    await scheduler.submit([*back, *(Job(n, "r") for n in range(20, 40))])
    taken = [(await scheduler.claim("w", QUEUES, 1, has=["x", "x\n0", "y", "y\n0"]))[0].job.thread_key for _ in range(20)]
    for kind in (0, 1):
        assert 3 <= sum(key < 20 and key % 2 == kind for key in taken) <= 7


async def test_requirements_are_bounded_and_cost_a_worker_without_them_nothing(
    server: RedisServer, scheduler: RedisScheduler
) -> None:
    """A2: callers choose the names of agents."""
    await scheduler.submit([Job(n, "r", delay=30.0, requires=f"invented{n}") for n in range(150)])
    assert await server.command("ZCARD", f"{server.keys.prefix(0)}offered:default") == 100
    keys = await server.command("DBSIZE")
    assert await scheduler.claim("w", QUEUES, 9, has=[f"agent{n}" for n in range(300)]) == []
    assert await server.command("DBSIZE") == keys


async def test_an_offer_wakes_a_worker_that_fulfils_the_requirement(
    server: RedisServer, redis_url: str, scheduler: RedisScheduler, somebody_waits: SomebodyWaits, long_waits: None
) -> None:
    """R12: at once, although the job is not due."""
    waiting = asyncio.create_task(scheduler.claim("sellers", QUEUES, 9, wait=2 * BOUND, has=["seller"]))
    await somebody_waits(server)
    other = RedisServer(redis_url)
    await RedisScheduler(other, RedisEventLog(other)).submit([Job(1, "r", delay=30.0, requires="seller")])
    async with asyncio.timeout(BOUND):
        assert [delivery.job.thread_key for delivery in await waiting] == [1]
    await other.close()


async def test_offers_that_nobody_takes_are_bounded_and_expire(server: RedisServer, scheduler: RedisScheduler) -> None:
    """A2: nobody fulfils the requirement. The jobs themselves wait on."""
    jobs = [Job(n, "r", delay=30.0, requires="nobody") for n in range(1100)]
    await scheduler.submit(jobs)
    prefix = server.keys.prefix(0)
    due = f"{prefix}due:14:default\nnobody:"
    assert await server.command("ZCARD", due) == 1000
    for key in (due, f"{prefix}turns:default\nnobody", f"{prefix}wake:default\nnobody", f"{prefix}offered:default"):
        assert 0 < await server.command("PTTL", key) <= 30_000
    assert await scheduler.missing_jobs(jobs) == []
    await scheduler.submit([replace(job, over=True) for job in jobs])
    assert await scheduler.claim("w", QUEUES, 9, has=["nobody"]) == []


@pytest.mark.parametrize("gone", ["taken", "ended", "put back for another"])
async def test_the_offer_of_a_job_that_is_gone_takes_no_place(
    server: RedisServer, scheduler: RedisScheduler, gone: str
) -> None:
    """A2: the bound of offers is for jobs that wait. The other workers of the queue take the first jobs when they are due."""
    jobs = [Job(n, "r", delay=0.05, requires="seller") for n in range(1000)]
    await scheduler.submit(jobs)
    if gone == "taken":
        await scheduler.submit([replace(job, delay=0.0) for job in jobs])
        taken = 0
        while taken < len(jobs):
            taken += len(await scheduler.claim("clerks", QUEUES, 400, has=["clerk"]))
    elif gone == "ended":
        await scheduler.submit([replace(job, over=True) for job in jobs])
    else:
        await scheduler.submit([replace(job, delay=30.0, requires=f"seller{job.thread_key % 2}") for job in jobs])
    assert await server.command("EXISTS", f"{server.keys.prefix(0)}due:14:default\nseller:") == 0
    await scheduler.submit([Job(5000, "r", delay=30.0, requires="seller")])
    assert (await scheduler.claim("sellers", QUEUES, 9, has=["seller"]))[0].job.thread_key == 5000


async def test_the_requirement_of_jobs_that_are_gone_takes_no_place(server: RedisServer, scheduler: RedisScheduler) -> None:
    """A2: the bound of requirements is for jobs that wait. An empty queue has no key."""
    jobs = [Job(n, "r", delay=30.0, requires=f"invented{n}") for n in range(100)]
    await scheduler.submit(jobs)
    await scheduler.submit([replace(job, over=True) for job in jobs])
    assert await server.command("DBSIZE") == 0
    await scheduler.submit([Job(5000, "r", delay=30.0, requires="seller")])
    assert [delivery.job.thread_key for delivery in await scheduler.claim("sellers", QUEUES, 9, has=["seller"])] == [5000]


async def test_a_queue_that_nobody_serves_leaves_nothing_behind(server: RedisServer, scheduler: RedisScheduler) -> None:
    """A2: a queue name of a caller takes memory of Redis only while runs wait in the queue."""
    jobs = [Job(n, "r", queue=f"invented{n}", tenant="t", delay=n % 2 * 60.0) for n in range(100)]
    await scheduler.submit(jobs)
    await scheduler.submit([replace(job, over=True) for job in jobs])
    assert await server.command("DBSIZE") == 0


async def test_an_offer_in_a_workers_hands_stays_there(scheduler: RedisScheduler) -> None:
    await scheduler.submit([Job(1, "r")])
    [held] = await scheduler.claim("w", QUEUES, 9)
    await scheduler.submit([replace(held.job, over=True)])
    assert await scheduler.renew("w", [held]) == []


async def test_names_cannot_be_confused(scheduler: RedisScheduler) -> None:
    """Names of queues and tenants that contain the separator are not confused: no job is taken from another queue."""
    await scheduler.submit([Job(1, "r", queue="q:1", tenant="t"), Job(2, "r", queue="q", tenant="1:t")])
    assert [delivery.job.thread_key for delivery in await scheduler.claim("w", ["q"], 9)] == [2]
    assert [delivery.job.thread_key for delivery in await scheduler.claim("w", ["q:1"], 9)] == [1]


async def test_due_job_with_a_far_due_time_is_lost(any_scheduler: Scheduler) -> None:
    """I1: the clock of another Redis wrote the due time. A job that was put back for a short time is not lost."""
    far, near = Job(1, "r", delay=3600.0), Job(2, "r", delay=30.0)
    await any_scheduler.submit([far, near])
    assert await any_scheduler.missing_jobs([far, near]) == [far]
    await any_scheduler.submit([replace(far, delay=0.0)])
    assert await any_scheduler.missing_jobs([far]) == []
    assert [delivery.job.thread_key for delivery in await any_scheduler.claim("w", QUEUES, 9)] == [1]
