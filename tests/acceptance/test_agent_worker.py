"""The same Agent as a worker's: its channel and run id are the run's own (H2, H3, H5, H8, H9, F9)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from runyard import Agent, App, Client, RunHandle, RunStatus
from runyard.checkpointer import MemoryCheckpointer
from runyard.errors import HitlInvalidAnswerError, HitlNotAllowedError
from runyard.hitl import ApprovalPolicyMiddleware, AskUser, CheckpointedChannel, Deny, ask_user_tool
from runyard.models import HitlRequest
from runyard.support import backend_urls
from runyard_api.worker.process import serve
from tests.acceptance.test_agent_hitl import COLOR, Till, amount_of
from tests.support.fleet import until
from tests.support.scripted_models import calling

BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""


@dataclass
class Shop:
    """A worker that serves one agent, and a client."""

    client: Client
    till: Till
    handle: RunHandle | None = None

    async def prompt(self, agent: str = "shop") -> list[HitlRequest]:
        """Enqueue, and wait until the run waits for a human."""
        self.handle = await self.client.enqueue("t", "go", "r", agent=agent)
        result = await self.handle.result(BOUND)
        assert result.status is RunStatus.SUSPENDED, result
        return result.requests

    async def results(self) -> list[tuple[object, bool]]:
        """What the model was told of its calls, when the run completed."""
        assert self.handle is not None
        result = await self.handle.result(BOUND)
        assert result.ok, result
        return [(r.content, r.is_error) for message in result.messages for r in message.tool_results]


@pytest.fixture
async def shop(postgres_url: str, redis_url: str) -> AsyncIterator[Shop]:
    till = Till()
    elsewhere = CheckpointedChannel(checkpointer=MemoryCheckpointer(), thread_id="other", run_id="other")
    policy = ApprovalPolicyMiddleware(policy=lambda call: Deny("too much") if call.arguments["amount"] == 500 else AskUser())
    model = calling(("ask_user", COLOR), *(("refund", {"amount": amount}) for amount in (1, 50, 500)))
    hasty = ApprovalPolicyMiddleware(policy=lambda call: AskUser(timeout=0.5))
    agents = {
        "shop": Agent(model, tools=[ask_user_tool(elsewhere), till.refund], middleware=[policy], channel=elsewhere),
        "hasty": Agent(model, tools=[ask_user_tool(timeout=0.5), till.refund], middleware=[hasty]),
    }
    async with AsyncExitStack() as stack:
        backend = await backend_urls.connect(postgres_url, redis=redis_url)
        stack.push_async_callback(backend.close)
        await stack.enter_async_context(serve(App(agents=agents), backend))
        yield Shop(await stack.enter_async_context(Client.connect(postgres_url, redis=redis_url)), till)


async def test_h5_h9_questions_and_approvals(shop: Shop) -> None:
    """H9: a question and approvals side by side, one denied by policy, one by a human, one edited; H5: each of its own call."""
    requests = await shop.prompt()
    assert sorted(request.kind for request in requests) == ["approval", "approval", "question"]
    [question] = [request for request in requests if request.kind == "question"]
    one, fifty = sorted((request for request in requests if request.kind == "approval"), key=amount_of)
    with pytest.raises(HitlInvalidAnswerError):
        await shop.client.respond("t", "green", question.request_id)
    await shop.client.respond("t", {"approved": True, "arguments": {"amount": 60}}, fifty.request_id)
    await shop.client.respond("t", "red", question.request_id)
    await shop.client.respond("t", {"approved": False, "reason": "too little"}, one.request_id)
    assert sorted(await shop.results(), key=str) == [
        ("The call was denied: too much", True),
        ("User answers:\n- color?: red", False),
        ("refunded 60", False),
        ("too little", True),
    ]
    assert shop.till.refunds == [60]


async def test_h7_h9_nobody_answers(shop: Shop) -> None:
    """H7, H9: at its deadline each question becomes an error result, without anybody who waits for it."""
    await shop.prompt("hasty")

    async def ended() -> bool:
        assert shop.handle is not None
        return (await shop.handle.run()).ended

    await until(ended, BOUND)
    told = [str(content) for content, is_error in await shop.results() if is_error]
    assert [text.count("in time") for text in told] == [1, 1, 1, 1]
    assert shop.till.refunds == []


async def test_h8_abort_pending(shop: Shop) -> None:
    """H8: each open call gets its error result, and the run has its last word; no tool runs."""
    await shop.prompt()
    run = await shop.client.abort_pending("t", "closed")
    assert run is not None and run.status is RunStatus.CANCELLED
    messages = (await shop.client.messages("t")).items
    told = [r.content for message in messages for r in message.tool_results]
    assert told.count("aborted: closed") == 3 and len(told) == 4
    assert (messages[-1].text, messages[-1].stop_reason) == ("aborted: closed", "aborted")
    assert shop.till.refunds == []


async def test_f9_a_probe_of_it_is_refused(shop: Shop) -> None:
    for request in await shop.prompt():
        await shop.client.respond("t", "red" if request.kind == "question" else True, request.request_id)
    await shop.results()
    with pytest.raises(HitlNotAllowedError):
        await shop.client.fork_once("t", "what if?", after_run_id="r", agent="shop", wait=BOUND)
