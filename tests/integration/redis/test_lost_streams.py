"""Long runs whose stream Redis lost, whole or in part: readers get what Postgres proves, and hold a page of it (E1, E4)."""

from __future__ import annotations

import gc
import json
import tracemalloc
from contextlib import AsyncExitStack, aclosing
from typing import Any

import asyncpg
import pytest

from runyard import Client
from runyard.models import Event, HitlRequest
from runyard.ports.commands import Write
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import EVENT_BYTES_PER_READ
from runyard_backends.conformance.world import T, World, proved, said
from tests.support.fleet import Fleet

ATTEMPTS, EACH, SIZE = 3, 12, 20_000
"""A run of 720 KB."""
READERS, HELD = 30, 6 * EVENT_BYTES_PER_READ
"""Readers, and the bytes that one may hold with all that the language has around them."""


class Asked:
    """A client whose store notes how much each answer held."""

    def __init__(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = Client(fleet.backend)
        self.pages: list[list[Event]] = []
        ask = fleet.backend.runs.run_events

        async def noted(ref: RunRef, after: str | None = None, **limit: Any) -> list[Event]:
            self.pages.append(await ask(ref, after, **limit))
            return self.pages[-1]

        monkeypatch.setattr(fleet.backend.runs, "run_events", noted)

    async def read(self, last: str | None = None) -> list[Event]:
        return [event async for event in self.client.stream(T, "r", last)]

    def check(self) -> None:
        """Nobody was answered more than a page."""
        sizes = [[len(json.dumps(event.data)) for event in page] for page in self.pages]
        assert all(len(page) < 2 or sum(page) <= EVENT_BYTES_PER_READ for page in sizes), sizes


@pytest.fixture
async def world(fleet: Fleet) -> World:
    """A run that crashed, asked, was answered and completed; Redis was told nothing."""
    world = World(fleet.backend, lambda: None)  # type: ignore[arg-type, return-value]
    attempt = await world.start("r")
    for n in range(ATTEMPTS):
        for m in range(EACH):
            await world.runs.append(attempt, [said(f"{n} {m} ".ljust(SIZE, "x"))], first_event=3 + m)
        if n == 1:
            request = HitlRequest(request_id="q", payload={"question": "?"})
            await world.runs.suspend(Write(attempt=attempt, first_event=3 + EACH), [request])
            await world.runs.respond("yes", request_id="q")
        else:
            await world.runs.release(attempt, first_event=3 + EACH)
        attempt = await world.take("r")
    await world.finish(attempt, said("done"), first_event=2)
    return world


@pytest.mark.parametrize("damage", ["payload = '\\xc1'", "event_id = 'x'"])
@pytest.mark.parametrize("places", [[0], [4, 5, 6], "all"], ids=str)
async def test_e2_what_cannot_be_decoded_is_a_gap(fleet: Fleet, world: World, damage: str, places: Any) -> None:
    """All else arrives, the end above all."""
    everything = await proved(world.runs, await world.ref("r"))
    messages = [event.data["message_id"] for event in everything if event.type == "message.completed"]
    doomed = messages if places == "all" else [messages[n] for n in places]
    connection = await asyncpg.connect(fleet.postgres)
    await connection.execute(f"UPDATE runyard.messages SET {damage} WHERE message_id::text = ANY ($1)", doomed)
    await connection.close()
    seen = [event async for event in Client(fleet.backend).stream(T, "r")]
    left = [event for event in everything if event.data.get("message_id") not in doomed]
    assert [event for event in seen if event.type != "gap"] == left
    assert seen[-1].type == "run.completed" and "gap" in [event.type for event in seen]


async def test_e1_a_reader_of_a_lost_stream_asks_for_pages(fleet: Fleet, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(fleet, monkeypatch)
    everything = await proved(world.runs, await world.ref("r"))
    assert len(everything) == 1 + ATTEMPTS * EACH + 1 + 1 + 1
    seen = await asked.read()
    assert [event for event in seen if event.type != "gap"] == everything
    assert [event.type for event in seen].count("gap") == ATTEMPTS + 1  # what began each attempt
    for n, event in enumerate(everything[:-1]):
        rest = await asked.read(event.id)
        assert rest[0].type == "gap" and [event for event in rest if event.id is not None] == everything[n + 1 :]
    assert await asked.read(everything[-1].id) == []
    asked.check()


async def test_e1_a_reader_of_a_stream_with_holes_asks_for_pages(
    fleet: Fleet, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Redis holds and what Postgres proves between come in one order, and once."""
    ref = await world.ref("r")
    everything = await proved(world.runs, ref)
    await fleet.backend.events.append(ref.thread_key, [e for n, e in enumerate(everything) if n % 9 == 0 or n > 30])
    asked = Asked(fleet, monkeypatch)
    assert [event for event in await asked.read() if event.type != "gap"] == everything
    for n, event in enumerate(everything[:-1]):
        assert [event for event in await asked.read(event.id) if event.id is not None] == everything[n + 1 :]
    asked.check()


async def test_e3_a_reader_of_a_lost_stream_holds_a_page(fleet: Fleet, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(fleet, monkeypatch)
    asked.pages = Forgetful()
    async with AsyncExitStack() as stack:
        gc.collect()
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        readers = [await stack.enter_async_context(aclosing(asked.client.stream(T, "r"))) for _ in range(READERS)]
        for reader in readers:
            assert [(await anext(reader)).type for _ in range(3)] == ["gap", "message.completed", "message.completed"]
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < READERS * HELD
    assert asked.pages.count <= 2 * READERS


class Forgetful(list[list[Event]]):
    """Counts the pages, and keeps one."""

    count = 0

    def append(self, page: list[Event]) -> None:
        self.count += 1
        self[:] = [page]
