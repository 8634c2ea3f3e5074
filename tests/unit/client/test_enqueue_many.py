"""``client.enqueue_many``: one call per thousand prompts, and one outcome per prompt (R1 to R4)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Sequence
from dataclasses import fields
from typing import Any

import pytest

from runyard import Client, Message, Prompt, RunHandle, RunyardError, SyncClient, errors
from runyard.client import accepting
from runyard.ports.commands import AcceptRequest, PromptSeries
from runyard.ports.results import Accepted


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client.connect("memory://") as client:
        yield client


def words(outcomes: Sequence[RunHandle | RunyardError]) -> list[str]:
    """Return each outcome as a word: the code of the error, ``new`` or ``known``."""
    return [one.code if isinstance(one, RunyardError) else "new" if one.created else "known" for one in outcomes]


def test_a_prompt_has_the_arguments_of_enqueue() -> None:
    arguments = {name: one.default for name, one in inspect.signature(Client.enqueue).parameters.items()}
    del arguments["self"], arguments["connection"]
    prompt = {name: one.default for name, one in inspect.signature(Prompt).parameters.items()}
    assert prompt == arguments and list(prompt) == [field.name for field in fields(Prompt)]


async def test_each_prompt_becomes_the_run_of_a_single_enqueue(client: Client) -> None:
    given: dict[str, Any] = {
        "agent": "a", "queue": "q", "priority": "low", "timeout": 3.0, "max_attempts": 4, "expires_in": 60.0,
        "metadata": {"k": 1}, "webhook": "https://example.org/x", "parallel": True,
    }  # fmt: skip
    one = await client.enqueue("t", "hi", "r", **given)
    [many] = await client.enqueue_many([Prompt("u", "hi", "r", **given)])
    assert isinstance(many, RunHandle) and one.accepted is not None and many.accepted is not None
    changing = {"thread_id", "accepted_at", "admitted_at", "expires_at", "lane", "input"}
    assert many.accepted.model_dump(exclude=changing) == one.accepted.model_dump(exclude=changing)


async def test_a_store_gets_a_part_per_call(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcomes are those of the prompts, in order, whatever the parts are."""
    sizes = []
    accept_many = client.backend.runs.accept_many

    async def counted(requests: Sequence[AcceptRequest], series: PromptSeries) -> list[Accepted | RunyardError]:
        sizes.append(len(requests))
        return await accept_many(requests)

    monkeypatch.setattr(client.backend.runs, "accept_many", counted)
    monkeypatch.setattr(accepting, "MAX_PROMPTS_PER_CALL", 20)
    outcomes = await client.enqueue_many(Prompt(f"t{n % 7}" if n != 30 else "", "hi", f"r{n}") for n in range(50))
    assert sizes == [20, 19, 10] and words(outcomes) == ["new"] * 30 + ["invalid_input"] + ["new"] * 19
    assert [one.run_id for one in outcomes if isinstance(one, RunHandle)] == [f"r{n}" for n in range(50) if n != 30]
    assert await client.enqueue_many([]) == [] and len(sizes) == 3


WRONG: list[dict[str, Any]] = [
    *({"thread_id": value} for value in (None, 1, "", "x" * 300, b"t", ["t"])),
    *({"message": value} for value in (1, b"x", {"role": "user"}, ["x"])),
    *({"run_id": value} for value in (1, "", "\n", b"r")),
    *({name: value} for name in ("agent", "queue") for value in (1, "", ["a"], {})),
    *({"parent_id": value} for value in (1, "x", {})),
    *({"parallel": value} for value in ("maybe", [], 7)),
    *({"priority": value} for value in (None, "urgent", ["high"], 1)),
    *({"run_at": value} for value in (1, "2030-01-01T00:00:00Z")),
    *({"delay": value} for value in ("x", -1, float("nan"), [], 1e18)),
    *({name: value} for name in ("timeout", "expires_in", "max_attempts") for value in ("x", -1, [], float("inf"))),
    *({"retry": value} for value in ("x", {"delay": -1}, [1])),
    *({"multitask_strategy": value} for value in (None, "x", ["enqueue"])),
    *({"metadata": value} for value in ("x", [1], {"a": object()}, {"a": "x" * 2**20}, {1: 2})),
    *({"webhook": value} for value in (1, "ftp://x", "x", ["https://example.org"])),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: "-".join(f"{k}={v!r:.20}" for k, v in wrong.items()))
async def test_a_wrong_value_is_the_outcome_of_its_prompt_alone(client: Client, wrong: dict[str, Any]) -> None:
    bad = Prompt(**{"thread_id": "t", "message": "x", **wrong})
    outcomes = await client.enqueue_many([Prompt("t", "a"), bad, Prompt("t", "b")])
    assert words(outcomes)[::2] == ["new", "new"] and isinstance(outcomes[1], errors.InvalidInputError), outcomes[1]


@pytest.mark.parametrize("other", [None, "text", {"thread_id": "t", "message": "x"}, ("t", "x"), Message.user("x")])
async def test_what_is_no_prompt_is_refused_alone(client: Client, other: Any) -> None:
    outcomes = await client.enqueue_many([Prompt("t", "a"), other])
    assert words(outcomes) == ["new", "invalid_input"]


async def test_an_unreachable_store_is_the_outcome_of_each_prompt(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(requests: Sequence[AcceptRequest], series: PromptSeries) -> list[Accepted | RunyardError]:
        return [errors.BackendUnavailableError("gone") for _ in requests]

    monkeypatch.setattr(client.backend.runs, "accept_many", gone)
    assert words(await client.enqueue_many([Prompt("t", "a"), Prompt("t", "b")])) == ["backend_unavailable"] * 2


async def test_after_an_outage_later_parts_are_not_sent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: The store could accept them again, before the earlier prompts of their threads."""
    accept_many, sizes = client.backend.runs.accept_many, []

    async def lost_once(requests: Sequence[AcceptRequest], series: PromptSeries) -> list[Accepted | RunyardError]:
        if series.lost is not None:
            return [series.lost for _ in requests]
        sizes.append(len(requests))
        outcomes = await accept_many(requests)
        if len(sizes) == 2:
            series.lost = outcomes[-1] = errors.BackendUnavailableError("gone")
        return outcomes

    monkeypatch.setattr(client.backend.runs, "accept_many", lost_once)
    monkeypatch.setattr(accepting, "MAX_PROMPTS_PER_CALL", 20)
    outcomes = await client.enqueue_many(Prompt("t", "hi", f"r{n}") for n in range(100))
    assert sizes == [20, 20] and words(outcomes) == ["new"] * 39 + ["backend_unavailable"] * 61


async def test_a_cancelled_call_leaves_no_task(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = asyncio.Event()

    async def hang(requests: Sequence[AcceptRequest], series: PromptSeries) -> list[Accepted | RunyardError]:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(client.backend.runs, "accept_many", hang)
    [call] = calls = [asyncio.create_task(client.enqueue_many([Prompt("t", "x")] * 3000))]
    await entered.wait()
    call.cancel()
    await asyncio.wait(calls)
    assert call.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_blocking_client_returns_blocking_handles() -> None:
    with SyncClient("memory://") as client:
        first, second = client.enqueue_many([Prompt("t", "a", "r"), Prompt("", "b")])
        assert not isinstance(first, RunyardError) and first.created and first.run().run_id == "r"
        assert isinstance(second, errors.InvalidInputError)
