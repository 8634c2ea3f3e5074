"""One conversation at a time, whoever executes it: order in a thread, ids that are used twice, tenants."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from runyard import Client, Run, errors
from runyard.domain.states import RunStatus
from tests.support.fleet import Fleet

THREADS, PROMPTS, WORKERS = 20, 50, 4
BOUND = 60.0


def run_id(n: int) -> str:
    return f"r{n:02}"


def words(thread: str, n: int) -> str:
    return f"{thread} says {n}"


async def prompt(client: Client, thread: str) -> list[bool]:
    """Enqueue the thread's prompts one after the other. Returns which were created."""
    return [(await client.enqueue(thread, words(thread, n), run_id(n))).created for n in range(PROMPTS)]


async def runs_of(client: Client, thread: str) -> list[Run]:
    """By order of acceptance."""
    page = await client.runs(thread, limit=PROMPTS + 10)
    return page.items[::-1]


@pytest.mark.slow
async def test_r2_r3_i3_i4_a_thousand_runs_in_order_and_none_twice(fleet: Fleet) -> None:
    """R3, I3: a thread's runs start in order and never overlap. R2, I4: a second enqueue executes nothing. No rescue needed."""
    threads = [f"t{n}" for n in range(THREADS)]
    await asyncio.gather(*(fleet.start() for _ in range(WORKERS)))
    client = fleet.client
    created = await asyncio.gather(*(prompt(client, thread) for thread in threads))
    assert all(all(answers) for answers in created)
    ends = await asyncio.gather(*(client.handle(thread, run_id(PROMPTS - 1)).result(BOUND) for thread in threads))
    assert all(end.ok for end in ends)

    finished = {thread: await runs_of(client, thread) for thread in threads}
    for thread, runs in finished.items():
        assert [run.run_id for run in runs] == [run_id(n) for n in range(PROMPTS)]
        assert {(run.status, run.attempt, run.crash_count) for run in runs} == {(RunStatus.COMPLETED, 1, 0)}
        for before, after in pairwise(runs):
            assert before.fence is not None and after.fence is not None and before.fence < after.fence
            assert before.finished_at is not None and after.started_at is not None
            assert before.finished_at <= after.started_at
            assert before.completion_seq is not None and after.completion_seq == before.completion_seq + 1
        said = [message.text for message in (await client.messages(thread)).items]
        assert said == [words(thread, n) for n in range(PROMPTS) for _ in ("asked", "answered")]

    ended = Counter(await fleet.metric("runyard_attempts_ended_total"))
    assert ended.total() == THREADS * PROMPTS
    assert len(+ended) > 1, "one worker did everything: this proves nothing"

    again = await asyncio.gather(*(prompt(client, thread) for thread in threads))
    assert not any(any(answers) for answers in again)
    with pytest.raises(errors.RunConflictError):
        await client.enqueue(threads[0], "other words", run_id(0))
    # Whatever the repetition had queued would run before this prompt.
    behind = [await client.enqueue(thread, "over", "last") for thread in threads]
    assert all([(await handle.result(BOUND)).ok for handle in behind])
    assert {thread: (await runs_of(client, thread))[:PROMPTS] for thread in threads} == finished
    async with asyncio.timeout(BOUND):  # a worker shows its metrics as they were up to a second ago
        while (total := Counter(await fleet.metric("runyard_attempts_ended_total")).total()) < THREADS * (PROMPTS + 1):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert total == THREADS * (PROMPTS + 1)
    assert set((await fleet.metric("runyard_rescues_total")).values()) == {0.0}


async def test_tenants_with_equal_ids_never_meet(fleet: Fleet) -> None:
    """The same thread, run and fork ids, live at the same time on the same workers, which belong to neither tenant."""
    await asyncio.gather(fleet.start(), fleet.start())
    async with (
        Client.connect(fleet.postgres, redis=fleet.redis, tenant="acme") as acme,
        Client.connect(fleet.postgres, redis=fleet.redis, tenant="zeta") as zeta,
    ):
        sides = {"acme": acme, "zeta": zeta}
        for name, client in sides.items():
            for n in range(10):
                assert (await client.enqueue("t", f"set owner {name} | {name} {n}", run_id(n))).created
            assert (await client.enqueue("t", f"color of {name}?", "asks")).created
        for name, client in sides.items():
            assert (await client.handle("t", "asks").result(BOUND)).status is RunStatus.SUSPENDED
            texts = [message.text for message in (await client.messages("t")).items if message.role == "assistant"]
            assert texts == [f"{name} {n}" for n in range(10)]
            assert [request.payload for request in (await client.requests()).items] == [{"question": f"color of {name}?"}]
            assert (await client.thread("t")).extra["owner"] == name

        await acme.respond("t", "red")
        assert (await acme.handle("t", "asks").result(BOUND)).text == "color of acme? red"
        assert (await zeta.handle("t", "asks").status()) is RunStatus.SUSPENDED
        await zeta.cancel("t", "asks")
        assert (await acme.handle("t", "asks").status()) is RunStatus.COMPLETED

        for name, client in sides.items():
            job = await client.enqueue_fork("t", "fork", "fork-job", after_run_id=run_id(4))
            assert (await job.result(BOUND)).value == {"thread_id": "fork"}
            texts = [message.text for message in (await client.messages("fork")).items if message.role == "assistant"]
            assert texts == [f"{name} {n}" for n in range(5)]
            assert (await client.thread("fork")).extra["owner"] == name
            probe = await client.fork_once("t", "tool echo hi", run_id(4), run_id="probe", wait=BOUND)
            assert probe.text == "hi"

        await acme.delete_thread("t")
        assert len((await zeta.messages("t")).items) == 20
        assert (await (await zeta.enqueue("fork", "still here", run_id(0) + "x")).result(BOUND)).text == "still here"
        assert [thread.thread_id for thread in (await zeta.threads()).items] == ["t", "fork"]
        assert (await fleet.client.threads()).items == []  # the workers' own tenant
        with pytest.raises(errors.RunNotFoundError):
            await fleet.client.run("t", run_id(0))
    assert set((await fleet.metric("runyard_rescues_total")).values()) == {0.0}
