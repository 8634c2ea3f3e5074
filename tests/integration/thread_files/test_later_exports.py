"""Several imports into one thread: later exports, the head, files of strangers with known ids, and imports at the same time."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import pytest

from runyard.errors import BackendUnavailableError, InvalidInputError, LockedError
from runyard.models import ROOT_ID, HitlRequest, Message, new_id
from runyard.ports.stores import Backend
from runyard.support.backend_urls import connect
from runyard_backends.conformance.world import World
from runyard_backends.import_report import Report
from runyard_backends.memory import connect as connect_memory
from runyard_backends.memory.import_lock import MemoryImportLock
from runyard_backends.thread_files import import_threads, importer
from tests.support.thread_families import exported, fork, furnish, shown, turn


@pytest.fixture
async def source() -> Backend:
    return await connect_memory(f"memory://{new_id()}")


@pytest.fixture
async def target() -> Backend:
    return await connect_memory(f"memory://{new_id()}")


async def same(source: Backend, target: Backend, thread: str) -> None:
    """Fail if the readers of the thread see different things."""
    expected, found = await shown(source, thread), await shown(target, thread)
    assert found == expected


def lines_of(file: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def file_of(lines: list[dict[str, Any]]) -> io.BytesIO:
    lines[-1]["lines"] = len(lines) - 1
    return io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def at(lines: list[dict[str, Any]], kind: str) -> int:
    return next(n for n, line in enumerate(lines) if line["type"] == kind)


async def test_a_later_export_moves_the_head(source: Backend, target: Backend) -> None:
    """B2: The head of a later export becomes the head, if the deployment has not moved it."""
    await turn(source, "t", "r1")
    await import_threads(target, await exported(source, "t"))
    first, last = (await source.threads.messages("t")).items
    await source.threads.store_message("t", Message.user("beside"), first.id)
    await turn(source, "t", "r2")
    await import_threads(target, await exported(source, "t"))
    await same(source, target, "t")
    await source.threads.set_head("t", last.id)  # type: ignore[attr-defined]
    await import_threads(target, await exported(source, "t"))
    await same(source, target, "t")


async def test_a_head_that_the_deployment_chose_is_kept(source: Backend, target: Backend) -> None:
    """B2: The conversation of the deployment goes on where it was, also after an import that was interrupted."""
    await turn(source, "t", "r1")
    await import_threads(target, await exported(source, "t"))
    first, _ = (await target.threads.messages("t")).items
    await target.threads.store_message("t", Message.user("mine"), first.id)
    before = [message.id for message in (await target.threads.messages("t")).items]
    await turn(source, "t", "r2")
    with patch.object(target.checkpointer, "append", side_effect=asyncio.CancelledError), pytest.raises(asyncio.CancelledError):
        await import_threads(target, await exported(source, "t"))
    report = await import_threads(target, await exported(source, "t"))
    assert report.outcomes == {"added": 1} and report.messages == 2
    assert [message.id for message in (await target.threads.messages("t")).items] == before
    assert {run.run_id for run in (await target.runs.runs()).items} == {"r1", "r2"}


async def test_a_failed_addition_leaves_the_head(source: Backend, target: Backend) -> None:
    """B2: An addition that the store refuses in part leaves the head of the deployment."""
    await turn(source, "t", "r1")
    await import_threads(target, await exported(source, "t"))
    first, _ = (await target.threads.messages("t")).items
    await source.threads.store_message("t", Message.user("beside"), first.id)
    lines = lines_of(await exported(source, "t"))
    lines.insert(at(lines, "leaf"), {"type": "branch", "at": new_id()})
    lines.insert(at(lines, "leaf"), {"type": "message", "message": {"id": new_id(), "role": "user", "content": "x"}})
    before = (await shown(target, "t"))["loaded"]
    report = await import_threads(target, file_of(lines))
    assert report.outcomes == {"failed": 1} and report.messages == 1
    assert (await shown(target, "t"))["loaded"] == before
    report = await import_threads(target, await exported(source, "t"))
    assert report.outcomes == {"added": 1}
    await same(source, target, "t")


async def test_a_head_without_a_leaf_of_its_own(source: Backend, target: Backend) -> None:
    """B2, B3: The head may end at a message that other branches continue, or before the first message."""
    await turn(source, "t", "r1")
    await turn(source, "t", "r2")
    middle = (await source.threads.messages("t")).items[1]
    for place in (middle.id, ROOT_ID):
        await source.threads.set_head("t", place)  # type: ignore[attr-defined]
        copy = target.for_tenant(place)
        assert (await import_threads(copy, await exported(source, "t"))).complete
        await same(source, copy, "t")
    await turn(source, "t", "r3")
    assert (await import_threads(copy, await exported(source, "t"))).complete
    await same(source, copy, "t")


async def test_the_head_is_no_message_of_a_live_run(target: Backend) -> None:
    """B2: The head ends at the last visible message, and not inside a run that executes."""
    world = World(await connect_memory("memory://live-head"), lambda *_: None)  # type: ignore[arg-type, return-value]
    await world.turn("r1")
    await world.start("live", "live?")
    assert (await import_threads(target, await exported(world.backend, "t"))).complete
    await world.backend.checkpointer.append("t", [Message.user("legacy")])
    assert (await import_threads(target, await exported(world.backend, "t"))).complete
    assert (await shown(target, "t"))["loaded"] == [message.id for message in await world.messages()]


async def test_an_empty_fork_grows(source: Backend, target: Backend) -> None:
    """F1: A fork without messages of its own stays on the path that it inherited, also when a later export adds to it."""
    await turn(source, "a", "r1")
    await fork(source, "a", "b", after_run_id="r1")
    await source.checkpointer.claim_run("empty", "none")
    await source.checkpointer.mark_run_complete("empty", "none")
    await fork(source, "empty", "c", after_run_id="none")
    for grow in (None, "silent", "loud"):
        for thread in ("b", "c"):
            if grow is not None:
                await source.checkpointer.claim_run(thread, grow)
                if grow == "loud":
                    await source.checkpointer.append(thread, [Message.user("x", run_id=grow)])
                await source.checkpointer.mark_run_complete(thread, grow)
            assert (await import_threads(target, await exported(source, thread))).complete
            await same(source, target, thread)


@pytest.fixture(params=["memory", "new_sqlite_url", "postgres_url", "mysql_url"])
def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{new_id()}" if request.param == "memory" else request.getfixturevalue(request.param)


@pytest.fixture
async def two(url: str) -> AsyncIterator[tuple[Backend, Backend]]:
    """Two connections to one store."""
    one, other = await connect(url), await connect(url)
    yield one, other
    await one.close()
    await other.close()


async def test_one_import_at_a_time(source: Backend, two: tuple[Backend, Backend]) -> None:
    """F10: A second import into the tenant fails while the first one works. Imports into other tenants are not affected."""
    await furnish(source)
    file, copy = await exported(source, "t", forks=True), await exported(source, "t", forks=True)
    one, other = two
    append, working, go_on = one.checkpointer.append, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any) -> None:
        working.set()
        await go_on.wait()
        await append(*args)

    with patch.object(one.checkpointer, "append", slow):
        first = asyncio.create_task(import_threads(one, file))
        await working.wait()
        with pytest.raises(LockedError, match="another import"):
            await import_threads(other, copy)
        assert (await import_threads(other, copy, dry_run=True)).complete
        go_on.set()
        report = await first
    assert report.complete and report.outcomes == {"imported": 7}
    for thread in ("t", "inside", "after-fast", "deep", "deeper"):
        await same(source, one, thread)
    assert (await import_threads(other, file)).outcomes == {"unchanged": 7}


async def test_a_lock_is_released(two: tuple[Backend, Backend]) -> None:
    """A1: One connection at a time has the lock."""
    one, other = two
    for first, second in ((one, other), (other, one)):
        lock = await first.threads.lock_imports()  # type: ignore[attr-defined]
        await lock.check()
        with pytest.raises(LockedError, match="another import"):
            await second.threads.lock_imports()  # type: ignore[attr-defined]
        await lock.release()


async def test_a_release_does_not_wait_for_the_close(mysql_url: str) -> None:
    """F10: MySQL releases the lock of an import before the server sees that the connection is closed."""
    backend = await connect(mysql_url)
    lock: Any = await backend.threads.lock_imports()  # type: ignore[attr-defined]
    with patch.object(lock._connection, "close"):
        await lock.release()
    again = await backend.threads.lock_imports()  # type: ignore[attr-defined]
    await again.release()
    lock._connection.close()
    await backend.close()


async def test_the_lock_of_a_file_with_two_paths(tmp_path: Path) -> None:
    """F10: Two imports into one SQLite file exclude each other, also if they name the file by different paths."""
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    one = await connect(f"sqlite:///{tmp_path}/store/a.db")
    (tmp_path / "b.db").symlink_to(tmp_path / "store" / "a.db")
    lock = await one.threads.lock_imports()  # type: ignore[attr-defined]
    for path in ("link/a.db", "b.db"):
        other = await connect(f"sqlite:///{tmp_path}/{path}")
        with pytest.raises(LockedError, match="another import"):
            await other.threads.lock_imports()  # type: ignore[attr-defined]
        await other.close()
    await lock.release()
    await one.close()


async def test_a_lost_lock_ends_the_import(source: Backend, postgres_url: str) -> None:
    """F10: An import that has lost its lock stops. The next import continues it."""
    await furnish(source)
    file = await exported(source, "t", forks=True)
    one = await connect(postgres_url)
    append = one.checkpointer.append

    async def losing(*args: Any) -> None:
        await append(*args)
        killer = await asyncpg.connect(postgres_url)
        await killer.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        await killer.close()

    often, lost = patch.object(importer, "CHECK_SECONDS", 0), patch.object(one.checkpointer, "append", losing)
    with often, lost, pytest.raises(BackendUnavailableError):
        await import_threads(one, file)
    assert (await import_threads(one, file)).complete
    await same(source, one, "deeper")
    await one.close()


async def test_a_long_step_keeps_the_lock(source: Backend, target: Backend) -> None:
    """F10: The lock is checked while one step of the import works, and once at the end."""
    await turn(source, "t", "r1")
    append, checks, again = target.checkpointer.append, 0, asyncio.Event()

    async def check(_: MemoryImportLock) -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            again.set()

    async def slow(*args: Any) -> None:
        await asyncio.wait_for(again.wait(), 30)
        await append(*args)

    often, checked = patch.object(importer, "CHECK_SECONDS", 0.01), patch.object(MemoryImportLock, "check", check)
    with often, checked, patch.object(target.checkpointer, "append", slow):
        assert (await import_threads(target, await exported(source, "t"))).complete
    checks = 0
    with checked:
        await import_threads(target, await exported(source, "t"))
    assert checks == 1


async def test_a_lock_that_is_lost_ends_a_long_step(source: Backend, target: Backend) -> None:
    """F10: An import stops within a step when its lock is lost."""
    await turn(source, "t", "r1")
    file = await exported(source, "t")
    often = patch.object(importer, "CHECK_SECONDS", 0.01)
    lost = patch.object(MemoryImportLock, "check", side_effect=BackendUnavailableError("lost"))
    endless = patch.object(target.checkpointer, "append", lambda *_: asyncio.Event().wait())
    with often, lost, endless, pytest.raises(BackendUnavailableError, match="lost"):
        async with asyncio.timeout(30):
            await import_threads(target, file)
    assert (await import_threads(target, file)).complete
    await same(source, target, "t")


def strange(lines: list[dict[str, Any]], run_id: str, *more: dict[str, Any]) -> io.BytesIO:
    """Return a file of a stranger: that of a known thread, with another export's id, and a run that ends."""
    lines[0]["export_id"] = new_id()
    n = at(lines, "branch") + 1
    for line in reversed(({"type": "claim", "run_id": run_id}, *more)):
        lines.insert(n, line)
    return file_of(lines)


ENDS: list[list[dict[str, Any]]] = [
    [{"type": "cancel", "run_id": "mine"}],
    [{"type": "complete", "run_id": "mine"}],
    [{"type": "message", "message": {"id": new_id(), "role": "user", "content": "x", "run_id": "mine"}}],
]


@pytest.mark.parametrize("more", ENDS, ids=lambda more: more[0]["type"])
@pytest.mark.parametrize("half", [False, True])
async def test_runs_of_the_deployment_are_left_alone(source: Backend, target: Backend, more: list[Any], half: bool) -> None:
    """I2: A file with the id of a run that no import made cannot cancel, complete or write to the run. This also holds after an
    import that failed."""
    await turn(source, "t", "r1")
    lines = lines_of(await exported(source, "t"))
    if half:  # the first import ends with an error
        broken = lines_of(await exported(source, "t"))
        broken.insert(at(broken, "leaf"), {"type": "branch", "at": new_id()})
        broken.insert(at(broken, "leaf"), {"type": "message", "message": {"id": new_id(), "role": "user", "content": "x"}})
        assert (await import_threads(target, file_of(broken))).outcomes == {"failed": 1}
    else:
        await import_threads(target, file_of(lines))
    await target.checkpointer.claim_run("t", "mine")
    report = await import_threads(target, strange(lines, "mine", *more))
    assert report.outcomes == {"failed": 1} and "'mine'" in report.notes[0].what
    run = await target.runs.run("t", "mine")
    assert run is not None and not run.ended
    await target.checkpointer.mark_run_complete("t", "mine")
    assert (await shown(target, "t"))["snapshots"]["mine"] == (await shown(source, "t"))["snapshots"]["r1"]


async def test_a_message_of_an_unclaimed_run_is_not_added_to_a_run(source: Backend, target: Backend) -> None:
    """I2: A message with the id of a run of the deployment is refused, even if the file does not claim the run."""
    await turn(source, "t", "r1")
    lines = lines_of(await exported(source, "t"))
    await import_threads(target, file_of(lines))
    await target.checkpointer.claim_run("t", "mine")
    lines[0]["export_id"] = new_id()
    lines.insert(at(lines, "branch") + 1, ENDS[2][0])
    assert (await import_threads(target, file_of(lines))).outcomes == {"failed": 1}
    await target.checkpointer.mark_run_complete("t", "mine")
    assert (await shown(target, "t"))["snapshots"]["mine"] == (await shown(source, "t"))["snapshots"]["r1"]


async def test_requests_of_the_deployment_are_left_alone(source: Backend, target: Backend) -> None:
    """H3: A file cannot answer or replace a request that no import made."""
    await turn(source, "t", "r1")
    lines = lines_of(await exported(source, "t"))
    await import_threads(target, file_of(lines))
    await target.checkpointer.save_pending_request("t", HitlRequest(request_id="q", payload={"pay": 1}))
    answered = {"request_id": "q", "payload": {"pay": 1}, "answer": True, "answered_at": datetime.now(UTC).isoformat()}
    for asked in (answered, {"request_id": "other"}):
        lines[0]["export_id"] = new_id()
        lines.insert(at(lines, "leaf"), {"type": "request", "request": asked})
        report = await import_threads(target, file_of(lines))
        assert report.complete and (report.requests, report.answers) == (0, 0)
        assert [note.what for note in report.notes if "request" in note.what]
        found = await target.checkpointer.load_pending_request("t")
        assert found is not None and found.request_id == "q" and found.answered_at is None


async def test_a_request_after_an_interruption_is_left_alone(source: Backend, target: Backend) -> None:
    """H6: A repeated import does not replace a request that the deployment made after the first import was interrupted."""
    await turn(source, "t", "r1")
    await source.checkpointer.save_pending_request("t", HitlRequest(request_id="own"))
    file = await exported(source, "t")
    stopped = patch.object(target.checkpointer, "save_pending_request", side_effect=asyncio.CancelledError)
    with stopped, pytest.raises(asyncio.CancelledError):
        await import_threads(target, file)
    await target.checkpointer.save_pending_request("t", HitlRequest(request_id="q"))
    report = await import_threads(target, file)
    assert report.complete and report.requests == 0
    assert [note.what for note in report.notes if "request own" in note.what]
    found = await target.checkpointer.load_pending_request("t")
    assert found is not None and found.request_id == "q"


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("end", ["complete", "cancel"])
async def test_a_request_of_a_run_that_the_deployment_ended(
    source: Backend, target: Backend, end: str, known: bool, answered: bool
) -> None:
    """H3, R13: If the deployment has ended an imported run, its requests are not changed. The rest of the file is imported."""
    await turn(source, "t", "r1")
    await source.checkpointer.claim_run("t", "open")
    store: Any = source.checkpointer
    if known:
        await store.save_requests("t", [HitlRequest(request_id="q", payload={"n": 1})], run_id="open")
    await import_threads(target, await exported(source, "t"))
    if end == "complete":
        await target.checkpointer.mark_run_complete("t", "open")
    else:
        await target.runs.cancel("t", "open")
    if not known:
        await store.save_requests("t", [HitlRequest(request_id="q", payload={"n": 1})], run_id="open")
    if answered:
        await source.runs.respond(7, thread_id="t", request_id="q")
    await turn(source, "t", "r2")
    file = await exported(source, "t")
    report = await import_threads(target, file)
    assert report.outcomes == {"added": 1}, report.notes
    assert [note.what for note in report.notes if "has ended its run" in note.what]
    assert report.runs == 1 and (report.requests, report.answers) == (0, 0)
    assert (await import_threads(target, file)).outcomes == {"unchanged": 1}
    assert "r2" in (await shown(target, "t"))["runs"]


async def test_open_runs_and_requests_of_an_import_go_on(source: Backend, target: Backend) -> None:
    """R13, H3: A later export completes the runs and answers the requests that an earlier import left open."""
    await turn(source, "t", "r1")
    await source.checkpointer.claim_run("t", "open")
    await source.checkpointer.append("t", [Message.user("open?", run_id="open")])
    await source.checkpointer.save_pending_request("t", HitlRequest(request_id="own"))
    store: Any = source.checkpointer
    await store.save_requests("t", [HitlRequest(request_id="q", payload={"n": 1})], run_id="open")
    for _ in range(2):
        await import_threads(target, await exported(source, "t"))
        await target.checkpointer.claim_run("t", f"local {_}")
    await source.runs.respond(7, thread_id="t", request_id="q")
    await source.checkpointer.append("t", [Message.assistant("open!", run_id="open")])
    await source.checkpointer.mark_run_complete("t", "open")
    await source.checkpointer.save_pending_request("t", HitlRequest(request_id="next"))
    report = await import_threads(target, await exported(source, "t"))
    assert report.outcomes == {"added": 1}, report.notes
    assert (report.answers, report.messages, report.requests) == (1, 1, 1)
    expected, found = await shown(source, "t"), await shown(target, "t")
    assert found["paths"] == expected["paths"] and found["snapshots"] == expected["snapshots"]
    pending = await target.checkpointer.load_pending_request("t")
    assert pending is not None and pending.request_id == "next"


async def test_the_numbers_of_a_report_are_those_of_the_import(source: Backend, target: Backend) -> None:
    """The numbers of an interrupted import and of its continuation have the sum of an import at once."""
    await furnish(source)
    file = await exported(source, "t", forks=True)
    whole = await import_threads(target.for_tenant("whole"), file)
    names = ("messages", "runs", "forks", "requests", "answers")
    again = await import_threads(target.for_tenant("whole"), file)
    assert [getattr(again, name) for name in names] == [0] * 5
    later = await exported(source, "t", forks=True)
    planned = await import_threads(target.for_tenant("whole"), later, dry_run=True)
    again = await import_threads(target.for_tenant("whole"), later)
    assert [getattr(again, name) for name in names] == [0] * 5 == [getattr(planned, name) for name in names]
    backend, count, append = target.for_tenant("stopped"), 0, target.for_tenant("stopped").checkpointer.append

    async def stopping(*args: Any) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise asyncio.CancelledError
        await append(*args)

    parts = []
    with patch.object(backend.checkpointer, "append", stopping):

        class Kept(Report):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                parts.append(self)

        with patch("runyard_backends.thread_files.Report", Kept), pytest.raises(asyncio.CancelledError):
            await import_threads(backend, file)
    parts.append(await import_threads(backend, file))
    assert len(parts) == 2
    for name in names:
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name), name


async def test_an_error_in_a_batch_names_its_line(source: Backend, target: Backend) -> None:
    """A2: The report names the line of the message that the store refuses. The messages above it are stored."""
    await source.checkpointer.append("t", [Message.user(str(n)) for n in range(5)])
    lines = lines_of(await exported(source, "t"))
    n = at(lines, "message") + 3
    lines[n]["message"] = {**lines[n - 1]["message"], "run_id": "another"}
    report = await import_threads(target, file_of(lines))
    assert report.outcomes == {"failed": 1} and report.messages == 3
    assert report.notes[0].what.startswith(f"not imported from line {n + 1} on: ")
    assert len((await target.threads.messages("t")).items) == 3


async def test_an_error_at_the_end_of_a_section_names_a_line(source: Backend, target: Backend) -> None:
    """A2: The last line of the section is the line of an error at its end."""
    await turn(source, "t", "r1")
    lines = lines_of(await exported(source, "t"))
    with patch.object(target.threads, "update_thread", side_effect=InvalidInputError("no")):
        report = await import_threads(target, file_of(lines))
    assert report.outcomes == {"failed": 1}
    assert report.notes[0].what.startswith(f"not imported from line {len(lines) - 1} on: ")
