"""Files of threads that a stranger made. A refusal names the line, and nothing is written (A2, M6)."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from runyard.errors import InvalidInputError
from runyard.models import HitlRequest, Message, ToolCallPart, new_id
from runyard.ports.stores import Backend
from runyard_backends.memory import connect
from runyard_backends.thread_files import checks, export_threads, exporter, import_threads, records
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


def replaced(kind: str, line: Any) -> Callable[[list[Any]], int]:
    """Return a function that replaces a line of the last section, so that the last line is refused."""

    def change(lines: list[Any]) -> int:
        lines[at(lines, kind, 1)] = line
        return len(lines)

    return change


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
    "an export id that is none": changed("family", export_id="a:b"),
    "an exported thread that is none": changed("family", thread_id="x" * 300),
    "a tag that is none": changed("thread", tags={"": "x"}),
    "no head": without("head", 0, "thread", 1),
    "no last head": replaced("head", {"type": "note", "what": "x"}),
    "two heads": added("head", {"type": "head", "message_id": new_id()}),
    "a head that is none": changed("head", message_id="x"),
    "a branch at no message": changed("branch", at="x"),
    "a fork at no message": lambda lines: (
        lines.insert(n := at(lines, "fork"), {**FORK, "after_run_id": None, "at_message_id": "x", "thread_id": "z"}),
        n + 1,
    )[1],
    "a fork with an id that is none": lambda lines: (lines.insert(n := at(lines, "fork"), {**FORK, "thread_id": ".."}), n + 1)[
        1
    ],
    "a fork without a cut": changed("fork", after_run_id=None),
    "a cancel of an ended run": added("complete", {"type": "cancel", "run_id": "r"}),
    "a claim of an ended run": added("complete", {"type": "claim", "run_id": "r"}),
    "a line before the first thread": added("family", {"type": "note", "what": "x"}),
    "another family": added("thread", {"type": "family", "export_id": new_id(), "thread_id": "x"}),
    "no thread": lambda lines: (lines.__setitem__(slice(1, None), [{"type": "end", "lines": 1}]), 2)[1],
    "a long note": added("head", {"type": "note", "what": "x" * 1001}),
    "many labels": changed("leaf", labels=["x"] * 101),
    "a label that is none": changed("leaf", labels=[""], labelled=new_id()),
    "a label of no message": changed("leaf", labels=["x"]),
    "a negative depth": changed("leaf", depth=-1),
    "an id that is no id": changed("thread", thread_id=".."),
    "an origin that is none": changed("thread", origin="runyard"),
    "a run id that is no id": changed("claim", run_id="a\nb"),
    "a message with an unknown part": message_with(content=[{"type": "shell", "text": "x"}]),
    "a cycle of a thread with itself": added("thread", FORK),
    "a cycle of two threads": lambda lines: (lines.insert(n := at(lines, "thread", 1) + 1, FORK), n + 1)[1],
    "two parents": lambda lines: (lines.insert(n := at(lines, "thread", 1) + 1, {**FORK, "thread_id": "b"}), n + 1)[1],
    "a parent that the file lacks": without("fork", 0, "thread", 1),
    "a fork without a section": replaced("leaf", {**FORK, "thread_id": "c"}),
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
    "two ends": lambda lines: (lines.append(lines[-1]), len(lines))[1],
    "lines after the end": lambda lines: (lines.append({"type": "note", "what": "x"}), len(lines))[1],
    "no end": lambda lines: (lines.pop(), len(lines) + 1)[1],
    "a long name": lambda lines: (lines.insert(2, {"type": "claim", "run_id": "r", "x" * 10**6: 1}), 3)[1],
    "a long type": lambda lines: (lines.insert(2, {"type": "x" * 10**6}), 3)[1],
    "nothing": lambda lines: (lines.clear(), 1)[1],
}


WORDS = {
    "another file": "does not begin with",
    "a line that is too large": f"more than {records.MAX_LINE_BYTES} bytes",
    "many values": f"more than {records.MAX_LINE_VALUES} values",
    "a long number": "digits",
    "a run id that is no id": "run_id must be",
    "lines after the end": "follows the line of the type end",
}
"""Words of the errors of lines that would be refused for another reason as well."""


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_refused_file_writes_nothing(backend: Backend, lines: list[Any], what: str) -> None:
    """A2: The error has the number of the first wrong line. No thread of the file is made."""
    number = HOSTILE[what](lines)
    with pytest.raises(InvalidInputError, match=rf"^line {number}: ") as caught:
        await import_threads(backend, file_of(lines))
    assert caught.value.details["line"] == number and caught.value.details["field"] == "file"
    assert len(str(caught.value)) < 1000 and str(caught.value).count(f"line {number}: ") == 1
    assert WORDS.get(what, "") in str(caught.value)
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


@pytest.mark.parametrize(("bound", "kind"), [("MAX_THREADS", "fork"), ("MAX_RUNS", "claim"), ("MAX_LINES", "thread")])
async def test_bounds_of_a_file(backend: Backend, lines: list[Any], bound: str, kind: str) -> None:
    """A2: The numbers of lines, threads and runs of a thread are bounded. An export refuses what an import would refuse."""
    limit = 1 if bound != "MAX_LINES" else at(lines, "thread", 1)
    source = await connect(f"memory://{new_id()}")
    for run in ("r", "s"):
        await turn(source, "a", run)
    await fork(source, "a", "b", after_run_id="r")
    file = await exported(source, "a", forks=True)
    refused = pytest.raises(InvalidInputError, match=rf"more than {limit} ")
    with patch.object(checks, bound, limit, create=True), patch.object(records, bound, limit), refused as caught:
        await import_threads(backend, file)
    assert caught.value.details["line"] > 1
    with patch.object(exporter, bound, limit), pytest.raises(InvalidInputError, match=f"at most {limit} "):
        await exported(source, "a", forks=True)


def test_a_check_is_linear(lines: list[dict[str, Any]]) -> None:
    """A2: The time of a check grows with the number of runs and requests, and not with their product.

    Sixteen times as many take 16 times as long, and 256 times if each is compared with each.
    """

    def seconds(number: int) -> float:
        runs = [{"type": kind, "run_id": f"x{n}"} for n in range(number) for kind in ("claim", "complete")]
        asked = [{"type": "request", "request": {"run_id": f"x{n}"}} for n in range(number)]
        n = at(lines, "leaf")
        file = file_of([*lines[:n], *runs, *asked, *lines[n:-1], {"type": "end", "lines": len(lines) - 1 + 3 * number}])
        times = []
        for _ in range(3):
            file.seek(0)
            began = time.process_time()
            checks.check_file(file)
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(16_000) < 64 * seconds(1000)


async def test_a_pipe_is_refused(backend: Backend) -> None:
    """A2: An import needs a file that it can read twice."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(InvalidInputError, match="reads its file twice"):
        await import_threads(backend, Pipe())


async def test_values_at_the_limits_are_carried(backend: Backend) -> None:
    """A2: The largest extra, config and tags that a store accepts fit into a line and into the calls of an import."""
    source = await connect(f"memory://{new_id()}")
    await turn(source, "t", "r")
    for n in range(8):
        value = {f"k{n}": [0] * 24_000}
        await source.checkpointer.save_extra("t", value)
        await source.threads.update_thread("t", config=value)
    await source.threads.update_thread("t", tags={"large": "x" * (2**14 - 100), "small": "y"})
    report = await import_threads(backend, await exported(source, "t"))
    assert report.complete and [note.what.partition(",")[0] for note in report.notes] == ["the tag large"]
    expected, found = await source.threads.thread("t"), await backend.threads.thread("t")
    assert expected is not None and found is not None
    assert found.extra == expected.extra and found.config == expected.config and found.tags["small"] == "y"


async def test_a_fork_at_the_closing_message_of_a_fork(backend: Backend) -> None:
    """F6: A fork may begin at a message that repaired the fork of its parent. That message has a new id in the deployment."""
    source = await connect(f"memory://{new_id()}")
    call = Message.assistant([ToolCallPart(id="c", name="look", arguments={})], run_id="open")
    await source.checkpointer.claim_run("a", "open")
    await source.checkpointer.append("a", [call])
    await fork(source, "a", "b", at_message_id=call.id, repair=True)
    [*_, closing] = (await source.threads.messages("b")).items
    await fork(source, "b", "c", at_message_id=closing.id)
    await fork(source, "c", "d", at_message_id=closing.id)
    for target in (backend, backend.for_tenant("new")):
        report = await import_threads(target, await exported(source, "a", forks=True), new_ids=target is not backend)
        assert report.outcomes == {"imported": 4} and len(report.notes) == 0, report.notes
    assert len((await backend.threads.messages("d")).items) == 2
