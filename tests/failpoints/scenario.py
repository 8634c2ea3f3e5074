"""What every case of the sweep goes through, and what has to be true afterwards, whatever happened meanwhile.

:func:`drive` is a web backend that follows the rules: it names its runs, and repeats every call that was not answered. It may
be killed and started again from the beginning.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from runyard import Client, RetryPolicy, RunHandle, RunResult, RunStatus
from runyard.domain.derived_ids import candidate_id, first_prompt_id, wait_id
from runyard.errors import RunEndedError
from runyard.models import STREAM_ENDS, Message
from runyard.ports.refs import AttemptToken
from runyard.support.store_retries import patiently
from tests.support.agents.sweep import KIDS, MENDED

T = TypeVar("T")

THREAD: Final = "t"
UNHEARD: Final = "unheard"
GIVEN_UP: Final = "given-up"
PARKED: Final = "parked"
CHAINED: Final = "chained"
LINKS: Final = ("eight", "nine", "ten")
"""The runs of CHAINED. They are queued together, so that the completion of one claims the next."""
WAIT: Final = 150.0
"""Seconds that a run may take: two crashes and their discovery take up to 18, and four times that beside other tests."""


@dataclass(frozen=True)
class Names:
    """The ids of one case: unlike those of any other, since channels of Redis are shared by its databases."""

    case: str

    def __getattr__(self, name: str) -> str:
        return f"{self.case}-{name}"


async def drive() -> None:
    """The web backend. The environment names the servers and the case."""
    env = os.environ
    names = Names(env["SWEEP_CASE"])
    async with Client.connect(env["RUNYARD_POSTGRES_URL"]) as client:  # without Redis: the reconciler has to find it
        unheard = await patiently(lambda: client.enqueue(UNHEARD, "say-heard", names.unheard))
    async with Client.connect(env["RUNYARD_POSTGRES_URL"], redis=env["RUNYARD_REDIS_URL"]) as client:
        driver = _Driver(client, names, Path(env["SWEEP_FIRED"]))
        await driver.run()
        await driver.ended(client.handle(UNHEARD, unheard.id))


class _Driver:
    def __init__(self, client: Client, names: Names, fired: Path) -> None:
        self.client, self.names, self.fired = client, names, fired

    async def run(self) -> None:
        client, names = self.client, self.names
        links = [await self.enqueue(f"say-{link}", getattr(names, link), CHAINED) for link in LINKS]
        for link in links:
            await self.ended(link)
        asked = await self.enqueue("tool-a tool-b ask-go say-one", names.asked)
        await self.stopped(asked)
        await patiently(lambda: client.respond(THREAD, "yes", response_id=names.answer))
        await self.ended(asked)
        await self.ended(await self.enqueue("stumble say-two", names.stumbles, delay=0.2))
        breaks = await self.enqueue("break say-three", names.breaks)
        if (await self.ended(breaks)).status is RunStatus.FAILED:
            Path(os.environ[MENDED]).touch()
            with suppress(RunEndedError):  # redriven by a call that was not answered
                await patiently(lambda: client.redrive(THREAD, names.breaks))
            await self.ended(breaks)
        parked = await self.enqueue("nap wait-go kids say-seven", names.parked, PARKED)
        await patiently(lambda: client.signal(PARKED, "wait-go", "on", signal_id=names.signal))
        await self.ended(parked)
        await self.cancel(await self.enqueue("hang", names.hangs))
        await self.give_up(await self.enqueue("ask-why", names.given_up, GIVEN_UP))
        await patiently(lambda: client.fork(THREAD, names.fork, names.asked))
        job = await patiently(lambda: client.enqueue_fork(THREAD, names.forked, names.job, after_run_id=names.asked))
        await self.ended(job)
        probe = await patiently(lambda: client.fork_once(THREAD, "say-probed", names.asked, run_id=names.probe, wait=WAIT))
        assert probe.text == "say-probed"
        many = {"messages": TRIED, "threads": True, "max_parallel": 1, "run_id": names.many, "wait": WAIT}
        tried = await patiently(lambda: client.fork_many(THREAD, names.asked, **many))  # type: ignore[arg-type]
        assert [candidate.text for candidate in tried.results] == TRIED
        await self.ended(await self.enqueue("tool-c say-four", names.forks_own, names.fork))

    async def give_up(self, handle: RunHandle) -> None:
        await self.stopped(handle)
        await patiently(lambda: self.client.abort_pending(GIVEN_UP, "nobody answers"))
        await self.ended(handle)

    async def enqueue(self, text: str, run_id: str, thread_id: str = THREAD, delay: float | None = None) -> RunHandle:
        how = {"delay": delay, "max_attempts": 3, "retry": RetryPolicy(initial=0.1)}
        return await patiently(lambda: self.client.enqueue(thread_id, text, run_id, **how))

    async def stopped(self, handle: RunHandle) -> RunResult:
        return await patiently(lambda: handle.result(WAIT))

    async def ended(self, handle: RunHandle) -> RunResult:
        result = await self.stopped(handle)
        while not result.run.ended:
            result = await self.stopped(handle)
        return result

    async def cancel(self, handle: RunHandle) -> None:
        """Cancel the run once it runs and what the case waits for has come to pass."""

        async def running() -> bool:
            run = await patiently(handle.run)
            return run.ended or run.status is RunStatus.RUNNING

        async def fired() -> bool:
            reached = self.fired.read_text().split() if self.fired.exists() else []
            return len(set(reached)) >= int(os.environ["SWEEP_POINTS"])

        await until(running, WAIT)
        await until(fired, float(os.environ["SWEEP_HOLD"]))
        if not (await patiently(handle.run)).ended:
            await patiently(handle.cancel)
        await self.ended(handle)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Ask until ``condition`` holds, so many seconds at most; whether it did."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - the state is another process's
                await asyncio.sleep(0.02)
    except TimeoutError:
        return False
    return True


TRIED: Final = ["say-five", "say-six"]
FIRST: Final = [
    "user: tool-a tool-b ask-go say-one", "call tool-a", "result tool-a", "call tool-b", "result tool-b",
    "assistant: answered yes", "assistant: say-one",
]  # fmt: skip
LATER: Final = ["user: stumble say-two", "assistant: say-two", "user: break say-three", "assistant: say-three"]
WAITED: Final = ["user: nap wait-go kids say-seven", "assistant: went on", "assistant: say-ann say-bob", "assistant: say-seven"]
OWN: Final = ["user: tool-c say-four", "call tool-c", "result tool-c", "assistant: say-four"]


async def check(client: Client, names: Names, world: Path, crashes: int) -> None:
    """The history that the scenario has to leave (I1 to I5, R3, R6, R9, F1, E2). ``crashes``: how many workers died."""
    effects = [line.split() for line in world.read_text().splitlines()]
    statuses = {run.run_id: run.status for run in (await client.runs()).items}
    assert {statuses.pop(name) for name in (names.hangs, names.given_up)} == {RunStatus.CANCELLED}
    own = ("parked", "asked", "stumbles", "breaks", "job", "probe", "many", "forks_own", "unheard", *LINKS)
    tried = [candidate_id(THREAD, names.many, n) for n in range(len(TRIED))]
    key = await client.backend.threads.thread_key(PARKED)
    assert key is not None
    kids = [wait_id(key, names.parked, "child", name) for name in KIDS]
    completed = [*(getattr(names, name) for name in own), *map(first_prompt_id, tried), *kids]
    same(statuses, dict.fromkeys(completed, RunStatus.COMPLETED))

    same(await history(client, THREAD), FIRST + LATER)
    same(await history(client, GIVEN_UP), ["user: ask-why", "assistant: aborted: nobody answers"])
    same(await history(client, PARKED), WAITED)
    same(await history(client, CHAINED), [f"{role}: say-{link}" for link in LINKS for role in ("user", "assistant")])
    same(await history(client, names.fork), FIRST + OWN)
    same(await history(client, names.forked), FIRST)
    for thread, word in zip(tried, TRIED, strict=True):
        same(await history(client, thread), [*FIRST, f"user: {word}", f"assistant: {word}"])
    source, fork = [(await client.messages(thread)).items for thread in (THREAD, names.fork)]
    same([message.id for message in fork[: len(FIRST)]], [message.id for message in source[: len(FIRST)]])
    same((await client.thread(THREAD)).extra, {"asked": "ask-go"})

    [request] = (await client.requests(THREAD, pending=False)).items
    same(request.answer, "yes")
    for run in (await client.runs()).items:
        await _one_end(client, run.thread_id, run.run_id, run.status, parks=run.run_id == names.parked)
        assert run.crash_count <= crashes, run

    same(
        {f"{run} {key}" for run, key, *_ in effects},
        {f"{names.asked} tool-a", f"{names.asked} tool-b", f"{names.forks_own} tool-c"},
    )
    await _effects_once(client, effects)


def same(found: object, expected: object) -> None:
    assert found == expected, f"{found!r} instead of {expected!r}"


async def history(client: Client, thread_id: str) -> list[str]:
    """What counts of a thread, in order; the same message twice would be there twice."""
    messages = (await client.messages(thread_id)).items
    assert len({message.id for message in messages}) == len(messages)
    same([message.parent_id for message in messages], [None, *(message.id for message in messages[:-1])])
    return [_words(message) for message in messages]


def _words(message: Message) -> str:
    if message.tool_calls:
        return f"call {message.tool_calls[0].name}"
    if message.tool_results:
        return f"result {message.metadata['word']}"
    return f"{message.role}: {message.text}"


async def _one_end(client: Client, thread_id: str, run_id: str, status: RunStatus, *, parks: bool) -> None:
    """A reader from the beginning sees one end of each kind that the run had, its last one at the end (E2).

    ``parks``: whether the run waited several times.
    """
    events = [event async for event in client.stream(thread_id, run_id)]
    ends = Counter(event.type for event in events if event.type in STREAM_ENDS)
    assert events[-1].type == f"run.{status}", (run_id, [event.type for event in events])
    assert set(ends.values()) == {1} or (parks and ends[f"run.{status}"] == 1), (run_id, ends)


async def _effects_once(client: Client, effects: list[list[str]]) -> None:
    """No attempt touched the world twice, and none after the one whose step was recorded (the ledger's promise)."""
    same(len({(run, key, fence) for run, key, fence, _ in effects}), len(effects))
    for run in (await client.runs()).items:
        key = await client.backend.threads.thread_key(run.thread_id)
        assert key is not None and run.fence is not None
        ledger = await client.backend.runs.ledger(AttemptToken(key, run.run_id, run.fence))
        mine = [line for line in effects if line[0] == run.run_id]
        for _, step, fence, _ in mine:
            assert int(fence) <= ledger.steps[step].fence, f"{step} of {run.run_id} was repeated after it finished: {mine}"
        same(len({idempotency_key for *_, idempotency_key in mine}), len({step for _, step, *_ in mine}))
