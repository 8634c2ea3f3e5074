"""How many commands of Redis a run costs. Counts do not depend on the load of the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from runyard.models import Event
from runyard.ports.scheduling import Job, queued_event
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer

QUEUES = ["default"]
NOT_COUNTED = {"info", "config|resetstat", "client|setinfo", "client|setname", "script|load", "hello", "select"}


@pytest.fixture
async def server(redis_url: str) -> AsyncIterator[RedisServer]:
    server = RedisServer(redis_url)
    yield server
    await server.close()


async def counted(server: RedisServer) -> Counter[str]:
    """Return the number of executions of each command since the last call, those in scripts included."""
    info = (await server.command("INFO", "commandstats")).decode()
    await server.command("CONFIG", "RESETSTAT")
    lines = (line.removeprefix("cmdstat_").split(":calls=") for line in info.splitlines() if ":calls=" in line)
    return Counter({name: int(rest.split(",")[0]) for name, rest in lines if name not in NOT_COUNTED})


def event(job: Job, fence: int, n: int, type_: str = "message.completed") -> Event:
    return Event(id=f"{fence}-{n}", type=type_, thread_id="t", run_id=job.run_id)


async def runs(scheduler: RedisScheduler, log: RedisEventLog, keys: range) -> None:
    """Make the calls of simple runs that are submitted, executed and ended together."""
    jobs = [Job(key, "r", queued=queued_event("t", "r", 1, 1)) for key in keys]
    await scheduler.submit(jobs)
    deliveries = await scheduler.claim("w", QUEUES, 100, wait=2.0)
    assert len(deliveries) == len(jobs)
    await log.append_many([(job.ref, [event(job, 2, 1, "run.started"), event(job, 2, 2)]) for job in jobs])
    await log.append_many([(job.ref, [event(job, 2, 3), event(job, 2, 4, "run.completed")]) for job in jobs])
    await scheduler.release("w", deliveries)


@pytest.mark.parametrize(("together", "most"), [(1, 51), (50, 27)])
async def test_a_simple_run_costs_few_commands(server: RedisServer, together: int, most: int) -> None:
    """A run that is alone, and one of many that share their calls. The first runs load the scripts and set expiries."""
    log = RedisEventLog(server)
    scheduler = RedisScheduler(server, log)
    await runs(scheduler, log, range(together))
    await counted(server)
    await runs(scheduler, log, range(1000, 1000 + together))
    found = await counted(server)
    # The calls: the queued event and the submission, the claim, two appends, the release.
    assert found.pop("evalsha") == 6 and found.pop("blpop") == 1
    assert found["xadd"] == 5 * together and found["spublish"] == 5 * together and found["xrevrange"] == 0
    sweep = 8 * (found["zrangebyscore"] // 3)  # once a second, of any number of runs
    assert found.total() - sweep <= most * together, found


@pytest.mark.parametrize(("together", "most"), [(1, 24), (50, 19)])
async def test_a_tool_call_costs_few_commands(server: RedisServer, together: int, most: int) -> None:
    """The events of a tool call of a running run: the call and the start of the tool, then its end and the result."""
    log, jobs = RedisEventLog(server), [Job(key, "r") for key in range(together)]
    await log.append_many([(job.ref, [event(job, 2, 1, "run.started")]) for job in jobs])
    await counted(server)
    await log.append_many([(job.ref, [event(job, 2, 2), event(job, 2, 3, "tool.started")]) for job in jobs])
    await log.append_many([(job.ref, [event(job, 2, 4, "tool.completed"), event(job, 2, 5)]) for job in jobs])
    found = await counted(server)
    assert found.pop("evalsha") == 2
    assert found["xadd"] == 4 * together and found["spublish"] == 2 * together and found["xrevrange"] == 0
    assert found.total() <= most * together, found


async def chained(log: RedisEventLog, keys: range) -> None:
    """Make the calls of simple runs that the completions of other runs have claimed."""
    jobs = [Job(key, "r", queued=queued_event("t", "r", 1, 1)) for key in keys]
    first = [(job.queued, event(job, 2, 1, "run.started"), event(job, 2, 2)) for job in jobs]
    await log.append_many([(job.ref, [one for one in events if one]) for job, events in zip(jobs, first, strict=True)])
    await log.append_many([(job.ref, [event(job, 2, 3), event(job, 2, 4, "run.completed")]) for job in jobs])


@pytest.mark.parametrize(("together", "most"), [(1, 22), (50, 18)])
async def test_a_chained_run_costs_fewer_commands(server: RedisServer, together: int, most: int) -> None:
    """No submission, no claim and no release. The queued event shares a message with the first events of the attempt."""
    log = RedisEventLog(server)
    await chained(log, range(together))
    await counted(server)
    await chained(log, range(1000, 1000 + together))
    found = await counted(server)
    assert found.pop("evalsha") == 2
    assert found["xadd"] == 5 * together and found["spublish"] == 3 * together
    sweep = 8 * (found["zrangebyscore"] // 3)  # once a second, of any number of runs
    assert found.total() - sweep <= most * together, found


async def test_a_delta_costs_few_commands(server: RedisServer) -> None:
    """Another event of a running run: the clock, the entry, the message, the account, and a look at the expiry."""
    log, job = RedisEventLog(server), Job(1, "r")
    await log.append(1, [event(job, 1, n, "message.delta") for n in (1, 2)])
    index = f"{server.keys.prefix(0)}running_streams"
    await server.command("ZINCRBY", index, 60_000, "1:r")  # the expiry is recent, however slow the machine is
    await counted(server)
    await log.append(1, [event(job, 1, 3, "message.delta")])
    found = await counted(server)
    assert found == Counter(evalsha=1, time=1, xadd=1, spublish=1, hincrby=1, zscore=1)
