"""Humans, against real servers and worker processes (H3, H4, H7, H11)."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from pathlib import Path

import pytest

from runyard import App, Client, Message, RunContext, RunStatus, ToolCallPart
from runyard.errors import HitlAlreadyAnsweredError, HitlStaleAnswerError
from runyard.models import HitlRequest
from runyard.support import backend_urls
from runyard_api.worker.process import serve
from tests.support.agents.sweep import EFFECTS
from tests.support.fleet import Fleet, until

BOUND = 60.0
"""Seconds that any one run may take on a busy machine."""
PAIRS = 200


async def test_h4_200_pairs_of_responders_at_once(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H4, I6: of two answers exactly one wins, the run has that one, and its tool runs once."""
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    await asyncio.gather(*(fleet.start(app="tests.support.agents.sweep:app") for _ in range(2)))
    handles = [await fleet.client.enqueue(f"t{n}", "ask-go tool-a", f"r{n}") for n in range(PAIRS)]
    asked = await asyncio.gather(*(handle.result(60) for handle in handles))

    async with Client.connect(fleet.postgres, redis=fleet.redis) as other:

        async def pair(request: HitlRequest) -> str:
            """Both answer; the winner's answer."""
            answers = {"yes": fleet.client, "no": other}
            responses = await asyncio.gather(
                *(client.respond(request.thread_id, answer, request.request_id) for answer, client in answers.items()),
                return_exceptions=True,
            )
            won = [answer for answer, given in zip(answers, responses, strict=True) if isinstance(given, HitlRequest)]
            assert Counter(map(type, responses)) == {HitlRequest: 1, HitlAlreadyAnsweredError: 1}
            return won[0]

        winners = await asyncio.gather(*(pair(result.requests[0]) for result in asked))
    results = await asyncio.gather(*(handle.result(60) for handle in handles))
    assert all(result.ok for result in results)
    said = [next(message.text for message in result.messages if message.text.startswith("answered")) for result in results]
    assert said == [f"answered {winner}" for winner in winners]
    effects = [line.split()[:2] for line in (tmp_path / "effects").read_text().splitlines()]
    assert sorted(effects) == sorted([f"r{n}", "tool-a"] for n in range(PAIRS))


CALL = ToolCallPart(id="c", name="refund", arguments={"amount": 10})


async def clerk(ctx: RunContext) -> None:
    """Asks as its prompt says, and does not wait for long."""
    assert ctx.input is not None
    match ctx.input.text:
        case "answer":
            text = str(await ctx.ask("color?", timeout=0.5, on_timeout={"answer": "grey"}))
        case "deny":
            approval = await ctx.approve(CALL, timeout=0.5, on_timeout={"answer": False})
            text = "approved" if approval else "denied"
        case _:
            text = str(await ctx.ask("color?", timeout=0.5))
    await ctx.append(Message.assistant(text))


@pytest.mark.parametrize(
    ("choice", "status", "text"), [("answer", "completed", "grey"), ("deny", "completed", "denied"), ("fail", "failed", "")]
)
async def test_h7_what_the_request_chose_happens_at_its_deadline(
    postgres_url: str, redis_url: str, choice: str, status: str, text: str
) -> None:
    """H7: without anybody who waits for it; a late answer is stale."""
    backend = await backend_urls.connect(postgres_url, redis=redis_url)
    async with serve(App({"clerk": clerk}), backend), Client.connect(postgres_url, redis=redis_url) as client:
        handle = await client.enqueue("t", choice)

        async def ended() -> bool:
            return (await handle.run()).ended

        await until(ended, BOUND)
        result = await handle.result()
        assert (result.status, result.last_text) == (status, text)
        if choice == "fail":
            assert result.error is not None and result.error.code == "hitl_timeout"
        [request] = (await client.requests("t", pending=False)).items
        with pytest.raises(HitlStaleAnswerError):
            await client.respond("t", "too late", request.request_id)
    await backend.close()


async def test_h11_extra_is_saved_with_the_suspension(postgres_url: str, redis_url: str) -> None:
    """H11: what the agent changed before it asked is there when another process goes on."""
    seen = []

    async def agent(ctx: RunContext) -> None:
        seen.append(copy.deepcopy(ctx.extra))
        ctx.extra.setdefault("cart", []).append(ctx.attempt)
        await ctx.ask("more?")
        await ctx.append(Message.assistant("done"))

    async with Client.connect(postgres_url, redis=redis_url) as client:
        handle = await client.enqueue("t", "hi")
        for answer in ("no", None):
            backend = await backend_urls.connect(postgres_url, redis=redis_url)
            async with serve(App({"agent": agent}), backend):
                result = await handle.result(BOUND)
            await backend.close()
            if answer:
                assert result.status is RunStatus.SUSPENDED
                await client.respond("t", answer)
        assert result.ok
        assert (await client.thread("t")).extra == {"cart": [1, 2]}
    assert seen == [{}, {"cart": [1]}]
