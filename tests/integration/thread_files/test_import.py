"""The import of files of threads: new ids, interruptions, deleted ancestors, branches of workers, memory, and the commands."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from runyard.errors import ThreadNotFoundError
from runyard.models import Message, new_id
from runyard.ports.stores import Backend
from runyard_api.cli.main import main
from runyard_backends.conformance.world import World, said
from runyard_backends.memory import connect as connect_memory
from runyard_backends.sql.backend import connect_sqlite
from runyard_backends.thread_files import export_threads, import_threads
from tests.support.thread_families import exported, furnish, shown, turn


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[Backend]:
    backend = await connect_sqlite(f"sqlite:///{tmp_path}/source.db")
    await furnish(backend)
    yield backend
    await backend.close()


@pytest.fixture
async def target() -> Backend:
    return await connect_memory(f"memory://{new_id()}")


async def everything(backend: Backend) -> dict[str, Any]:
    return {thread.thread_id: await shown(backend, thread.thread_id) for thread in (await backend.threads.threads()).items}


def unnamed(found: Any) -> str:
    """Return ``found`` as text, with each id replaced by the number of its first place."""
    text, ids = json.dumps(found, default=str, sort_keys=False), {}
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", lambda match: ids.setdefault(match[0], f"id {len(ids)}"), text)


async def test_ancestors_are_exported_and_other_forks_are_not(source: Backend, target: Backend) -> None:
    """F2: The import of a fork of a fork stands alone, with its ancestors."""
    report = await import_threads(target, await exported(source, "deeper"))
    assert report.complete and report.notes == []
    assert sorted(await everything(target)) == ["after-fast", "deep", "deeper", "t"]
    assert await shown(target, "deeper") == await shown(source, "deeper")
    with pytest.raises(ThreadNotFoundError):
        await exported(source, "nowhere")


async def test_a_fork_keeps_its_own_config(source: Backend, target: Backend) -> None:
    """An imported fork has the config of the export, and not that of its parent."""
    await source.threads.update_thread("t", config={"policy": "ask", "of": "t"})
    await source.threads.update_thread("deep", config={"policy": "never"})
    report = await import_threads(target, await exported(source, "deep"))
    assert report.complete and report.notes == []
    found = [await target.threads.thread(id) for id in ("t", "deep")]
    assert [thread.config for thread in found if thread] == [{"policy": "ask", "of": "t"}, {"policy": "never"}]


async def test_new_ids_make_a_copy_in_the_same_deployment(source: Backend) -> None:
    """I5: With new ids, a family is imported beside itself. A repetition of the import finds its own threads."""
    before = await everything(source)
    file = await exported(source, "t", forks=True)
    report = await import_threads(source, file, new_ids=True)
    assert report.outcomes == {"imported": 7} and report.notes == []
    after = await everything(source)
    assert {thread: after[thread] for thread in before} == before and len(after) == 14
    [copy] = [found for thread, found in after.items() if thread not in before and found["thread"][4] is None]
    ids = {id for path in copy["paths"].values() for (id, *_) in path[-1]}
    assert ids.isdisjoint(id for found in before.values() for path in found["paths"].values() for (id, *_) in path[-1])
    assert copy["thread"][:4] == before["t"]["thread"][:4]
    lengths = [sorted(len(path[-1]) for path in found["paths"].values()) for found in (copy, before["t"])]
    assert lengths[0] == lengths[1]
    assert set(copy["runs"]).isdisjoint(before["t"]["runs"])
    assert sorted(copy["runs"].values()) == sorted(before["t"]["runs"].values())
    assert (await import_threads(source, file, new_ids=True)).outcomes == {"unchanged": 7}
    assert await everything(source) == after


async def test_another_thread_with_an_id_is_left_alone(source: Backend, target: Backend) -> None:
    """F4: A thread with a taken id is refused, with the forks that need it. The other threads are imported."""
    await target.threads.store_message("deep", Message.user("mine"))
    before = await shown(target, "deep")
    report = await import_threads(target, await exported(source, "t", forks=True))
    assert report.outcomes == {"imported": 5, "refused": 1, "failed": 1} and not report.complete
    assert {note.thread_id for note in report.notes} == {"deep", "deeper"}
    assert await shown(target, "deep") == before


async def test_a_dry_run_counts_and_writes_nothing(source: Backend, target: Backend) -> None:
    file = await exported(source, "t", forks=True)
    planned = await import_threads(target, file, dry_run=True)
    assert await everything(target) == {}
    done = await import_threads(target, file)
    for name in ("outcomes", "messages", "runs", "forks", "requests", "answers"):
        assert getattr(planned, name) == getattr(done, name), name


async def test_a_later_export_adds_to_the_import(source: Backend, target: Backend) -> None:
    """A file of a later export adds its new messages and runs. Changes in the deployment stay."""
    await import_threads(target, await exported(source, "deep"))
    await target.checkpointer.save_extra("deep", {"colour": "green"})
    await target.threads.update_thread("deep", title="mine")
    await turn(source, "deep", "later")
    report = await import_threads(target, await exported(source, "deep"))
    assert report.outcomes == {"added": 3} and report.complete
    expected, found = await shown(source, "deep"), await shown(target, "deep")
    assert found["paths"] == expected["paths"] and found["snapshots"] == expected["snapshots"]
    assert found["thread"][1:3] == ["mine", {**expected["thread"][2], "colour": "green"}]


async def test_an_unchanged_thread_that_cannot_be_read(source: Backend, target: Backend) -> None:
    """F4: An error of the store in a thread that an import finds unchanged is in the report. The import goes on."""
    file = await exported(source, "t", forks=True)
    await import_threads(target, file)
    error = ThreadNotFoundError("the thread was deleted", thread_id="repaired")
    with patch.object(target.threads, "branch_keys", side_effect=error):
        report = await import_threads(target, file)
    assert report.outcomes == {"unchanged": 6, "failed": 1} and not report.complete
    assert [note.what for note in report.notes if note.thread_id == "repaired"] == ["not compared: the thread was deleted"]
    with patch.object(target.threads, "branch_keys", return_value=[]):
        assert (await import_threads(target, file)).outcomes == {"unchanged": 7}


class Interrupted(BaseException):
    pass


WRITES = {
    "checkpointer": ("append", "claim_run", "mark_run_complete", "save_extra", "save_pending_request", "save_requests"),
    "threads": ("create_thread", "fork", "update_thread", "set_head", "set_label"),
    "runs": ("cancel", "respond"),
}


async def interrupted(file: io.BytesIO, backend: Backend, number: int, kind: str) -> bool:
    """Import, and stop before or after the write with this number. Return False if the import has fewer writes."""
    left = number

    def stopping(method: Any) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            here, left = left == 0, left - 1
            if here and kind == "before":
                raise Interrupted
            result = await method(*args, **named)
            if here:
                raise Interrupted
            return result

        return call

    async with AsyncExitStack() as stack:
        for port, names in WRITES.items():
            for name in names:
                store = getattr(backend, port)
                stack.enter_context(patch.object(store, name, stopping(getattr(store, name))))
        try:
            await import_threads(backend, file)
        except Interrupted:
            return True
    return False


@pytest.mark.parametrize("kind", ["before", "after"])
async def test_an_import_that_is_interrupted_anywhere_continues(source: Backend, target: Backend, kind: str) -> None:
    """Each write of an import is the last one of its process once. The next import completes the same state."""
    file = await exported(source, "t", forks=True)
    await import_threads(target, file)
    whole, number = unnamed(await everything(target)), 0
    while True:
        backend = target.for_tenant(f"{kind}{number}")
        if not await interrupted(file, backend, number, kind):
            break
        report = await import_threads(backend, file)
        assert report.complete and unnamed(await everything(backend)) == whole, number
        number += 1
    assert number > 50


async def test_the_fork_of_a_deleted_thread_stands_alone(source: Backend, target: Backend) -> None:
    """D1: The messages that a fork inherited from a deleted thread become the fork's own. The file notes the lost lineage."""
    expected = await shown(source, "after-fast")
    for thread in ("inside", "repaired", "t"):
        await source.threads.delete_thread(thread)
    report = await import_threads(target, await exported(source, "after-fast", forks=True))
    assert report.complete and sorted(await everything(target)) == ["after-fast", "deep", "deeper"]
    assert [note.what for note in report.notes if "lineage" in note.what]
    found = await shown(target, "after-fast")
    assert list(found["paths"]) == list(expected["paths"])
    assert [path[-1] for path in found["paths"].values()] == [path[-1] for path in expected["paths"].values()]
    assert found["snapshots"]["r1"] == (await shown(source, "deeper"))["snapshots"]["fast"][:-2]
    assert (await shown(target, "deeper"))["paths"] == (await shown(source, "deeper"))["paths"]


async def test_branches_of_workers(target: Backend) -> None:
    """B4, B5, R10: Prompts at a parent, parallel runs, failed and cancelled runs of workers are on the same paths."""
    world = World(await connect_memory("memory://workers"), lambda *_: None)  # type: ignore[arg-type, return-value]
    await world.turn("r1")
    await world.turn("r2")
    at = await world.id_of("r1!")
    await world.turn("again", parent_id=at)
    await world.turn("again and again", parent_id=at)
    await world.failed("bad")
    beside = await world.start("live", "live?", parent_id=await world.id_of("r2!"))
    await world.runs.append(beside, [said("live…")])
    await world.fork("c", at_message_id=await world.id_of("r2!"))
    await world.turn("own", thread="c")
    report = await import_threads(target, await exported(world.backend, "t", forks=True))
    assert report.complete and [note.what for note in report.notes if "path" in note.what] == []
    for thread in ("t", "c"):
        expected, found = await shown(world.backend, thread), await shown(target, thread)
        for name in ("snapshots", "thread"):
            assert found[name] == expected[name]
        for leaf, path in expected["paths"].items():
            assert (found["paths"][leaf][0], found["paths"][leaf][-1]) == (path[0], path[-1])
    assert (await shown(target, "t"))["runs"]["bad"] == "cancelled"


async def test_memory_does_not_grow_with_the_messages(tmp_path: Path) -> None:
    """A2: An export and an import have a page of messages in memory."""
    backend = await connect_sqlite(f"sqlite:///{tmp_path}/long.db")
    text = "x" * 20_000
    for n in range(10):
        await backend.checkpointer.append("long", [Message.user(f"{n} {k} {text}") for k in range(100)])
    tracemalloc.start()
    with (tmp_path / "long.jsonl").open("w+b") as file:
        await export_threads(backend, "long", file)
        report = await import_threads(backend, file, new_ids=True)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await backend.close()
    assert report.messages == 1000 and (tmp_path / "long.jsonl").stat().st_size > 20 * 10**6
    assert most < 15 * 10**6, most


async def test_the_commands(source: Backend, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """The commands write and read files, and their exit codes tell what happened. An incomplete export leaves no file."""
    file = tmp_path / "t.jsonl"

    async def run(store: str, *arguments: str) -> tuple[int, bytes, bytes]:
        code = await asyncio.to_thread(main, ["--url", f"sqlite:///{tmp_path}/{store}.db", "threads", *arguments])
        return code, *capsysbinary.readouterr()

    code, out, _ = await run("source", "export", "t", str(file), "--forks", "--json")
    assert code == 0 and json.loads(out)["threads"] == 7
    code, out, _ = await run("source", "export", "t", "--forks")
    assert code == 0 and len(out.splitlines()) == len(file.read_bytes().splitlines())
    code, out, _ = await run("target", "import", str(file), "--json")
    assert code == 0 and json.loads(out)["complete"] and json.loads(out)["outcomes"] == {"imported": 7}
    code, out, _ = await run("target", "import", str(file))
    assert code == 0 and b"7 unchanged" in out
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(file)
    for place in (fifo, Path("/dev/zero"), tmp_path, link):
        code, _, why = await run("source", "export", "t", str(place))
        assert code == 2 and b"is not a regular file" in why and (place is not link or link.is_symlink())
        code, _, why = await run("target", "import", str(place))
        assert code == (0 if place is link else 2), why
        assert place is link or b"regular file" in why or b"cannot read" in why
    for text, line in ((b"\0" * 2**20, b"line 1"), (b"x" * 10, b"line 1")):
        with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text))):
            code, _, why = await run("target", "import", "-")
        assert code == 2 and line in why
    with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes()))):
        assert (await run("target", "import", "-"))[0] == 0
    assert (await run("source", "export", "nowhere", str(tmp_path / "none")))[0] == 3
    assert (await run("target", "import", str(tmp_path / "absent")))[0] == 2
    file.write_bytes(file.read_bytes()[:-10])
    code, _, why = await run("target", "import", str(file))
    assert code == 2 and b"line " in why
    assert not (tmp_path / "none").exists() and not list(tmp_path.glob(".*"))
