"""Prompts that are accepted in one call (R1 to R4, R11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.limits import Limit
from runyard.domain.states import RunStatus
from runyard.models import RunOptions
from runyard.ports.commands import AcceptRequest
from runyard.ports.queries import PageRequest
from runyard.ports.results import Accepted

from .world import T, World, now, said, user

pytestmark = pytest.mark.asyncio

REJECT = RunOptions(multitask_strategy="reject")


def prompt(run_id: str, text: str | None = "hi", *, thread: str = T, **fields: Any) -> AcceptRequest:
    message = None if text is None else user(text)
    return AcceptRequest(thread_id=thread, run_id=run_id, input=message, **fields)


def words(outcome: Accepted | errors.RunyardError) -> str:
    """Return the outcome as a word: the code of the error, ``new`` or ``known``."""
    return outcome.code if isinstance(outcome, errors.RunyardError) else "new" if outcome.created else "known"


async def accept(world: World, *requests: AcceptRequest) -> list[str]:
    outcomes = await world.runs.accept_many(requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, Accepted):
            assert (outcome.run.thread_id, outcome.run.run_id) == (request.thread_id, request.run_id)
    return [words(outcome) for outcome in outcomes]


class TestBatches:
    async def test_r1_each_prompt_is_a_run_of_its_thread(self, world: World) -> None:
        """The runs have the values of single accepts. Unknown threads are created."""
        due = now() + timedelta(hours=1)
        many = [
            prompt("plain", thread="a"),
            prompt("rich", thread="b", agent="helper", queue="q", priority="high", metadata={"n": 1}),
            prompt("later", thread="a", run_at=due),
            prompt("beside", thread="a", options=RunOptions(parallel=True, timeout=5.0)),
        ]
        outcomes = await world.runs.accept_many(many)
        single = [await world.runs.accept(prompt("rich", thread="c", agent="helper", queue="q", priority="high"))]
        assert [words(outcome) for outcome in outcomes] == ["new"] * 4
        for request, outcome in zip(many, outcomes, strict=True):
            assert isinstance(outcome, Accepted)
            assert outcome.run == await world.run(request.run_id, request.thread_id)
        assert isinstance(outcomes[1], Accepted)
        assert outcomes[1].run.agent == single[0].run.agent and outcomes[1].run.queue == single[0].run.queue
        assert (await world.run("later", "a")).run_at == due and (await world.run("beside", "a")).options.timeout == 5.0

    async def test_nothing_is_accepted_for_no_prompts(self, world: World) -> None:
        assert await world.runs.accept_many([]) == []

    async def test_r2_a_repeated_batch_changes_nothing(self, world: World) -> None:
        many = [prompt(f"r{n}", thread=f"t{n % 2}") for n in range(6)]
        assert await accept(world, *many) == ["new"] * 6
        assert await accept(world, *many, prompt("r6")) == ["known"] * 6 + ["new"]
        assert len((await world.runs.runs()).items) == 7

    async def test_r2_ids_that_repeat_in_one_batch(self, world: World) -> None:
        """A repeated prompt is the same run. A different prompt with the same id is a conflict. On another thread, the id is
        free."""
        found = await accept(world, prompt("r"), prompt("r"), prompt("r", "other"), prompt("r", thread="u"), prompt("r"))
        assert found == ["new", "known", "run_conflict", "new", "known"]

    async def test_r2_a_repetition_lacks_large_values(self, world: World) -> None:
        """A repeated prompt returns the run without its large values. The large values of a thousand runs would not fit into
        one reply."""
        large = prompt("r", "x" * 20_000)
        assert await accept(world, large) == ["new"]
        await world.finish(await world.take("r"), said("y"), result={"large": "z" * 20_000})
        [again] = await world.runs.accept_many([large])
        assert isinstance(again, Accepted) and not again.created and again.run.status is RunStatus.COMPLETED
        assert (again.run.input, again.run.result, sorted(again.run.omitted)) == (None, None, ["input", "result"])

    async def test_r3_prompts_of_one_thread_keep_their_order(self, world: World) -> None:
        """The prompts of one thread keep their order. The batch also has prompts of other threads and prompts with options. A
        second batch is accepted at the same time."""
        alone = RunOptions(expires_in=600.0)
        first = [prompt(f"r{n}", thread=f"t{n % 3}", options=alone if n % 5 == 0 else RunOptions()) for n in range(30)]
        second = [prompt(f"s{n}", thread=f"t{n % 3}") for n in range(30)]
        earlier, later = await asyncio.gather(accept(world, *first), accept(world, *second))
        assert earlier == later == ["new"] * 30
        for thread in range(3):
            runs = (await world.runs.runs(page=PageRequest(limit=100))).items
            order = [run.run_id for run in reversed(runs) if run.thread_id == f"t{thread}"]
            assert [one for one in order if one[0] == "r"] == [r.run_id for r in first if r.thread_id == f"t{thread}"]
            assert [one for one in order if one[0] == "s"] == [r.run_id for r in second if r.thread_id == f"t{thread}"]
            assert (await world.claim(order[1], thread=f"t{thread}")).outcome != "claimed"
            assert (await world.claim(order[0], thread=f"t{thread}")).outcome == "claimed"

    async def test_many_prompts_of_one_thread(self, world: World) -> None:
        assert await accept(world, *(prompt(f"r{n}") for n in range(200))) == ["new"] * 200
        for place in range(3):
            await world.finish(await world.take(f"r{place}"), said("x"))
        assert (await world.claim("r199")).outcome != "claimed"

    async def test_a_refused_prompt_spares_the_others(self, world: World) -> None:
        """Each refused prompt gets the error of a single accept. The other prompts are accepted."""
        await world.turn("done")
        await world.start("busy", thread="busy")
        many = [
            prompt("a"),
            prompt("nothing", None, thread="empty"),
            prompt("b", thread="busy", options=REJECT),
            prompt("done", "other words"),
            prompt("c", parent_id="00000000-0000-7000-8000-000000000000", thread="busy"),
            prompt("d", thread="new"),
        ]
        found = await accept(world, *many)
        single = []
        for request in many[1:5]:
            with pytest.raises(errors.RunyardError) as refused:
                await world.runs.accept(request)
            single.append(refused.value.code)
        assert found == ["new", *single, "new"]
        assert await world.threads.thread("empty") is None

    async def test_a_prompt_that_is_too_large_spares_the_others(self, world: World) -> None:
        await world.backend.limits.set_limit(Limit(name="message_bytes", most=1000))
        found = await accept(world, prompt("a"), prompt("b", "x" * 2000), prompt("c"))
        assert found == ["new", "message_too_large", "new"]

    async def test_q3_a_full_queue_refuses_the_rest(self, world: World) -> None:
        await world.backend.limits.set_limit(Limit(name="queued_per_lane", most=3))
        found = await accept(world, *(prompt(f"r{n}") for n in range(5)), prompt("u", thread="u"))
        assert found == ["new"] * 3 + ["queue_full"] * 2 + ["new"]

    async def test_prompts_are_of_the_stores_tenant(self, world: World) -> None:
        other = await world.factory("other")
        assert await accept(world, prompt("r"), prompt("s")) == ["new", "new"]
        outcomes = await other.runs.accept_many([prompt("r", "other words"), prompt("s", "other words")])
        assert [words(outcome) for outcome in outcomes] == ["new", "new"]
        assert len((await world.runs.runs()).items) == 2
