"""Retries, timeouts and due times against real servers (R11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from runyard import App, Client, Message, RetryPolicy, RunContext, RunStatus
from runyard.support import backend_urls
from runyard_api.worker.process import serve

BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""


@asynccontextmanager
async def serving(app: App, postgres_url: str, redis_url: str) -> AsyncIterator[Client]:
    """A worker of ``app`` in this process, and a client."""
    backend = await backend_urls.connect(postgres_url, redis=redis_url)
    async with serve(app, backend, grace=1), Client.connect(postgres_url, redis=redis_url) as client:
        yield client
    await backend.close()


async def test_r11_errors_are_retried_with_backoff_until_the_attempts_are_used_up(postgres_url: str, redis_url: str) -> None:
    began: dict[str, list[float]] = {}

    async def agent(ctx: RunContext) -> None:
        began.setdefault(ctx.run_id, []).append(asyncio.get_running_loop().time())
        if ctx.run_id == "lasts" or len(began[ctx.run_id]) < 3:
            raise ConnectionError("the provider is away")
        await ctx.append(Message.assistant("done"))

    async with serving(App({"agent": agent}), postgres_url, redis_url) as client:
        retry = RetryPolicy(initial=0.3, factor=2, jitter=0)
        handles = [await client.enqueue(f"t-{name}", "hi", name, max_attempts=3, retry=retry) for name in ("passes", "lasts")]
        passed, failed = [await handle.result(BOUND) for handle in handles]
    assert passed.ok and passed.text == "done"
    assert (passed.run.attempt, passed.run.error_count, passed.run.crash_count) == (3, 2, 0)
    assert failed.status is RunStatus.FAILED and failed.error is not None
    assert (failed.error.code, failed.run.attempt) == ("agent_error", 3)
    for times in began.values():
        assert times[1] - times[0] >= 0.29
        assert times[2] - times[1] >= 0.59


async def test_r11_each_class_of_errors_has_its_policy(postgres_url: str, redis_url: str) -> None:
    calls: list[str] = []

    async def agent(ctx: RunContext) -> None:
        calls.append(ctx.run_id)
        raise {"limit": TimeoutError, "input": KeyError}[ctx.run_id]("no")

    async with serving(App({"agent": agent}), postgres_url, redis_url) as client:
        retry = RetryPolicy(initial=60, errors={"OSError": RetryPolicy(initial=0.01), "LookupError": None})
        for name in ("limit", "input"):
            result = await (await client.enqueue(name, "hi", name, max_attempts=3, retry=retry)).result(BOUND)
            assert result.status is RunStatus.FAILED
    assert calls == ["limit"] * 3 + ["input"]


async def test_r11_a_timeout_bounds_an_attempt(postgres_url: str, redis_url: str) -> None:
    """The lane goes on; what the run said stays out of the context."""

    async def agent(ctx: RunContext) -> None:
        if ctx.run_id == "slow":
            await ctx.append(Message.assistant("half"))
            await asyncio.Event().wait()
        await ctx.append(Message.assistant("done"))

    async with serving(App({"agent": agent}), postgres_url, redis_url) as client:
        slow = await client.enqueue("t", "hi", "slow", timeout=0.3)
        behind = await client.enqueue("t", "hi", "behind")
        result = await slow.result(BOUND)
        assert result.error is not None and result.error.code == "run_timeout"
        assert (await behind.result(BOUND)).text == "done"
        assert [message.text for message in (await client.messages("t")).items] == ["hi", "done"]


async def test_r11_a_run_that_is_not_due_does_not_block_its_lane(postgres_url: str, redis_url: str) -> None:
    """It is admitted when it is due, behind what was admitted by then, and starts about then."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(ctx.run_id))

    async with serving(App({"agent": agent}), postgres_url, redis_url) as client:
        later = await client.enqueue("t", "hi", "later", delay=3.0)
        at = datetime.now(UTC) + timedelta(seconds=4)
        latest = await client.enqueue("t", "hi", "latest", run_at=at)
        now = await client.enqueue("t", "hi", "now")
        assert (await now.result(BOUND)).ok
        assert await later.status() is RunStatus.QUEUED
        results = [await handle.result(BOUND) for handle in (later, latest)]
        texts = [message.text for message in (await client.messages("t")).items if message.role == "assistant"]
    assert texts == ["now", "later", "latest"]
    for result in results:
        assert result.run.run_at is not None and result.run.started_at is not None
        assert result.run.started_at >= result.run.run_at


async def test_r11_a_retry_keeps_its_place_in_the_lane(postgres_url: str, redis_url: str) -> None:
    """I4: what is behind a run that waits for its next attempt does not overtake it."""

    async def agent(ctx: RunContext) -> None:
        if ctx.run_id == "first" and ctx.attempt == 1:
            raise ConnectionError("again")
        await ctx.append(Message.assistant(ctx.run_id))

    async with serving(App({"agent": agent}), postgres_url, redis_url) as client:
        first = await client.enqueue("t", "hi", "first", max_attempts=2, retry=RetryPolicy(initial=0.5))
        second = await client.enqueue("t", "hi", "second")
        assert (await second.result(BOUND)).ok
        assert (await first.result(BOUND)).ok
        texts = [message.text for message in (await client.messages("t")).items if message.role == "assistant"]
    assert texts == ["first", "second"]
