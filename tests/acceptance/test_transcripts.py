"""I7: whatever ended a run in the middle, every provider takes the conversation that is left (R5, R9, R10, F6, H8).

Each history is made by an agent on one protocol and then continued, in forks, by agents on all of them. The servers refuse what
the providers refuse, dangling tool calls first of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from runyard import Client, Message, RetryPolicy, RunHandle, RunStatus
from runyard.support import backend_urls
from runyard_api.worker.process import serve
from tests.integration.worker.test_worker_host import serving
from tests.support.agents.desk import READERS, desk, model
from tests.support.fleet import Fleet
from tests.support.long_form import some
from tests.support.providers.conversation import MODELS
from tests.support.providers.server import Providers

BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""


@pytest.fixture
def urls(request: pytest.FixtureRequest) -> dict[str, str]:
    """Where to connect to, for each of the stores."""
    if request.param == "memory":
        return {"url": "memory://"}
    return {"url": request.getfixturevalue("postgres_url"), "redis": request.getfixturevalue("redis_url")}


@pytest.fixture
async def client(urls: dict[str, str], providers: Providers) -> AsyncIterator[Client]:
    """A client, and a worker in this process."""
    providers.scenario = model
    backend = await backend_urls.connect(**urls)
    working = serve if "redis" in urls else serving
    async with working(desk(), backend, grace=1):
        yield Client(backend)
    await backend.close()


async def stored(handle: RunHandle, *roles: str) -> None:
    """Once the run has stored messages of these roles."""
    missing = list(roles)
    async for event in handle.stream():
        message = event.data.get("message")
        if event.type == "message.completed" and isinstance(message, dict) and message["role"] in missing:
            missing.remove(str(message["role"]))
        if not missing:
            return


async def cancelled(client: Client, thread: str, agent: str) -> str:
    """R10 keep: one tool of two was through."""
    handle = await client.enqueue(thread, "quick slow", agent=agent)
    await stored(handle, "tool")
    await client.cancel(thread, handle.id, keep=True)
    assert (await handle.result(BOUND)).status is RunStatus.CANCELLED
    last = (await client.messages(thread)).items[-1]
    assert [result.is_error for result in last.tool_results] == [True]
    return thread


async def cancelled_later(client: Client, thread: str, agent: str) -> str:
    """R10 keep: in the second cycle, where nothing was through."""
    handle = await client.enqueue(thread, "quick, slow slow", agent=agent)
    await stored(handle, "tool", "assistant", "assistant")
    await client.cancel(thread, handle.id, keep=True)
    assert (await handle.result(BOUND)).status is RunStatus.CANCELLED
    return thread


async def timed_out(client: Client, thread: str, agent: str) -> str:
    """R9, R11: the first attempt has no time left for one tool of two; the next one goes on with it."""
    retry = RetryPolicy(initial=0)
    handle = await client.enqueue(thread, "quick slow", agent=agent, timeout=3.0, max_attempts=9, retry=retry)
    result = await handle.result(BOUND)
    assert result.ok and result.text == "Done: quick slow", result.error
    return thread


async def aborted(client: Client, thread: str, agent: str) -> str:
    """H8: while it waited for an approval."""
    handle = await client.enqueue(thread, "quick refund", agent=agent)
    assert (await handle.result(BOUND)).status is RunStatus.SUSPENDED
    await client.abort_pending(thread, "changed my mind")
    assert (await handle.result(BOUND)).status is RunStatus.CANCELLED
    last = (await client.messages(thread)).items[-1]
    assert (last.role, last.stop_reason) == ("assistant", "aborted")
    return thread


async def given_up(client: Client, thread: str, agent: str) -> str:
    """R10 keep: while it waited for two approvals."""
    handle = await client.enqueue(thread, "refund quick refund", agent=agent)
    assert (await handle.result(BOUND)).status is RunStatus.SUSPENDED
    await client.cancel(thread, handle.id, keep=True)
    assert (await client.messages(thread)).items[-1].role == "tool"
    return thread


async def filled_in(client: Client, thread: str, agent: str) -> str:
    """R5: the run's last word is the result of a call, which another call was not carried out for."""
    result = await (await client.enqueue(thread, "final_result quick", agent=agent)).result(BOUND)
    assert result.ok and result.run.result == {"word": "quick"}, result.error
    assert (await client.messages(thread)).items[-1].role == "tool"
    return thread


async def forked_inside(client: Client, thread: str, agent: str) -> str:
    """F6: cut behind the calls, with repair."""
    handle = await client.enqueue(thread, "quick quick", agent=agent)
    result = await handle.result(BOUND)
    assert result.ok, result.error
    cut = next(message for message in result.messages if message.tool_results)
    await client.fork(thread, f"{thread}-cut", at_message_id=cut.id, repair=True)
    return f"{thread}-cut"


async def failed_between(client: Client, thread: str, agent: str) -> str:
    """R7: a run that failed in the middle of a tool cycle stays out, and is redriven behind another one."""
    handle = await client.enqueue(thread, "quick slow", agent=agent, timeout=4.0)
    result = await handle.result(BOUND)
    assert result.error is not None and result.error.code == "run_timeout"
    assert (await (await client.enqueue(thread, "quick", agent=agent)).result(BOUND)).ok
    await client.redrive(thread, handle.id)
    again = await handle.result(BOUND)
    assert again.ok and again.text == "Done: quick slow", again.error
    return thread


async def interrupted(client: Client, thread: str, agent: str) -> str:
    """R3: the next prompt cancels with keep and starts at once."""
    first = await client.enqueue(thread, "quick slow", agent=agent)
    await stored(first, "tool")
    second = await client.enqueue(thread, "quick", agent=agent, multitask_strategy="interrupt")
    assert (await second.result(BOUND)).ok
    assert (await first.result(BOUND)).status is RunStatus.CANCELLED
    return thread


async def named_alike(client: Client, thread: str, agent: str) -> str:
    """H5: a model that gives its calls the same id in every step; each is stored under an id of its own."""
    result = await (await client.enqueue(thread, "again, again", agent=agent)).result(BOUND)
    assert result.ok, result.error
    ids = [call.id for message in result.messages for call in message.tool_calls]
    assert len(set(ids)) == 2
    return thread


async def shown(client: Client, thread: str, agent: str) -> str:
    """R5, R9: a tool shows the model more than its result, beside another tool, in an attempt that does not end well."""
    handle = await client.enqueue(thread, "show quick slow", agent=agent)
    await stored(handle, "tool", "tool")
    await client.cancel(thread, handle.id, keep=True)
    assert (await handle.result(BOUND)).status is RunStatus.CANCELLED
    return thread


async def interrupted_speech(client: Client, thread: str, agent: str) -> str:
    """H8: after two messages of the model in a row."""
    handle = await client.enqueue(thread, "hi", agent="talker")
    assert (await handle.result(BOUND)).status is RunStatus.SUSPENDED
    await client.abort_pending(thread, "no more")
    assert [m.role for m in (await client.messages(thread)).items] == ["user", *["assistant"] * 5]
    return thread


async def unheard(client: Client, thread: str, agent: str) -> str:
    """R10 keep: before the model said anything."""
    handle = await client.enqueue(thread, "wait", agent=agent)
    await stored(handle, "user")
    await client.cancel(thread, handle.id, keep=True)
    assert (await handle.result(BOUND)).status is RunStatus.CANCELLED
    assert [message.role for message in (await client.messages(thread)).items] == ["user"]
    return thread


async def denied(client: Client, thread: str, agent: str) -> str:
    """H5: one of two approvals; then the operator says something."""
    handle = await client.enqueue(thread, "refund quick refund", agent=agent)
    asked = await handle.result(BOUND)
    for answer, request in zip((True, False), asked.requests, strict=True):
        await client.respond(thread, answer, request.request_id)
    assert (await handle.result(BOUND)).ok
    await client.store_message(thread, Message(role="system", content="Be kind to this one."))
    return thread


async def badly_written(client: Client, thread: str, agent: str) -> str:
    """R7: calls whose arguments are no JSON, or of no tool, or without a word."""
    script = "blank quick, garbled quick, nothing quick" if agent != "gemini" else "blank quick, nothing quick"
    result = await (await client.enqueue(thread, script, agent=agent)).result(BOUND)
    assert result.ok, result.error
    return thread


async def greeted(client: Client, thread: str, agent: str) -> str:
    """B1: the conversation begins with a message of the model."""
    await client.store_message(thread, Message.assistant("Welcome!"))
    return thread


Mishap: TypeAlias = Callable[[Client, str, str], Awaitable[str]]
OF_THE_STORE: list[Mishap] = [cancelled, timed_out, aborted, given_up, forked_inside, failed_between]
OF_THE_AGENT: list[Mishap] = [
    cancelled_later,
    interrupted,
    filled_in,
    named_alike,
    unheard,
    denied,
    badly_written,
    shown,
    interrupted_speech,
    greeted,
]


async def goes_on(client: Client, thread: str, agent: str) -> str | None:
    """An agent continues the thread in a fork, maybe on another protocol. What was wrong with that, if anything was."""
    fork = f"{thread}>{agent}"
    last = (await client.messages(thread)).items[-1]
    await client.fork(thread, fork, at_message_id=last.id)
    result = await (await client.enqueue(fork, "quick", agent=agent)).result(BOUND)
    return None if result.text == "Done: quick" else f"{fork}: {result.error}"


@pytest.mark.parametrize(
    ("urls", "mishap"),
    [
        *(("memory", mishap) for mishap in some(OF_THE_STORE, 2) + OF_THE_AGENT),
        *(("postgres", mishap) for mishap in some(OF_THE_STORE, 2, 1)),
    ],
    indirect=["urls"],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_i7_every_provider_goes_on_after(client: Client, providers: Providers, mishap: Mishap) -> None:
    threads = await asyncio.gather(*(mishap(client, protocol, protocol) for protocol in MODELS))
    heirs = [*MODELS, *READERS.values()]
    faults = await asyncio.gather(*(goes_on(client, thread, heir) for thread in threads for heir in heirs))
    assert [fault for fault in faults if fault] == []
    assert providers.refused == []


async def test_i7_every_provider_goes_on_after_a_crash(fleet: Fleet, providers: Providers) -> None:
    """R9: a worker is killed while one tool of two is through; another one goes on with the other."""
    providers.scenario = model
    pid = await fleet.start(app="tests.support.agents.desk:app")
    handles = [await fleet.client.enqueue(protocol, "quick slow", agent=protocol) for protocol in MODELS]
    await asyncio.gather(*(stored(handle, "tool") for handle in handles))
    fleet.processes[pid].kill()
    await fleet.start(app="tests.support.agents.desk:app")
    for handle in handles:
        result = await handle.result(BOUND)
        assert result.ok and result.text == "Done: quick slow", result.error
        assert (result.run.attempt, result.run.crash_count) == (2, 1)
    assert len(providers.requests) == 2 * len(MODELS)
    heirs = [*MODELS, *READERS.values()]
    faults = await asyncio.gather(*(goes_on(fleet.client, thread, heir) for thread in MODELS for heir in heirs))
    assert [fault for fault in faults if fault] == []
    assert providers.refused == []
