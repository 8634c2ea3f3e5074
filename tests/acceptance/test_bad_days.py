"""Providers that fail: what a run does, what its thread shows and what its readers see (R7, R9, R11; E1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic_ai import Agent

from runyard import App, Client, RetryPolicy, RunHandle, RunStatus
from runyard.support import backend_urls
from runyard_api.worker.process import serve
from tests.support.providers.conversation import MODELS, Call, Conversation, Reply
from tests.support.providers.server import Fault, Providers, Received

BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""
SAID = "The weather is fine and it will stay so."
AGAIN = RetryPolicy(initial=0.05)


def model(conversation: Conversation) -> Reply:
    """Looks at the weather, then tells it."""
    if conversation.steps == 0:
        return Reply("Let me see.", calls=(Call("weather"),))
    return Reply(SAID)


def forecaster(name: str) -> Agent[None, str]:
    """The SDKs, too, would ask again by themselves."""
    agent = Agent(name, model_settings={"max_retries": 0, "timeout": 8}, defer_model_check=True)

    @agent.tool_plain
    def weather() -> str:
        return "fine"

    return agent


@pytest.fixture
async def client(postgres_url: str, redis_url: str, providers: Providers) -> AsyncIterator[Client]:
    """A client, and a worker in this process."""
    providers.scenario = model
    app = App(agents={protocol: forecaster(name) for protocol, name in MODELS.items()})
    backend = await backend_urls.connect(postgres_url, redis=redis_url)
    async with serve(app, backend, grace=1), Client.connect(postgres_url, redis=redis_url) as client:
        yield client
    await backend.close()


async def told(handle: RunHandle) -> tuple[list[str], str, str]:
    """The types of the run's events, the text that a reader who honours ``run.rewound`` has in the end, and what it dropped."""
    types: list[str] = []
    texts: dict[str, str] = {}
    dropped = ""
    stored: set[str] = set()
    async for event in handle.stream():
        types.append(event.type)
        message_id, text = str(event.data.get("message_id")), event.data.get("text")
        if event.type == "message.delta" and isinstance(text, str):
            texts[message_id] = texts.get(message_id, "") + text
        elif event.type == "message.completed":
            stored.add(message_id)
        elif event.type == "run.rewound":
            dropped += "".join(text for name, text in texts.items() if name not in stored)
            texts = {name: text for name, text in texts.items() if name in stored}
    return types, " ".join(texts.values()), dropped


FAULTS = {
    "too many requests": Fault(status=429, retry_after=0),
    "a server error": Fault(status=500),
    "overloaded": Fault(status=529),
    "a stream that breaks": Fault(cut=4),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_r7_a_run_gets_over_it(client: Client, providers: Providers, name: str) -> None:
    """R7, R9: the second request fails, the next attempt completes. The thread has no trace of it, and what was streamed before
    is taken back."""
    failed: set[str] = set()

    def trouble(received: Received) -> Fault | None:
        if received.conversation is None or received.conversation.steps == 0 or received.protocol in failed:
            return None
        failed.add(received.protocol)
        return FAULTS[name]

    providers.trouble = trouble
    handles = {p: await client.enqueue(p, "Weather?", agent=p, max_attempts=2, retry=AGAIN) for p in MODELS}
    readers = await asyncio.wait_for(asyncio.gather(*map(told, handles.values())), BOUND)
    for (protocol, handle), (types, text, dropped) in zip(handles.items(), readers, strict=True):
        result = await handle.result(BOUND)
        assert result.ok and result.text == SAID, (protocol, result.error)
        assert (result.run.attempt, result.run.error_count, result.run.crash_count) == (2, 1, 0)
        assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
        assert text == f"Let me see. {SAID}"
        assert dropped == ("The weather is fine" if FAULTS[name].cut else "")
        assert types.count("run.rewound") == 1 and types.count("tool.started") == 1
    assert len(providers.requests) == 3 * len(MODELS)
    assert providers.refused == []


OUTAGES = {
    "too many requests": Fault(status=429, retry_after=2),
    "a server error": Fault(status=500),
    "no answer": Fault(hang=0),
    "a stream that breaks": Fault(cut=1),
}


async def test_r7_without_options_a_run_gets_over_an_outage(client: Client, providers: Providers) -> None:
    """R7, R11: each provider has each outage once, after a tool call. The tool's effect happens once, and the next attempt
    waits as long as the provider asks."""
    failed: dict[tuple[str, str], float] = {}
    again: dict[tuple[str, str], float] = {}

    def trouble(received: Received) -> Fault | None:
        assert received.conversation is not None
        if received.conversation.steps == 0:
            return None
        name = (received.protocol, next(name for name in OUTAGES if name in str(received.body)))
        if name in failed:
            again[name] = received.at
            return None
        failed[name] = received.at
        return OUTAGES[name[1]]

    providers.trouble = trouble
    names = [(protocol, outage) for protocol in MODELS for outage in OUTAGES]
    handles = [await client.enqueue(f"{protocol} {outage}", outage, agent=protocol) for protocol, outage in names]
    for name, handle in zip(names, handles, strict=True):
        result = await handle.result(BOUND)
        assert result.ok and result.text == SAID, (name, result.error)
        assert (result.run.attempt, result.run.error_count, result.run.options.max_attempts) == (2, 1, None), name
        assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
        if name[1] == "too many requests":
            assert again[name] - failed[name] >= 2
    assert len(failed) == len(names) and providers.refused == []


async def test_r11_max_attempts_of_one_forbids_it(client: Client, providers: Providers) -> None:
    providers.trouble = lambda received: Fault(status=500)
    handle = await client.enqueue("t", "hi", agent="openai-chat", max_attempts=1)
    assert ((await handle.result(BOUND)).status, len(providers.requests)) == (RunStatus.FAILED, 1)


async def test_r7_a_provider_that_stays_away_fails_the_run(client: Client, providers: Providers) -> None:
    """R7: no error message is stored; the run fails when its attempts are used up, and nothing of it counts."""
    providers.trouble = lambda received: Fault(status=500)
    handles = [await client.enqueue(name, "hi", agent=name, max_attempts=2, retry=AGAIN) for name in MODELS]
    for handle in handles:
        result = await handle.result(BOUND)
        assert result.status is RunStatus.FAILED and result.error is not None
        assert (result.error.code, result.run.attempt) == ("agent_error", 2)
        assert [message.role for message in result.messages] == ["user"]
        assert (await client.messages(handle.thread_id)).items == []


async def test_r7_what_is_refused_is_not_asked_again(client: Client, providers: Providers) -> None:
    """R7: a request that a provider calls wrong would be wrong again."""
    providers.trouble = lambda received: Fault(status=400)
    handle = await client.enqueue("t", "hi", agent="anthropic", max_attempts=3, retry=AGAIN)
    result = await handle.result(BOUND)
    assert result.status is RunStatus.FAILED
    assert (result.run.attempt, len(providers.requests)) == (1, 1)


async def test_r11_a_silent_provider_ends_with_the_attempt(client: Client, providers: Providers) -> None:
    """R11: the attempt's time is up while a stream hangs; the next one completes."""
    providers.fail(*[Fault(hang=2)] * len(MODELS))
    handles = [await client.enqueue(name, "hi", agent=name, timeout=4, max_attempts=3, retry=AGAIN) for name in MODELS]
    for handle in handles:
        result = await handle.result(BOUND)
        assert result.ok and result.text == SAID
        assert result.run.attempt >= 2
