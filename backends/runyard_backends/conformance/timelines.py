"""Timelines of runs, and the search for runs by the beginning of their ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runyard import errors
from runyard.domain.timeline import TimelineEntry
from runyard.domain.waits import Wait
from runyard.models import ErrorInfo, HitlRequest, Message, Timeline, ToolCallPart, ToolResultPart, Usage
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.queries import PageRequest

from .world import T, World, call, eventually, result, said

pytestmark = pytest.mark.asyncio


async def timeline(world: World, run_id: str = "r1", **page: object) -> Timeline:
    return await world.backend.timelines.timeline(T, run_id, PageRequest(**page))  # type: ignore[arg-type]


async def paged(world: World, limit: int) -> list[TimelineEntry]:
    """Return the entries of all pages. Each page has the run and at most ``limit`` entries."""
    whole, cursor = await timeline(world), None
    found: list[TimelineEntry] = []
    while True:
        page = await timeline(world, limit=limit, cursor=cursor)
        assert len(page.entries) <= limit and page.run == whole.run
        found += page.entries
        if (cursor := page.next) is None:
            return found
        assert len(cursor) <= 2000, "the API takes no longer cursor"


class TestTimelines:
    async def test_a_timeline_has_everything_that_happened_in_order(self, world: World) -> None:
        """R24: The timeline has attempts, model requests, tools, steps and HITL requests. Its entries have times, shortened
        contents, tokens and errors."""
        attempt = await world.start("r1", "do it")
        asked = Message(
            role="assistant",
            content=[ToolCallPart(id="c1", name="look", arguments={"q": "x"})],
            usage=Usage(requests=1, input_tokens=7, output_tokens=3),
            stop_reason="tool_calls",
            provider_details={"pydantic_ai": {"response": {"model_name": "gpt-x"}}},
        )
        await world.runs.append(attempt, [asked])
        await world.runs.start_step(attempt, "pay#0", input='7, "EUR"')
        await world.runs.finish_step(attempt, "pay#0", {"paid": 1})
        await world.runs.append(attempt, [Message.tool(ToolResultPart(call_id="c1", content="y" * 5000, is_error=True))])
        error = ErrorInfo(code="agent_error", message="bad", details={"type": "ValueError"}, traceback="Traceback: bad")
        await world.runs.release(attempt, error=error)
        attempt = await world.take("r1")
        await world.ask(attempt, HitlRequest(request_id="q1", payload={"question": "Sure?"}))
        await world.runs.respond("yes", thread_id=T, request_id="q1")
        attempt = await world.take("r1")
        await world.runs.start_step(attempt, "open#0")
        running = await timeline(world)
        assert running.entries[-1].type == "step" and running.entries[-1].status == "started"
        await world.finish(attempt, said("The answer."), usage=Usage(requests=1, input_tokens=7, output_tokens=3))

        found = await timeline(world)
        shown = [(e.type, e.name, e.status) for e in found.entries]
        assert sorted(shown, key=str) == sorted(
            [
                ("attempt", "w", "retried"),
                ("message", "user", None),
                ("model_request", "gpt-x", "tool_calls"),
                ("step", "pay", "done"),
                ("tool", "look", "error"),
                ("attempt", "w", "suspended"),
                ("request", "question", "answered"),
                ("attempt", "w", "completed"),
                ("step", "open", "failed"),
                ("message", "assistant", None),
            ],
            key=str,
        )
        assert [e.at for e in found.entries] == sorted(e.at for e in found.entries) and found.next is None
        by = {e.id: e for e in found.entries}
        tool, step, question = by["c1"], by["pay#0"], by["q1"]
        assert tool.input == '{"q": "x"}' and tool.output == "y" * 299 + "…"
        assert (step.input, step.output) == ('7, "EUR"', '{"paid": 1}') and by["open#0"].input is None
        assert (question.input, question.output) == ("Sure?", "yes")
        assert by[asked.id].usage == asked.usage and by[asked.id].output == 'look({"q": "x"})'
        first = next(e for e in found.entries if e.type == "attempt")
        assert first.error == error and first.id == str(first.fence)
        for entry in (tool, step, question, by[asked.id], first):
            assert entry.started_at is not None and entry.ended_at is not None and entry.seconds is not None
            assert entry.seconds == (entry.ended_at - entry.started_at).total_seconds() >= 0
        assert tool.started_at == by[asked.id].ended_at, "a tool starts at the end of the message that calls it"
        assert found.answer == "The answer." and found.run.usage.input_tokens == 7
        assert found.run.status == "completed" and found.queued_seconds > 0 and found.running_seconds > 0
        assert found.parked_seconds > 0 and found.waiting_seconds > 0

    async def test_a_step_that_a_later_attempt_repeats_has_the_time_of_the_last_start(self, world: World) -> None:
        attempt = await world.start("r1")
        await world.runs.start_step(attempt, "a")
        (first,) = [e for e in (await timeline(world)).entries if e.type == "step"]
        await world.runs.start_step(attempt, "a")  # a repetition after a lost reply
        assert [e for e in (await timeline(world)).entries if e.type == "step"] == [first]
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        await world.runs.start_step(attempt, "a")
        (second,) = [e for e in (await timeline(world)).entries if e.type == "step"]
        assert first.started_at is not None and second.started_at is not None and second.started_at > first.started_at
        assert second.fence == attempt.fence

    async def test_the_input_of_a_step_is_of_its_last_start(self, world: World) -> None:
        """R24: The input is shown as soon as the step begins. A later attempt that repeats the step replaces the input. A
        finished step keeps its input."""

        async def shown() -> str | None:
            (entry,) = [e for e in (await timeline(world)).entries if e.type == "step"]
            return entry.input

        attempt = await world.start("r1")
        await world.runs.start_step(attempt, "a", input="1")
        assert await shown() == "1"
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        await world.runs.start_step(attempt, "a", input="é\u2028…" + "x" * 297)
        assert await shown() == "é\u2028…" + "x" * 297
        await world.runs.finish_step(attempt, "a", None)
        await world.runs.release(attempt)
        attempt = await world.take("r1")
        done = await world.runs.start_step(attempt, "a", input="3")
        assert done is not None and done.done and await shown() == "é\u2028…" + "x" * 297

    async def test_a_step_without_a_result_says_how_its_attempt_ended(self, world: World) -> None:
        """R24: A step without a result is ``failed`` if the agent ended the attempt. It is ``unfinished`` after any other
        end."""

        async def steps() -> dict[str, str | None]:
            return {e.id: e.status for e in await paged(world, 1) if e.type == "step"}

        await world.accept("r1")
        error, late = (ErrorInfo(code=code, message="m") for code in ("agent_error", "run_timeout"))
        for end in ("retried", "retried late", "released", "suspended", "failed", "failed late", "lost", "dead", "cancelled"):
            outcome, why = end.split()[0], late if end.endswith("late") else error
            if outcome == "dead":
                await world.bury("after lost")
            attempt = await world.take("r1", worker=outcome)
            await world.runs.start_step(attempt, "pay")
            await world.runs.isolate(attempt)
            assert await steps() == {"pay": "started"}
            if outcome in ("retried", "released"):
                await world.runs.release(attempt, error=why if outcome == "retried" else None)
            elif outcome == "suspended":
                await world.ask(attempt, HitlRequest(request_id="q"))
            elif outcome == "failed":
                await world.runs.fail(Write(attempt=attempt), why)
            elif outcome == "cancelled":
                await world.runs.cancel(T, "r1")
                await world.runs.suspend(Write(attempt=attempt), [])
            else:
                await world.bury(outcome)
                await world.claim("r1", worker=f"after {outcome}")
            assert attempt.fence in [a.fence for a in (await world.runs.attempts(T, "r1")).items if a.outcome == outcome]
            assert await steps() == {"pay": "failed" if end in ("retried", "failed") else "unfinished"}, end
            if outcome == "suspended":
                await world.runs.respond("yes", request_id="q")
            elif outcome in ("failed", "dead"):
                await world.runs.redrive(T, "r1")

    async def test_pages_neither_drop_nor_repeat_an_entry(self, world: World) -> None:
        """R24: The pages of a long timeline have each entry once, even if many entries have the same time."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [m for n in range(5) for m in (call(f"c{n}"), result(f"c{n}"))])
        for key in ("b", "é", "B", "k" * 900, "x", "é" * 450, "a\u2028b"):
            await world.runs.finish_step(attempt, key, None)
        entries = await paged(world, 2)
        assert entries == (await timeline(world)).entries
        assert [e.name for e in entries if e.type == "tool"] == ["look"] * 5, "a result finds its call on an earlier page"

    async def test_sleeps_signals_and_children_are_shown_as_they_begin(self, world: World) -> None:
        """R24, K1 to K3: A wait is in the timeline as soon as it begins. When the wait has ended, its entry has the end and
        the value."""
        attempt = await world.start("r1")
        child = AcceptRequest(thread_id="u", run_id="child", input=Message.user("work"), job=attempt.ref)
        await world.runs.start_child(attempt, child)
        waits = [
            Wait(wait_id="nap", kind="sleep", timeout=0.02),
            Wait(wait_id="late", kind="signal", name="never", timeout=0.02),
            Wait(wait_id="paid", kind="signal", name="paid"),
            Wait(wait_id="more", kind="signal", name="more"),
        ]
        await world.runs.suspend(Write(attempt=attempt), [], waits)

        async def shown() -> dict[str, TimelineEntry]:
            return {e.id: e for e in (await timeline(world)).entries if e.type in ("sleep", "signal", "child")}

        begun = await shown()
        assert begun.keys() == {"child", "nap", "late", "paid", "more"}
        assert begun["more"].status == "waiting" and begun["child"].status == "queued"
        await world.runs.signal(T, "paid", {"cents": 7}, signal_id="s1")

        async def ended() -> bool:
            await world.runs.admit()
            found = await shown()
            return found["nap"].ended_at is not None and found["late"].ended_at is not None

        await eventually(ended)
        found = await shown()
        assert {e.id: (e.type, e.name, e.status, e.output) for e in found.values()} == {
            "child": ("child", "u", "queued", None),
            "nap": ("sleep", None, "ended", None),
            "late": ("signal", "never", "timeout", None),
            "paid": ("signal", "paid", "ended", '{"cents": 7}'),
            "more": ("signal", "more", "waiting", None),
        }
        assert found["nap"].input is not None and found["nap"].input.startswith("until 20")
        assert all(e.started_at == begun[e.id].started_at for e in found.values())
        assert await paged(world, 2) == (await timeline(world)).entries

    @pytest.mark.parametrize("running", [False, True])
    async def test_the_open_waits_of_a_cancelled_run_stay(self, world: World, running: bool) -> None:
        """R24, R10: A cancel ends the open waits of a run. They stay in the timeline with the time of their end."""
        attempt = await world.start("r1")
        waits = [
            Wait(wait_id="nap", kind="sleep", timeout=3600),
            Wait(wait_id="late", kind="signal", name="never", timeout=3600),
            Wait(wait_id="paid", kind="signal", name="paid"),
            Wait(wait_id="taken", kind="signal", name="now"),
        ]
        await world.runs.suspend(Write(attempt=attempt), [], waits)
        await world.runs.signal(T, "now", 7, signal_id="s1")
        attempt = await world.take("r1")
        if not running:
            await world.runs.suspend(Write(attempt=attempt), [], waits[:3])
        await world.runs.cancel(T, "r1")
        if running:
            await world.runs.suspend(Write(attempt=attempt), [], waits[:3])
        found = await timeline(world)
        assert found.run.status == "cancelled"
        shown = {e.id: e for e in found.entries if e.type in ("sleep", "signal")}
        assert {key: e.status for key, e in shown.items()} == {
            "nap": "cancelled",
            "late": "cancelled",
            "paid": "cancelled",
            "taken": "ended",
        }
        assert {shown[key].ended_at for key in ("nap", "late", "paid")} == {found.run.finished_at}
        assert (await world.runs.signal(T, "paid", 8, signal_id="s2")).signal.run_id is None

    async def test_large_signals_are_cut(self, world: World) -> None:
        """R24: To make a page, the store reads about TIMELINE_BYTES of signal values, and no value that is larger than
        LARGE_RESULT_BYTES."""
        attempt = await world.start("r1")
        waits = [Wait(wait_id=f"w{n:02}", kind="signal", name="s") for n in range(20)]
        for n in range(20):
            await world.runs.signal(T, "s", "z" * (100_000 if n == 0 else 60_000), signal_id=f"s{n}")
        await world.runs.suspend(Write(attempt=attempt), [], waits)
        found, cursor, pages = {}, None, 0
        while True:
            page = await timeline(world, cursor=cursor)
            found.update({e.id: e.output for e in page.entries if e.type == "signal"})
            pages += 1
            if (cursor := page.next) is None:
                break
        assert pages > 1 and len(found) == 20
        assert sorted("zzz" in (output or "") for output in found.values()) == [False] + [True] * 19

    async def test_large_contents_are_cut(self, world: World) -> None:
        """R24: The contents of a page are bounded, however large the stored values are."""
        attempt = await world.start("r1", "x" * 100_000)
        await world.runs.append(attempt, [said("y" * 400_000) for _ in range(4)])
        await world.runs.finish_step(attempt, "large", "z" * 100_000)
        found, cursor, pages = [], None, 0
        while True:
            page = await timeline(world, cursor=cursor)
            found += page.entries
            pages += 1
            assert len(page.model_dump_json()) < 10_000
            if (cursor := page.next) is None:
                break
        assert pages > 1, "a page reads about TIMELINE_BYTES"
        large = {e.id: e.output for e in found}["large"]
        assert large is not None and "zzz" not in large, "the result is not read"
        assert [len(e.output or "") for e in found if e.type == "message"] == [300] * 5
        await world.finish(attempt, said("w" * 100_000), result="r" * 50_000)
        end = await timeline(world, limit=1)
        assert len(end.answer or "") == 4000 and end.run.omitted == ["input", "result"]

    async def test_a_run_without_an_attempt(self, world: World) -> None:
        await world.accept("r1")
        found = await timeline(world)
        assert found.entries == [] and found.next is None and found.answer is None and found.queued_seconds >= 0
        assert (found.running_seconds, found.parked_seconds, found.waiting_seconds) == (0, 0, 0)

    async def test_a_candidate_that_failed_shows_its_error(self, world: World) -> None:
        """R24: The record of a candidate has the type and the traceback of its error."""
        attempt = await world.start("r1")
        error = ErrorInfo(code="agent_error", message="'x'", details={"type": "KeyError"}, traceback="Traceback: KeyError")
        record = {"text": "", "messages": [], "stop_reason": "error", "error": error.model_dump(mode="json")}
        await world.runs.finish_step(attempt, "candidate:0", record)
        (entry,) = [e for e in (await timeline(world)).entries if e.type == "step"]
        assert entry.error == error and entry.seconds is None

    async def test_a_probe_that_failed_shows_its_error(self, world: World) -> None:
        """R24: The run of a failed probe is completed. Its result has the error."""
        await world.turn("r0")
        request = ForkRequest(src=T, new="r1", cut=Cut())
        attempt = await world.start("r1", "what if", kind="fork_once", fork=request)
        error = ErrorInfo(code="agent_error", message="'x'", details={"type": "KeyError"}, traceback="Traceback: KeyError")
        result = {"text": "", "messages": [], "stop_reason": "error", "error": error.model_dump(mode="json")}
        await world.finish(attempt, result=result)
        found = await timeline(world)
        assert found.error == error and found.run.error is None and [e.type for e in found.entries] == ["attempt"]
        listed = {run.run_id: run.result for run in (await world.runs.runs()).items}
        assert listed["r1"] == result | {"error": error.without_traceback().model_dump(mode="json")}
        judged = await world.start("r2", "what if", kind="fork_once", fork=replace(request, new="r2"))
        await world.finish(judged, result={"results": [], "verdict": result})
        assert (await timeline(world, "r2")).error == error

    async def test_a_failed_run_shows_its_traceback(self, world: World) -> None:
        attempt = await world.start("r1")
        error = ErrorInfo(code="agent_error", message="m", traceback="Traceback: m")
        await world.runs.fail(Write(attempt=attempt), error)
        found = await timeline(world)
        assert (
            found.error == found.run.error == error and found.entries[0].error == error and found.entries[0].status == "failed"
        )

    async def test_unknown_runs_and_cursors(self, world: World) -> None:
        with pytest.raises(errors.ThreadNotFoundError):
            await timeline(world)
        await world.accept("r1")
        with pytest.raises(errors.RunNotFoundError):
            await timeline(world, "r2")
        for cursor in ("x", "", "WzFd", "eyJhIjogMX0=", "WyIyMDI1LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgdHJ1ZSwgImEiXQ=="):
            with pytest.raises(errors.InvalidCursorError):
                await timeline(world, cursor=cursor)

    async def test_timelines_of_another_tenant(self, world: World) -> None:
        """A1: A tenant can neither read nor find the runs of another tenant."""
        await world.turn("secret-1")
        await world.fork("fork", after_run_id="secret-1")
        other = world.backend.for_tenant("other")
        assert await other.runs.run("fork", "secret-1") is None
        with pytest.raises(errors.ThreadNotFoundError):
            await other.timelines.timeline(T, "secret-1")
        assert await other.timelines.find("s") == [] and await other.timelines.find("secret-1") == []

    async def test_a_fork_reads_an_inherited_run_after_its_thread_was_replaced(self, world: World) -> None:
        """R24: The source of a fork was deleted, and a new thread has its id. The fork still returns the timeline, the attempts
        and the explanation of an inherited run."""
        await world.turn("r1")
        await world.fork("fork", after_run_id="r1")
        shown = await world.backend.timelines.timeline("fork", "r1")
        assert shown == await timeline(world)
        attempts = (await world.runs.attempts("fork", "r1")).items
        assert attempts == (await world.runs.attempts(T, "r1")).items and len(attempts) == 1
        assert await world.runs.explain("fork", "r1") == await world.runs.explain(T, "r1")
        await world.threads.delete_thread(T)
        assert (await world.backend.timelines.timeline("fork", "r1")).answer == shown.answer
        await world.accept("r1", "secret")
        assert (await world.backend.timelines.timeline("fork", "r1")).answer == shown.answer
        assert (await timeline(world)).answer != shown.answer
        assert (await world.runs.attempts("fork", "r1")).items == attempts
        assert "completed" in await world.runs.explain("fork", "r1")
        for read in (world.runs.attempts, world.runs.explain):
            with pytest.raises(errors.RunNotFoundError):
                await read("fork", "r2")

    async def test_a_deleted_thread_has_no_timeline(self, world: World) -> None:
        await world.turn("r1")
        await world.threads.delete_thread(T)
        with pytest.raises(errors.ThreadNotFoundError):
            await timeline(world)
        assert await world.backend.timelines.find("r") == []


class TestFindRun:
    async def test_runs_are_found_by_the_beginning_of_their_id(self, world: World) -> None:
        """R24: A run is found by its id, or by the beginning of its id, without the thread's id. An exact match comes first."""
        for run_id, thread in (("ab", "t"), ("abc", "t"), ("abd", "u"), ("b%_", "t"), ("ab", "v"), ("é", "t")):
            await world.accept(run_id, thread=thread)
        find = world.backend.timelines.find
        assert sorted(await find("a")) == [("t", "ab"), ("t", "abc"), ("u", "abd"), ("v", "ab")]
        assert await find("abc") == [("t", "abc")]
        assert sorted(await find("ab")) == [("t", "ab"), ("v", "ab")], "exactly this id, on two threads"
        assert await find("b") == await find("b%") == [("t", "b%_")]
        assert await find("é") == [("t", "é")]
        assert await find("%") == await find("_") == await find("A") == await find("abx") == []

    async def test_the_search_is_bounded(self, world: World) -> None:
        for n in range(12):
            await world.accept(f"r{n}", thread=f"t{n}")
        assert len(await world.backend.timelines.find("r")) == 10

    async def test_a_deleted_run_is_not_found(self, world: World) -> None:
        await world.failed("r1")
        await world.runs.delete_run(T, "r1")
        assert await world.backend.timelines.find("r1") == []
