"""Long histories are read in parts of bounded size, which together are the whole."""

from __future__ import annotations

import pytest

from runyard_backends.conformance.world import CheckpointWorld, World, call, result, said, texts, user
from runyard_backends.postgres import checkpointer, history
from runyard_backends.postgres.backend import PostgresBackend, connect

PART = 3


async def world_of(backend: PostgresBackend) -> World:
    """A thread with runs of several messages, a fork of it, and runs and messages without a run on both."""
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    for n in range(4):
        await world.turn(f"r{n}")
    attempt = await world.start("tools")
    await world.runs.append(attempt, [call("a"), result("a")])
    await world.finish(attempt, said("done"))
    await world.failed("failed")
    await world.fork("fork")
    await world.store("a note", thread="fork")
    for n in range(3):
        await world.turn(f"f{n}", thread="fork")
    return world


@pytest.mark.parametrize("page_bytes", [None, 1500], ids=["by number", "by bytes"])
async def test_parts_together_are_the_whole(postgres_url: str, monkeypatch: pytest.MonkeyPatch, page_bytes: int | None) -> None:
    """B2, S5: the context of an attempt, and a path without a limit, in either order."""
    backend = await connect(postgres_url)
    try:
        world = await world_of(backend)
        attempt = await world.start("now", thread="fork")
        await world.runs.append(attempt, [call("b"), result("b"), said("more")])

        async def read() -> list[list[str]]:
            leaf = (await world.leaves("fork"))[0].message_id
            messages = [await world.messages("fork"), await world.messages("fork", leaf), await world.runs.context(attempt)]
            return [[message.id for message in each] for each in messages]

        whole = await read()
        assert len(whole[2]) > 3 * PART
        sent = list[int]()
        rows = backend.db.rows

        async def counted(name: str, *args: object) -> object:
            found = await rows(name, *args)
            if name in ("page", "context"):
                sent.append(len(found) - (name == "context"))  # the first row of a context is no message
            return found

        monkeypatch.setattr(backend.db, "rows", counted)
        if page_bytes is None:
            monkeypatch.setattr(history, "PART_MESSAGES", PART)
        else:
            monkeypatch.setattr(backend.db, "page_bytes", page_bytes)
        assert await read() == whole
        assert len(sent) > 4 and max(sent) <= PART
    finally:
        await backend.close()


@pytest.mark.parametrize("most", [0, 200], ids=lambda most: f"{most} messages at once")
async def test_short_and_long_threads_are_loaded_alike(postgres_url: str, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """R13, R15: visible messages of a fork, and messages of its live external run and of a run that was never claimed."""
    monkeypatch.setattr(checkpointer, "SHORT_MESSAGES", most)
    backend = await connect(postgres_url)
    try:
        await world_of(backend)
        world = CheckpointWorld(backend, lambda: None)  # type: ignore[arg-type, return-value]
        await world.turn("e", thread="new", extra={"kept": 1})
        await world.fork("copy", "new", after_run_id="e")
        await world.claimed("failed", said("not shown"), thread="copy")
        await backend.runs.cancel("copy", "failed")
        await world.claimed("live", user("asked"), said("half"), thread="copy")
        await world.checkpointer.append("copy", [user("early").model_copy(update={"run_id": "unclaimed"})])
        await world.store("a note", thread="copy")
        data = await world.checkpointer.load("copy")
        assert data is not None and (data.parent_thread_id, data.extra) == ("new", {"kept": 1})
        assert texts(data.messages) == ["e?", "e!", "asked", "half", "early", "a note"]
        fork = await world.checkpointer.load("fork")
        assert fork is not None and texts(fork.messages) == texts(await world.messages("fork"))
        assert await world.checkpointer.load("nobody's") is None
    finally:
        await backend.close()
