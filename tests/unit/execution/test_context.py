"""What an agent can do with its run: append, ask, approve (R7, R9, H1, H5, H11)."""

import asyncio
import copy
import gc
import weakref
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import pytest

from runyard.domain.derived_ids import request_id
from runyard.domain.states import RunStatus
from runyard.errors import HitlNotAllowedError, InvalidInputError
from runyard.events.writer import EventEmitter, EventWriter
from runyard.execution import transcript
from runyard.execution.attempt_store import ProbeAttemptStore
from runyard.execution.context import RunContext
from runyard.execution.control_signals import ControlSignal, QuestionRefused
from runyard.models import JsonObject, JsonValue, Message, ToolCallPart, ToolResultPart, Usage, new_id
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import AttemptToken
from runyard_backends.memory import connect
from tests.support.attempt_lab import Lab, status

CALL = ToolCallPart(id="c1", name="refund", arguments={"amount": 10})


async def test_task_that_outlives_an_attempt_holds_no_history(lab: Lab) -> None:
    """Timers of drivers hold the contextvars of whoever set them for minutes: a long history each."""
    seen: list[weakref.ref[Message]] = []
    contexts = []

    async def agent(ctx: RunContext) -> None:
        seen.extend(weakref.ref(message) for message in await ctx.history())
        await ctx.append(Message.assistant("hello"))
        contexts.append(copy_context())

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    gc.collect()
    assert len(contexts) == 1 and [message() for message in seen] == [None]


async def test_a_simple_run_is_committed_by_its_completion_alone(lab: Lab) -> None:
    """Accept, claim, complete: the final assistant message is held."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("hello"))
        assert [message.text for message in await ctx.history()] == ["hi", "hello"]

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert lab.commits == ["complete"]
    assert await lab.texts() == ["hi", "hello"]


async def test_a_held_message_is_committed_soon_and_a_kept_cancel_keeps_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: what the agent said before it goes on to wait is in the conversation after a cancel that keeps the messages."""
    monkeypatch.setattr(transcript, "HOLD_SECONDS", 0.0)
    stored = asyncio.Event()
    append = lab.backend.runs.append

    async def noted(*args: object, **kwargs: object) -> object:
        found = await append(*args, **kwargs)  # type: ignore[arg-type]
        stored.set()
        return found

    monkeypatch.setattr(lab.backend.runs, "append", noted)

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("I am on it."))
        await stored.wait()
        await lab.backend.runs.cancel("t", "r", keep=True)
        await ctx.append(Message.assistant([CALL]))
        raise AssertionError("a cancelled run appends nothing")

    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    assert await lab.texts() == ["hi", "I am on it."]


async def test_an_ended_attempt_leaves_no_timer(lab: Lab) -> None:
    """Q1: the timer of a held message holds its context no longer than the attempt lasts."""
    timers: list[asyncio.TimerHandle | None] = []

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("hello"))
        timers.append(ctx._timer)

    await lab.attempt(agent)
    assert [timer is not None and timer.cancelled() for timer in timers] == [True] and lab.commits == ["complete"]


async def test_a_tool_call_is_durable_when_append_returns_and_takes_what_was_held_along(lab: Lab) -> None:
    """R9."""
    seen = []

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("let me see"))
        await ctx.append(Message.assistant([CALL]))
        seen.append(list(lab.commits))
        await ctx.append(Message.tool(ToolResultPart(call_id="c1", content="ok")), Message.assistant("done"))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert seen == [["append"]]
    assert lab.commits == ["append", "append", "complete"]
    assert [len(message.tool_calls) for message in (await lab.backend.threads.messages("t")).items] == [0, 0, 1, 0, 0]


async def test_message_completed_follows_its_commit(lab: Lab) -> None:
    """E2: a held message is not announced before the completion."""

    async def agent(ctx: RunContext) -> None:
        await ctx.stream_text("hel")
        await ctx.stream_text("lo")
        [message] = await ctx.append(Message.assistant("hello"))
        ctx.extra["message_id"] = message.id

    await lab.attempt(agent)
    events = await lab.events()
    assert [event.type for event in events] == [
        "run.started", "message.completed", "message.started", "message.delta", "message.completed", "run.completed",
    ]  # fmt: skip
    assert len({event.data["message_id"] for event in events[2:5]}) == 1
    fence, _, _ = str(events[0].id).partition("-")
    assert [event.id for event in events] == [f"{fence}-{n}" for n in range(1, 7)]


@pytest.mark.parametrize("piece", [None, b"x", 5, ["x"]], ids=repr)
async def test_a_piece_that_is_not_text_is_refused(lab: Lab, piece: object) -> None:
    """A2, E1: the last chunk of a provider may have None where the text was. Nothing is sent of it."""

    async def agent(ctx: RunContext) -> None:
        with pytest.raises(InvalidInputError, match="skip chunks") as caught:
            await ctx.stream_text(piece)  # type: ignore[arg-type]
        assert caught.value.details["field"] == "text"
        with pytest.raises(InvalidInputError, match="skip chunks"):
            ctx.stream_part(piece, "arguments", ("c1", "refund"))  # type: ignore[arg-type]

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert [event.type for event in await lab.events()] == ["run.started", "message.completed", "run.completed"]


async def test_custom_event_is_copied_when_it_is_checked(lab: Lab) -> None:
    """A2: the dict stays the agent's, and it may go on with it."""

    async def agent(ctx: RunContext) -> None:
        progress: JsonObject = {"n": 0, "of": {"files": [1]}}
        for n in (1, 2):
            progress["n"] = n
            await ctx.emit(progress)
        progress["of"]["files"].append(b"x")  # type: ignore[index,call-overload,union-attr,arg-type]

    await lab.attempt(agent)
    sent = [event.data for event in await lab.events() if event.type == "message.delta"]
    assert sent == [{"n": 1, "of": {"files": [1]}}, {"n": 2, "of": {"files": [1]}}]


async def test_ask_suspends_and_later_returns_the_answer(lab: Lab) -> None:
    """H1, H5, H11: extra goes with the suspension; the run keeps its id; earlier answers are replayed."""

    async def agent(ctx: RunContext) -> None:
        ctx.extra["asked"] = True
        color = await ctx.ask("color?")
        size = await ctx.ask("size?")
        await ctx.append(Message.assistant(f"{color} {size}"))

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    for answer in ("red", "big"):
        [request] = (await lab.backend.runs.requests(thread_id="t")).items
        await lab.backend.runs.respond(answer, thread_id="t")
        ended = await lab.attempt(agent)
    assert request.payload == {"question": "size?"}
    assert status(ended) is RunStatus.COMPLETED
    assert (await lab.texts())[-1] == "red big"


async def test_value_nested_too_deep_is_refused_in_the_agents_call(lab: Lab) -> None:
    """Nothing is asked or sent, and the agent goes on."""
    deep: JsonValue = []
    for _ in range(100_000):
        deep = [deep]
    value: JsonObject = {"k": deep}

    async def agent(ctx: RunContext) -> None:
        for refused in (
            ctx.emit(value),
            ctx.ask(value),
            ctx.ask("ok?", value),
            ctx.ask("ok?", timeout=1, on_timeout=value),
            ctx.approve(CALL, details=value),
            ctx.step(lambda: value),
        ):
            with pytest.raises(InvalidInputError):
                await refused
        await ctx.append(Message.assistant("done"))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.texts() == ["hi", "done"]
    assert "message.delta" not in [event.type for event in await lab.events()]


async def test_extra_nested_too_deep_fails_its_run_and_not_the_next_one(lab: Lab) -> None:
    """R15, H11: nothing of it is kept."""

    async def agent(ctx: RunContext) -> None:
        ctx.extra["fine"] = True
        ctx.extra["k"] = ctx.extra

    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None
    assert (ended.status, ended.error.code, ended.error.details["field"]) == (RunStatus.FAILED, "invalid_input", "extra")
    thread = await lab.backend.threads.thread("t")
    assert thread is not None and thread.extra == {}


async def test_only_changed_keys_of_extra_are_saved(lab: Lab) -> None:
    """R15, H11: what others changed meanwhile survives a run that changed another key."""
    threads = lab.backend.threads

    async def agent(ctx: RunContext) -> None:
        ctx.extra["mine"] = 1
        await threads.update_thread("t", extra={"theirs": 2})

    await threads.update_thread("t", extra={"theirs": 1})
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    thread = await threads.thread("t")
    assert thread is not None and thread.extra == {"mine": 1, "theirs": 2}


async def test_agents_read_the_config(lab: Lab) -> None:
    """An attempt has a copy of the thread's config. A change is read by the attempts that begin later."""
    threads = lab.backend.threads
    seen: list[JsonObject] = []

    async def agent(ctx: RunContext) -> None:
        seen.append(copy.deepcopy(ctx.config))
        await threads.update_thread("t", config={"policy": "ask"})
        ctx.config["policy"] = "lost"
        if ctx.attempt == 1:
            await ctx.ask("sure?")

    await threads.update_thread("t", config={"policy": "never", "kept": 1})
    await lab.attempt(agent)
    await lab.backend.runs.respond("yes", thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert seen == [{"policy": "never", "kept": 1}, {"policy": "ask", "kept": 1}]


async def test_the_identical_question_asked_twice_is_asked_twice(lab: Lab) -> None:
    """H5."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(f"{await ctx.ask('sure?')} {await ctx.ask('sure?')}"))

    await lab.attempt(agent)
    await lab.backend.runs.respond("yes", thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    await lab.backend.runs.respond("no", thread_id="t")
    await lab.attempt(agent)
    assert (await lab.texts())[-1] == "yes no"


async def test_an_answer_never_goes_to_another_question(lab: Lab) -> None:
    """H5: an agent that asks something else in its next attempt is not answered from the wrong row."""

    async def agent(ctx: RunContext) -> None:
        await ctx.ask("delete all?" if ctx.attempt > 1 else "color?")

    await lab.attempt(agent)
    await lab.backend.runs.respond("yes", thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED


async def test_parallel_questions_are_asked_together(lab: Lab) -> None:
    """H5: a TaskGroup cancels the others when the first unwinds; all of them are asked before."""
    answers: list[object] = []

    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.ask(f"q{n}", key=str(n))) for n in range(3)]
        answers.extend(task.result() for task in tasks)

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    requests = (await lab.backend.runs.requests(thread_id="t")).items
    assert sorted(str(request.payload["question"]) for request in requests) == ["q0", "q1", "q2"]
    for request in requests:
        await lab.backend.runs.respond(f"a to {request.payload['question']}", request_id=request.request_id)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert answers == ["a to q0", "a to q1", "a to q2"]


@pytest.mark.parametrize("swallow", ["except", "gather"])
async def test_user_code_cannot_swallow_a_suspension(lab: Lab, swallow: str) -> None:
    async def agent(ctx: RunContext) -> None:
        if swallow == "gather":
            await asyncio.gather(ctx.ask("a?"), ctx.ask("b?"), return_exceptions=True)
        else:
            try:
                await ctx.ask("a?")
            except BaseException as signal:
                assert isinstance(signal, ControlSignal)

    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED


async def test_an_approval_belongs_to_the_call_and_its_arguments(lab: Lab) -> None:
    """H5, I6: changed arguments need another approval."""
    approvals = []

    async def agent(ctx: RunContext) -> None:
        amount = 10 if ctx.attempt < 3 else 1000
        approvals.append(await ctx.approve(CALL.model_copy(update={"arguments": {"amount": amount}})))
        if ctx.attempt == 2:
            raise ConnectionError("again")

    await lab.attempt(agent)
    await lab.backend.runs.respond({"approved": True, "arguments": {"amount": 9}}, thread_id="t")
    assert status(await lab.attempt(agent)) is RunStatus.QUEUED
    assert approvals[0].approved
    assert approvals[0].arguments == {"amount": 9}
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    assert len(approvals) == 1


def test_request_ids_are_the_same_in_every_attempt_and_different_in_every_thread() -> None:
    """I6: a fork, which is another thread, never inherits an answer."""
    assert request_id(1, "r", "k") == request_id(1, "r", "k")
    assert len({request_id(1, "r", "k"), request_id(2, "r", "k"), request_id(1, "s", "k"), request_id(1, "r", "l")}) == 4


async def test_a_cancelled_agent_does_not_tear_a_commit(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, R9: what a cancelled append stored is known to the attempt, and nothing is stored twice."""
    committing, go_on = asyncio.Event(), asyncio.Event()
    append = lab.backend.runs.append

    async def slow(attempt: AttemptToken, messages: list[Message], **fields: Any) -> list[Message]:
        committing.set()
        await go_on.wait()
        return await append(attempt, messages, **fields)

    monkeypatch.setattr(lab.backend.runs, "append", slow)

    async def agent(ctx: RunContext) -> None:
        writing = asyncio.create_task(ctx.append(Message.assistant([CALL])))
        await committing.wait()
        writing.cancel()
        go_on.set()
        await asyncio.wait((writing,))
        await ctx.append(Message.tool(ToolResultPart(call_id="c1", content="ok")))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert [message.role for message in (await lab.backend.threads.messages("t")).items] == ["user", "assistant", "tool"]


async def test_a_refused_commit_of_a_cancelled_agent_is_not_reported_as_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: a cancel that stops the agent in its write is an everyday event, not a defect in the log."""
    committing, go_on = asyncio.Event(), asyncio.Event()
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
    append = lab.backend.runs.append

    async def slow(attempt: AttemptToken, messages: list[Message], **fields: Any) -> list[Message]:
        committing.set()
        await go_on.wait()
        return await append(attempt, messages, **fields)

    monkeypatch.setattr(lab.backend.runs, "append", slow)

    async def agent(ctx: RunContext) -> None:
        writing = asyncio.create_task(ctx.append(Message.assistant([CALL])))
        await committing.wait()
        await lab.backend.runs.cancel("t", "r")
        writing.cancel()
        go_on.set()
        await asyncio.wait((writing,))

    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    gc.collect()
    assert reported == []


async def test_a_refused_write_unwinds_the_agent(lab: Lab) -> None:
    """I2, I8: neither `except Exception` nor another try gets past it, and the attempt writes nothing more."""
    reached = []

    async def agent(ctx: RunContext) -> None:
        await lab.backend.runs.cancel("t", "r")
        for _ in range(3):
            try:
                await ctx.append(Message.assistant([CALL]))
            except Exception:
                reached.append("except")
        reached.append("end")

    assert status(await lab.attempt(agent)) is RunStatus.CANCELLED
    assert reached == []
    assert await lab.texts() == []


async def test_a_probe_cannot_ask() -> None:
    """F9."""
    backend = await connect()
    accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hi")))
    stream = EventEmitter(EventWriter(backend.events), AttemptToken(1, "r", 1), "t")
    context = RunContext(accepted.run, ProbeAttemptStore([], accepted.run), stream)
    with pytest.raises(QuestionRefused) as refused:
        await context.ask("color?")
    assert isinstance(refused.value.error, HitlNotAllowedError)
    with pytest.raises(QuestionRefused):
        await context.approve(CALL)


async def test_arguments_of_a_wrong_type_are_refused_in_the_agents_call(lab: Lab) -> None:
    """A typed error says what the call takes, and the agent goes on."""

    async def agent(ctx: RunContext) -> None:
        loose: Any = ctx
        refused: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("call", lambda: loose.approve("Delete all?")),
            ("timeout", lambda: loose.approve(CALL, timeout="1")),
            ("question", lambda: loose.ask(None)),
            ("question", lambda: loose.ask(["a"])),
            ("answer_schema", lambda: loose.ask("ok?", "yes")),
            ("timeout", lambda: loose.ask("ok?", timeout="1")),
            ("fn", lambda: loose.step("fetch")),
            ("key", lambda: loose.step(int, key=5)),
            ("until", lambda: loose.sleep("1 h")),
            ("name", lambda: loose.wait_for(5)),
            ("schema", lambda: loose.wait_for("paid", "yes")),
            ("timeout", lambda: loose.wait_for("paid", timeout="1")),
            ("message", lambda: loose.run("u", 5)),
            ("agent", lambda: loose.run("u", "hi", agent=5)),
        ]
        for number, (name, call) in enumerate(refused):
            with pytest.raises(InvalidInputError) as caught:
                await call()
            assert caught.value.details.get("field") == name, (number, name, caught.value)
        with pytest.raises(InvalidInputError, match=r"ToolCallPart.*ctx\.ask"):
            await loose.approve("Delete all?")
        await ctx.append(Message.assistant("done"))

    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert await lab.texts() == ["hi", "done"]


class TestReplayedMessages:
    """E1: A message that an earlier attempt stored is announced once, and the agent gets it as it was stored."""

    async def test_e1_a_later_attempt_announces_a_stored_message_once(self, lab: Lab) -> None:
        given = Message.assistant([CALL]), Message.tool(ToolResultPart(call_id="c1", content="ok"))
        returned: list[Message] = []

        async def agent(ctx: RunContext) -> None:
            returned.extend(await ctx.append(*given))
            if ctx.attempt == 1:
                raise ValueError("again")
            await ctx.append(given[0], Message.assistant("done", usage=Usage(requests=1)))

        assert status(await lab.attempt(agent)) is RunStatus.QUEUED
        assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
        assert (await lab.texts())[-1] == "done" and len(await lab.texts()) == 4
        first, later = returned[:2], returned[2:]
        assert [m.id for m in later] == [m.id for m in given] and all(m.created_at is not None for m in later)
        assert all(m.created_at is None for m in first)
        events = await lab.events()
        told = [event.data["message_id"] for event in events if event.type == "message.completed"]
        assert len(told) == len(set(told)) == 4
        places = [event.id for event in events if event.id is not None]
        assert len(set(places)) == len(places)

    async def test_e1_a_held_message_is_replayed_as_well(self, lab: Lab) -> None:
        """The message is held until the run is suspended, and repeated by the attempt after the answer."""
        said = Message.assistant("One moment.", id=new_id())

        async def agent(ctx: RunContext) -> None:
            await ctx.append(said, said)
            await ctx.ask("go on?", key="q")
            await ctx.append(Message.assistant("Done."))

        assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
        await lab.backend.runs.respond("yes", thread_id="t")
        assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
        assert await lab.texts() == ["hi", "One moment.", "Done."]
        told = [event.data["message"]["content"] for event in await lab.events() if event.type == "message.completed"]
        assert len(told) == 3

    async def test_usage_of_a_replayed_message_counts_once(self, lab: Lab) -> None:
        """R7: The record of the run has the usage of the first attempt."""
        given = [
            Message.assistant([CALL], usage=Usage(requests=1, input_tokens=5)),
            Message.tool(ToolResultPart(call_id="c1", content="ok")),
        ]

        async def agent(ctx: RunContext) -> None:
            await ctx.append(*given)
            if ctx.attempt == 1:
                raise ValueError("again")

        await lab.attempt(agent)
        await lab.attempt(agent)
        run = await lab.backend.runs.run("t", "r")
        assert run is not None and run.usage.input_tokens == 5
