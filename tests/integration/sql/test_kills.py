"""Processes that write to SQLite and MariaDB are killed in the middle of their writes (R6, R9). No write is stored in part, and
no acknowledged write is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from runyard.domain.states import RunStatus
from runyard.errors import RunAlreadyClaimedError, RunAlreadyCompletedError
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.stores import Backend
from tests.support.checkpoint_writer import connect
from tests.support.mariadb import PrivateMariaDB

KILLS = int(os.environ.get("RUNYARD_TEST_CHECKPOINT_KILLS", "10"))
"""Number of processes that are killed, for each store."""
ROOT = Path(__file__).parents[3]
START_SECONDS = 60.0


async def started(url: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a process that writes, and wait until it is connected."""
    command = [sys.executable, "-m", "tests.support.checkpoint_writer", url, *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        assert await process.stdout.readline() == b"ready\n"
    return process


async def killed(process: asyncio.subprocess.Process, after: int, pause: float) -> list[tuple[str, int]]:
    """Kill a process ``pause`` seconds after it has acknowledged ``after`` writes. Return all acknowledged writes."""
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(after)]
    await asyncio.sleep(pause)  # the place of the kill within a write is random
    process.send_signal(signal.SIGKILL)
    lines += (await process.stdout.read()).splitlines()
    await process.wait()
    words = [line.decode().split() for line in lines]
    return [(word[0], int(word[1])) for word in words if len(word) == 2]


async def check(backend: Backend, thread: str, acknowledged: list[tuple[str, int]]) -> None:
    """Compare the thread of a killed process with its acknowledged writes."""
    last = {
        what: max((n for word, n in acknowledged if word == what), default=-1) for what in ("claimed", "appended", "completed")
    }
    runs = {run.run_id: run for run in (await backend.runs.runs(RunFilter(thread_id=thread), PageRequest(limit=10_000))).items}
    completed = sorted(n for n in range(len(runs)) if runs[f"r{n}"].status is RunStatus.COMPLETED)
    assert completed == [*range(len(completed))] and last["completed"] <= len(completed) - 1 <= last["completed"] + 1
    assert last["claimed"] <= len(runs) - 1 <= last["claimed"] + 1
    assert [runs[f"r{n}"].completion_seq for n in completed] == [n + 1 for n in completed]
    messages = (await backend.threads.messages(thread)).items
    assert [message.text for message in messages] == [f"{n} {part}" for n in completed for part in range(3)]
    data = await backend.checkpointer.load(thread)
    assert data is not None
    loaded = [message.text for message in data.messages]
    assert len(loaded) % 3 == 0 and len(loaded) // 3 - 1 in (last["appended"], last["appended"] + 1)
    assert [message.seq for message in data.messages] == [*range(1, len(loaded) + 1)]
    assert data.extra.get("n", -1) in (len(completed) - 1, len(completed))
    for word, n in acknowledged:
        if word == "forked" and ("deleted", n) not in acknowledged and n == max(m for w, m in acknowledged if w == "forked"):
            fork = (await backend.threads.messages(f"{thread}-{n}")).items
            assert [message.text for message in fork] == [f"{m} {part}" for m in range(n + 1) for part in range(3)]
    await go_on(backend, thread, len(completed))


async def go_on(backend: Backend, thread: str, n: int) -> None:
    """Continue the open run, as an agent does after a crash, and complete it."""
    checkpointer = backend.checkpointer
    with contextlib.suppress(RunAlreadyClaimedError, RunAlreadyCompletedError):
        await checkpointer.claim_run(thread, f"r{n}")
    await checkpointer.mark_run_complete(thread, f"r{n}")


@pytest.fixture(params=["sqlite", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    """A new file, or a new database on the private MariaDB."""
    found: str = request.getfixturevalue(f"new_{request.param}_url")
    return found


@pytest.mark.timeout(900)
async def test_a_killed_writer_leaves_whole_writes(url: str) -> None:
    """R6: After a kill at any place, no write is stored in part, and every acknowledged write is stored."""
    draw = random.Random(7)
    backend = await connect(url)
    try:
        for n in range(0, KILLS, 2):  # two processes at the same time, on one database
            threads = [f"t{n + k}" for k in range(min(2, KILLS - n))]
            processes = [await started(url, thread, "turns", "0") for thread in threads]
            places = [(draw.randrange(1, 12), draw.random() * 0.02) for _ in threads]
            found = await asyncio.gather(
                *(killed(process, after, pause) for process, (after, pause) in zip(processes, places, strict=True))
            )
            for thread, acknowledged in zip(threads, found, strict=True):
                await check(backend, thread, acknowledged)
    finally:
        await backend.close()


async def test_a_killed_server_keeps_what_it_acknowledged() -> None:
    """R6: After a kill of MariaDB itself, each acknowledged write is stored, and no write is stored in part."""
    from runyard_backends.sql.mysql import migrate

    with PrivateMariaDB() as server:
        url = server.url(await server.create())
        await migrate(url)
        for n in range(max(1, KILLS // 5)):
            process = await started(url, f"t{n}", "turns", "0")
            assert process.stdout is not None
            lines = [(await process.stdout.readline()).decode().split() for _ in range(9 + n)]
            server.stop(signal.SIGKILL)
            lines += [line.decode().split() for line in (await process.stdout.read()).splitlines()]
            await process.wait()
            server.start()
            backend = await connect(url)
            await check(backend, f"t{n}", [(line[0], int(line[1])) for line in lines if len(line) == 2])
            await backend.close()


async def test_two_processes_append_to_one_file(new_sqlite_url: str) -> None:
    """R15: Two processes append 1,000 messages each to one thread of one file. No call fails. No message is lost. No number is
    missing. The messages of each process are in order."""
    backend = await connect(new_sqlite_url)
    await backend.checkpointer.append("t", [])
    count = 1000
    processes = [await started(new_sqlite_url, "t", "appends", str(count)) for _ in range(2)]
    for process in processes:
        said, _ = await process.communicate()
        assert process.returncode == 0 and said == b"done\n"
    data = await backend.checkpointer.load("t")
    assert data is not None
    assert [message.seq for message in data.messages] == [*range(1, 2 * count + 1)]
    assert [message.parent_id for message in data.messages] == [None, *(message.id for message in data.messages[:-1])]
    assert sorted(message.text for message in data.messages) == sorted([f"t {n}" for n in range(count)] * 2)
    await backend.close()
