"""The versions of Postgres, Redis and Valkey that docs/operations.md names: those of the wheels, and those of the machine."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from redis.asyncio import Redis

from runyard import App, Client, Message, RunContext, RunStatus
from runyard.support import backend_urls
from runyard.worker.worker import Worker
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis, binaries
from runyard_backends.postgres.migrate import migrate

OPERATIONS: Final = Path(__file__).parents[2] / "docs" / "operations.md"
OWN_POSTGRES: Final = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
OWN_REDIS: Final = [Path(found) for name in ("redis-server", "valkey-server") if (found := shutil.which(name))]
BOUND: Final = 20.0

app = App()


@app.agent
async def clerk(ctx: RunContext) -> None:
    answer = await ctx.ask("Really?", {"type": "boolean"}) if ctx.input and ctx.input.text == "ask" else None
    await ctx.stream_text("done")
    await ctx.append(Message.assistant(f"done {answer}"))


def named_versions(server: str) -> list[str]:
    """The versions of a server that the page names."""
    [row] = re.findall(rf"^\| {server} \| [^|]+ \| ([^|]+) \|$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    return re.findall(r"[\d.]+", row)


async def works(postgres: str, redis: str) -> None:
    """R1, R2, F1, H1, E1: prompt, stream, ask, answer, fork, delete, with a worker in this process."""
    await migrate(postgres)
    backend = await backend_urls.connect(postgres, redis=redis)
    serving = asyncio.create_task(Worker(app, backend, slots=4).run())
    try:
        async with Client.connect(postgres, redis=redis) as client:
            first = await client.enqueue("t", "go", "first", delay=0.2)
            assert [event.type async for event in first.stream()][-1] == "run.completed"
            asking = await client.enqueue("t", "ask", "second")
            assert (await asking.result(BOUND)).status is RunStatus.SUSPENDED
            await client.respond("t", True)
            assert (await asking.result(BOUND)).text == "done True"
            await client.fork("t", "fork", "first")
            assert (await (await client.enqueue("fork", "go")).result(BOUND)).text == "done None"
            await client.delete_thread("t")
            assert len((await client.messages("fork")).items) == 4
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await backend.close()


@pytest.fixture
def own_postgres(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(
        "runyard_backends.embedded.postgres.find_postgres", lambda: binaries.PostgresInstall(request.param, bundled=False)
    )
    with EmbeddedPostgres() as server:
        yield server.url


@pytest.fixture
def own_redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("runyard_backends.embedded.redis.find_redis", lambda: request.param)
    with EmbeddedRedis() as server:
        yield server.url


async def version_of_postgres(url: str) -> str:
    connection = await asyncpg.connect(url)
    try:
        return str(connection.get_server_version().major)
    finally:
        await connection.close()


async def version_of_redis(url: str) -> tuple[str, str]:
    """The name of the server and its version, without the last number."""
    client = Redis.from_url(url)
    try:
        info = await client.info("server")
    finally:
        await client.aclose()
    valkey = info.get("server_name") == "valkey"
    version = str(info["valkey_version"] if valkey else info["redis_version"])
    return ("Valkey" if valkey else "Redis"), ".".join(version.split(".")[:2])


async def test_the_page_names_the_versions_of_the_wheels(postgres_url: str, redis_url: str) -> None:
    """The whole suite runs on these."""
    assert await version_of_postgres(postgres_url) in named_versions("Postgres")
    name, version = await version_of_redis(redis_url)
    assert version in named_versions(name)


@pytest.mark.parametrize("own_postgres", OWN_POSTGRES, indirect=True, ids=lambda path: path.parent.name)
async def test_postgres_of_the_machine(own_postgres: str, redis_url: str) -> None:
    assert await version_of_postgres(own_postgres) in named_versions("Postgres")
    await works(own_postgres, redis_url)


@pytest.mark.parametrize("own_redis", OWN_REDIS, indirect=True, ids=lambda path: path.name)
async def test_redis_of_the_machine(own_redis: str, postgres_url: str) -> None:
    name, version = await version_of_redis(own_redis)
    assert version in named_versions(name)
    await works(postgres_url, own_redis)
