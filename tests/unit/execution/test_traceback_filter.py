"""The filter of an App reads every traceback before it is stored or logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from runyard.app import App
from runyard.errors import TooManyChildrenError
from runyard.events.writer import EventWriter
from runyard.execution import fan_out
from runyard.execution.context import RunContext
from runyard.execution.executor import Execution, WorkerServices
from runyard.models import Message, Run
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard.testing.scripted_agent import scripted
from runyard_backends.memory import connect

Agent = Callable[[RunContext], Awaitable[None]]
HIDDEN = "[hidden]"
SHOWN = "(most recent call last)"


async def broken(ctx: RunContext) -> None:
    raise ValueError("no")


async def refused(ctx: RunContext) -> None:
    ctx.result = {"key": object()}  # type: ignore[dict-item]


async def limited(ctx: RunContext) -> None:
    raise TooManyChildrenError("too many", most=1)


async def told(app: App, *requests: AcceptRequest) -> tuple[Run, str]:
    """Execute the requests in order. Return the last run, and everything that its attempts stored and logged, as text."""
    backend = await connect()
    writer = EventWriter(backend.events)
    with capture_logs() as logs:
        for request in requests:
            await executed(backend, writer, app, request)
    last = requests[-1]
    run = await backend.runs.run("t", last.run_id)
    assert run is not None
    attempts = (await backend.runs.attempts("t", run.run_id)).items
    stored = [run.model_dump_json(), *(attempt.model_dump_json() for attempt in attempts)]
    if run.kind == "fork_many":
        stored += [each.model_dump_json() for each in (await backend.fan_outs.candidates("t", run.run_id)).items]
    return run, "\n".join([*stored, json.dumps(logs, default=str)])


async def executed(backend: Backend, writer: EventWriter, app: App, request: AcceptRequest) -> None:
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    await backend.runs.accept(request)
    key = await backend.threads.thread_key("t")
    assert key is not None
    [claim] = await backend.runs.claim("w", [RunRef(key, request.run_id)])
    await Execution(WorkerServices.of(app, backend, writer), claim).run()


def app_of(agent: Agent, judge: Agent = scripted) -> App:
    return App({"scripted": scripted, "agent": agent, "judge": judge}, traceback_filter=lambda text: HIDDEN)


def prompt(run_id: str = "r", agent: str = "agent") -> AcceptRequest:
    return AcceptRequest(thread_id="t", run_id=run_id, input=Message.user("say one"), agent=agent)


def job(kind: str, agent: str = "agent", fan: FanOut | None = None) -> AcceptRequest:
    message = None if fan is not None else Message.user("say two")
    fork = ForkRequest(src="t", new="job", cut=Cut(after_run_id="first"), fan=fan)
    return AcceptRequest(thread_id="t", run_id="job", kind=kind, input=message, fork=fork, agent=agent)  # type: ignore[arg-type]


FIRST = prompt("first", "scripted")
TWO = [Message.user("say a"), Message.user("say b")]


@pytest.mark.parametrize("agent", [broken, limited, refused])
async def test_the_error_of_a_run_is_filtered_in_its_record_its_attempts_and_the_log(agent: Agent) -> None:
    """Also if the store refused the end that the agent wanted."""
    run, text = await told(app_of(agent), prompt())
    assert run.error is not None and run.error.traceback == HIDDEN
    assert SHOWN not in text and text.count(HIDDEN) >= 2


async def test_the_error_of_a_probe_is_filtered_in_its_result_and_the_log() -> None:
    _, text = await told(app_of(broken), FIRST, job("fork_once"))
    assert SHOWN not in text and text.count(HIDDEN) == 2


async def test_the_errors_of_candidates_are_filtered() -> None:
    _, text = await told(app_of(broken), FIRST, job("fork_many", fan=FanOut(messages=TWO, max_parallel=2)))
    assert SHOWN not in text and text.count(HIDDEN) == 4


async def test_the_refusal_of_a_candidates_answer_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def large(ctx: RunContext) -> None:
        await ctx.append(*(Message.assistant("x", metadata={"values": list(range(20_000))}) for _ in range(6)))

    _, text = await told(app_of(large), FIRST, job("fork_many", fan=FanOut(messages=TWO, max_parallel=2)))
    assert SHOWN not in text and text.count(HIDDEN) == 2


async def test_the_error_of_a_judge_is_filtered_in_the_verdict() -> None:
    run, text = await told(
        app_of(scripted, broken), FIRST, job("fork_many", fan=FanOut(messages=TWO, max_parallel=2, judge="judge"))
    )
    assert run.result is not None and SHOWN not in text and text.count(HIDDEN) == 2


async def test_the_refusal_of_answers_to_judge_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "JUDGED_BYTES", 10)
    run, text = await told(app_of(scripted), FIRST, job("fork_many", fan=FanOut(messages=TWO, max_parallel=2, judge="judge")))
    assert run.result is not None and SHOWN not in text and text.count(HIDDEN) == 1


async def test_a_filter_that_fails_is_logged_without_its_words_and_stores_no_traceback() -> None:
    def fails(text: str) -> str:
        raise KeyError(text)

    run, text = await told(App({"agent": broken}, traceback_filter=fails), prompt())
    assert run.error is not None and run.error.traceback is None
    assert SHOWN not in text and "traceback_filter_failed" in text and f"{__file__}:" in text


@pytest.mark.parametrize("kept", ["x" * 100_000, "ä\n" * 50_000, "\0\ud800"])
async def test_the_text_of_a_filter_is_bounded_and_storable(kept: str) -> None:
    run, _ = await told(App({"agent": broken}, traceback_filter=lambda text: kept), prompt())
    trace = run.error and run.error.traceback
    assert trace and len(trace.encode()) <= 8192 and "\0" not in trace and trace.count("\n") <= 500


async def test_the_traceback_of_a_tool_is_filtered_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    from pydantic_ai import Agent as Model
    from pydantic_ai.models.test import TestModel

    agent = Model(TestModel())

    @agent.tool_plain
    def lookup() -> str:
        raise ValueError("no")

    with caplog.at_level(logging.WARNING, logger="runyard.agents"):
        await told(App({"agent": agent}, traceback_filter=lambda text: HIDDEN), prompt())
    lines = [record for record in caplog.records if record.message.startswith("tool_failed")]
    assert lines and all(HIDDEN in line.message and line.exc_info is None for line in lines)


async def test_readers_other_than_operators_get_no_traceback_of_a_job() -> None:
    """Lists, webhooks and results of arq contain the result of a probe, and the verdict of a judge."""
    app = App({"scripted": scripted, "agent": broken, "judge": broken})
    probe, text = await told(app, FIRST, job("fork_once"))
    assert SHOWN in text and "traceback" not in probe.without_tracebacks().model_dump_json()
    judged, text = await told(app, FIRST, job("fork_many", "scripted", FanOut(messages=TWO, max_parallel=2, judge="judge")))
    shared = judged.without_tracebacks()
    assert SHOWN in text and "traceback" not in shared.model_dump_json() and '"agent_error"' in shared.model_dump_json()
