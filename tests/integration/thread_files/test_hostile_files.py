"""Files of threads that a stranger made. A refusal names the line, and nothing is written (A2, M6)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from runyard.errors import InvalidInputError
from runyard.models import HitlRequest, Message, new_id
from runyard.ports.stores import Backend
from runyard_backends.memory import connect
from runyard_backends.thread_files import export_threads, import_threads, records
from tests.support.thread_families import exported, fork, shown, turn

ORIGIN = "0" * 16


@pytest.fixture
async def backend() -> Backend:
    return await connect(f"memory://{new_id()}")


@pytest.fixture
async def lines() -> list[dict[str, Any]]:
    """The lines of an export: a thread with a run, and its fork."""
    source = await connect(f"memory://{new_id()}")
    await turn(source, "a", "r")
    await fork(source, "a", "b", after_run_id="r")
    await turn(source, "b", "s")
    file = await exported(source, "a", forks=True)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def file_of(lines: list[Any]) -> io.BytesIO:
    return io.BytesIO(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))


def at(lines: list[dict[str, Any]], kind: str, nth: int = 0) -> int:
    return [n for n, line in enumerate(lines) if line["type"] == kind][nth]


def changed(kind: str, nth: int = 0, **fields: Any) -> Callable[[list[Any]], int]:
    """Return a function that changes a line, and returns the number of the line that is refused."""

    def change(lines: list[Any]) -> int:
        n = at(lines, kind, nth)
        lines[n] = {**lines[n], **fields}
        return n + 1

    return change


def added(after: str, line: Any) -> Callable[[list[Any]], int]:
    def change(lines: list[Any]) -> int:
        n = at(lines, after) + 1
        lines.insert(n, line)
        return n + 1

    return change


def without(kind: str, nth: int, refused_at: str, refused_nth: int = 0) -> Callable[[list[Any]], int]:
    def change(lines: list[Any]) -> int:
        del lines[at(lines, kind, nth)]
        return at(lines, refused_at, refused_nth) + 1

    return change


def message_with(**fields: Any) -> Callable[[list[Any]], int]:
    def change(lines: list[Any]) -> int:
        n = at(lines, "message")
        lines[n]["message"] |= fields
        return n + 1

    return change


def large(lines: list[Any]) -> int:
    n = at(lines, "message")
    lines[n] = b'{"type": "message", "message": "' + b"x" * records.MAX_LINE_BYTES + b'"}\n'
    return n + 1


def late(lines: list[Any]) -> int:
    n = at(lines, "complete") + 1
    lines.insert(n, lines[at(lines, "message")])
    return n + 1


FORK = {"type": "fork", "thread_id": "a", "origin": ORIGIN, "after_run_id": "r"}

HOSTILE: dict[str, Callable[[list[Any]], int]] = {
    "another version": changed("family", version=2),
    "a version of another type": changed("family", version=[1]),
    "another file": changed("family", type="thread"),
    "a line that is too large": large,
    "a line that is no JSON": added("thread", b"{\n"),
    "a line that is no text": added("thread", b"\xff\xfe\n"),
    "a deep line": added("thread", b"[" * 100_000 + b"\n"),
    "many values": added("thread", b"[" + b"0," * records.MAX_LINE_VALUES + b"0]\n"),
    "many values of an extra": changed("thread", extra={"a": [0] * records.MAX_LINE_VALUES}),
    "a long number": added("thread", b'{"type": "end", "lines": ' + b"9" * 10_000 + b"}\n"),
    "an unknown type": added("thread", {"type": "tenant", "tenant": "victim"}),
    "no type": added("thread", {"tenant": "victim"}),
    "a forged tenant": changed("thread", tenant="victim"),
    "a forged tenant of a message": message_with(tenant="victim"),
    "an id that is no id": changed("thread", thread_id=".."),
    "an origin that is none": changed("thread", origin="runyard"),
    "a run id that is no id": changed("claim", run_id="a\nb"),
    "a message with an unknown part": message_with(content=[{"type": "shell", "text": "x"}]),
    "a cycle of a thread with itself": added("thread", FORK),
    "a cycle of two threads": lambda lines: (lines.insert(n := at(lines, "thread", 1) + 1, FORK), n + 1)[1],
    "two parents": lambda lines: (lines.insert(n := at(lines, "thread", 1) + 1, {**FORK, "thread_id": "b"}), n + 1)[1],
    "a parent that the file lacks": without("fork", 0, "thread", 1),
    "a fork without a section": lambda lines: (lines.insert(n := at(lines, "end"), {**FORK, "thread_id": "c"}), n + 2)[1],
    "a fork with two cuts": changed("fork", at_message_id=new_id()),
    "a fork that differs from its section": changed("thread", nth=1, origin=ORIGIN),
    "a message id that is none": changed("leaf", message_id="../x"),
    "two sections of a thread": lambda lines: (lines.insert(n := at(lines, "end"), lines[1]), n + 1)[1],
    "a run that is claimed twice": added("claim", {"type": "claim", "run_id": "r"}),
    "a completion without a claim": without("claim", 0, "complete"),
    "a message after the end of its run": late,
    "a message before the branch": without("branch", 0, "claim"),
    "a request of another run": added("complete", {"type": "request", "request": {"run_id": "s"}}),
    "missing lines": without("leaf", 0, "end"),
    "lines after the end": lambda lines: (lines.append(lines[-1]), len(lines))[1],
    "no end": lambda lines: (lines.pop(), len(lines) + 1)[1],
    "nothing": lambda lines: (lines.clear(), 1)[1],
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_refused_file_writes_nothing(backend: Backend, lines: list[Any], what: str) -> None:
    """A2: The error has the number of the first wrong line. No thread of the file is made."""
    number = HOSTILE[what](lines)
    with pytest.raises(InvalidInputError, match=rf"^line {number}: ") as caught:
        await import_threads(backend, file_of(lines))
    assert caught.value.details["line"] == number and caught.value.details["field"] == "file"
    assert (await backend.threads.threads()).items == []


async def test_a_file_that_the_store_refuses_ends_its_thread(backend: Backend, lines: list[Any]) -> None:
    """A2: Errors that only a store finds end the import of a thread at a line that the report names."""
    n = at(lines, "leaf", 1)
    lines.insert(n, {"type": "branch", "at": new_id()})
    lines.insert(n + 1, {"type": "message", "message": {"id": new_id(), "role": "user", "content": "x"}})
    lines[-1]["lines"] += 2
    report = await import_threads(backend, file_of(lines))
    assert report.outcomes == {"imported": 1, "failed": 1} and not report.complete
    assert f"from line {n + 2} on" in report.notes[0].what


async def test_the_threads_of_other_tenants_are_out_of_reach(lines: list[Any]) -> None:
    """A1: A file cannot read, change or occupy a thread or a request of another tenant, even with its ids."""
    victim = await connect(f"memory://{new_id()}", tenant="victim")
    await turn(victim, "a", "r")
    await turn(victim, "b", "secret")
    before = [await shown(victim, thread) for thread in ("a", "b")]
    other = victim.for_tenant("other")
    report = await import_threads(other, file_of(lines))
    assert report.complete and report.outcomes == {"imported": 2}
    assert [await shown(victim, thread) for thread in ("a", "b")] == before


async def test_requests_of_another_thread_are_left_alone(backend: Backend, lines: list[Any]) -> None:
    """I6: A file cannot answer or replace a request of another thread."""
    await backend.checkpointer.save_pending_request("mine", HitlRequest(request_id="q"))
    asked = {"request_id": "q", "answer": 1, "answered_at": "2026-01-01T00:00:00Z"}
    lines.insert(at(lines, "leaf"), {"type": "request", "request": asked})
    lines[-1]["lines"] += 1
    report = await import_threads(backend, file_of(lines))
    assert "another thread has a request" in report.notes[0].what
    found = await backend.runs.request("q")
    assert found is not None and found.thread_id == "mine" and found.answered_at is None


async def test_a_message_of_the_largest_size_is_carried(backend: Backend) -> None:
    """A2: A message of the limit fits into a line, even if JSON needs six bytes for each of its characters."""
    await backend.checkpointer.append("t", [Message.user("\x01" * (8 * 2**20 - 4096))])
    file = io.BytesIO()
    await export_threads(backend, "t", file)
    report = await import_threads(backend, file, new_ids=True)
    assert report.complete and report.messages == 1
