"""Failpoints: rules are read, applied where they say, and cost nothing where there are none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from runyard.errors import BackendUnavailableError, InvalidInputError
from runyard.models import Message, Run
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import Delivery, Job
from runyard.ports.stores import Backend
from runyard.support import backend_urls, failpoints
from runyard_backends.memory import connect


async def armed(text: str) -> Backend:
    return failpoints.armed(await connect(), failpoints.parse(text))


async def accept(backend: Backend, run_id: str = "r") -> None:
    await backend.runs.accept(AcceptRequest(thread_id="t", run_id=run_id, input=Message.user("hi")))


async def found(backend: Backend, run_id: str = "r") -> Run | None:
    return await backend.runs.run("t", run_id)


def test_every_verb_of_every_port_can_have_one() -> None:
    verbs = failpoints.verbs()
    assert {"runs.accept", "runs.claim", "scheduler.claim", "workers.beat", "events.append", "threads.fork"} <= set(verbs)
    assert len(verbs) == len(set(verbs))
    for verb in verbs:
        assert failpoints.parse(f"{verb}.before=crash; {verb}.after=delay(1)*2")


@pytest.mark.parametrize(
    "text",
    [
        "runs.accept",
        "runs.accept.before=explode",
        "runs.accept.before",
        "runs.nothing.before=crash",
        "runs.accept.during=crash",
    ],
)
def test_failpoint_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="RUNYARD_FAILPOINTS"):
        failpoints.parse(text)


async def test_before_the_request_is_lost_after_the_answer() -> None:
    backend = await armed("runs.accept.before=error*1")
    with pytest.raises(BackendUnavailableError, match=r"runs\.accept\.before"):
        await accept(backend)
    assert await found(backend) is None
    backend = await armed("runs.accept.after=error*1")
    with pytest.raises(BackendUnavailableError):
        await accept(backend)
    assert await found(backend) is not None
    await accept(backend)


async def test_times_and_skip_count_calls() -> None:
    backend = await armed("runs.accept.before=error*2+1")
    outcomes = []
    for n in range(5):
        try:
            await accept(backend, f"r{n}")
            outcomes.append("ok")
        except BackendUnavailableError:
            outcomes.append("lost")
    assert outcomes == ["ok", "lost", "lost", "ok", "ok"]


async def test_a_rule_may_be_for_one_run() -> None:
    backend = await armed("runs.accept.before[second]=error")
    await accept(backend, "first")
    with pytest.raises(BackendUnavailableError):
        await accept(backend, "second")


@pytest.mark.parametrize(
    "argument",
    [
        RunRef(1, "r"),
        AttemptToken(1, "r", 1),
        [Write(attempt=AttemptToken(1, "r", 1))],
        (Delivery(Job(1, "r"), 1),),
        {"run_id": "r"},
        AcceptRequest(thread_id="t", run_id="r"),
        "r",
    ],
)
def test_a_call_names_its_runs(argument: Any) -> None:
    assert "r" in set(failpoints.runs_in((argument, 5, None, b"bytes")))


async def test_a_pause_ends_when_the_file_is_there(tmp_path: Path) -> None:
    file = tmp_path / "go on"
    backend = await armed(f"runs.accept.before=pause({file})")
    accepting = asyncio.create_task(accept(backend))
    done, _ = await asyncio.wait((accepting,), timeout=0.05)
    assert not done
    file.touch()
    await asyncio.wait_for(accepting, 5)


async def test_notes_name_the_points_in_their_order(tmp_path: Path) -> None:
    backend = await armed(f"*=note({tmp_path / 'notes'});runs.accept.before=delay(0)")
    await accept(backend.for_tenant("other"))
    await backend.workers.workers()
    assert (tmp_path / "notes").read_text().split() == [
        "runs.accept.before",
        "runs.accept.after",
        "workers.workers.before",
        "workers.workers.after",
    ]


async def test_the_environment_arms_what_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = await backend_urls.connect("memory://")
    assert "failpoints" not in type(plain).__module__ + type(plain.runs).__module__
    monkeypatch.setenv("RUNYARD_FAILPOINTS", "runs.accept.before=error*1")
    first, second = await backend_urls.connect("memory://"), await backend_urls.connect("memory://")
    with pytest.raises(BackendUnavailableError):
        await accept(first)
    await accept(second)  # counted for the whole process
