"""Sleeps, signals and children of an agent, on the memory store (K1 to K3)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pydantic_ai
import pytest
from prometheus_client import REGISTRY

from runyard import Agent, App, Message, RunContext, RunStatus, current_run
from runyard.errors import ChildFailedError, HitlNotAllowedError, SignalTimeoutError
from runyard.testing import Harness, ScriptedModel, call, crash_everywhere

DAY = 86400.0


async def say(ctx: RunContext, text: str) -> None:
    await ctx.append(Message.assistant(text))


class TestSleep:
    async def test_k1_a_sleep_of_three_days(self) -> None:
        """K1, R20: The run continues after its sleep. A step before the sleep is replayed."""
        calls: list[int] = []

        async def agent(ctx: RunContext) -> None:
            await ctx.step(lambda: calls.append(ctx.attempt), key="once")
            await ctx.sleep(3 * DAY)
            await say(ctx, "awake")

        async with Harness(agent) as harness:
            began = harness.now
            run = await harness.prompt("t", "hi")
            assert (run.text, run.attempts, calls) == ("awake", 2, [1])
            assert harness.now - began == timedelta(days=3)
            assert [event.type for event in run.events if event.type.startswith("run.")] == [
                "run.queued", "run.started", "run.suspended", "run.resumed", "run.completed",
            ]  # fmt: skip

    @pytest.mark.parametrize("until", [0, timedelta(0), datetime(2020, 1, 1, tzinfo=UTC)])
    async def test_k1_a_time_that_has_passed_is_no_wait(self, until: Any) -> None:
        async def agent(ctx: RunContext) -> None:
            await ctx.sleep(until)
            await say(ctx, "awake")

        async with Harness(agent) as harness:
            run = await harness.prompt("t", "hi")
            assert (run.text, run.attempts) == ("awake", 1)
            assert [event.type for event in run.events if event.type.startswith("run.")] == [
                "run.queued", "run.started", "run.resumed", "run.completed",
            ]  # fmt: skip

    async def test_e2_an_attempt_that_need_not_be_suspended_is_resumed_after_its_messages(self) -> None:
        """E2: A reader sees where the agent begins again, and the last message that it then has."""

        async def agent(ctx: RunContext) -> None:
            if not any(message.text == "soon" for message in await ctx.history()):
                await say(ctx, "soon")
            await ctx.sleep(0, key="first")
            await ctx.sleep(0, key="second")

        async with Harness(agent) as harness:
            run = await harness.prompt("t", "hi")
            resumed = [event.data for event in run.events if event.type == "run.resumed"]
            assert resumed == [{"attempt": 1, "message_id": run.messages[-1].id}] * 2
            types = [event.type for event in run.events]
            assert types.index("run.resumed") == len(types) - 3

    async def test_k1_sleeps_have_the_key_of_their_number(self) -> None:
        async def agent(ctx: RunContext) -> None:
            for _ in range(3):
                await ctx.sleep(timedelta(hours=1))
            await ctx.sleep(ctx_time + timedelta(days=1), key="tomorrow")
            await say(ctx, "awake")

        async with Harness(agent) as harness:
            began = ctx_time = harness.now
            assert (await harness.prompt("t", "hi")).attempts == 5
            assert harness.now - began == timedelta(days=1)

    async def test_k1_parallel_waits_are_parked_together(self) -> None:
        """K1, H5: The first wait that ends wakes the run, which then waits for the others only."""
        woken: list[str] = []

        async def agent(ctx: RunContext) -> None:
            async def nap(hours: float) -> None:
                await ctx.sleep(timedelta(hours=hours), key=f"{hours}")
                woken.append(f"{ctx.attempt}:{hours}")

            async with asyncio.TaskGroup() as group:
                group.create_task(nap(1))
                group.create_task(nap(2))
                asked = group.create_task(ctx.ask("go on?"))
            await say(ctx, str(asked.result()))

        async with Harness(agent) as harness:
            began = harness.now
            run = await harness.prompt("t", "hi")
            assert run.status is RunStatus.SUSPENDED and len(run.requests) == 1
            await harness.advance(3 * 3600)
            assert (await run.respond("yes")).text == "yes"
            assert woken == ["2:1", "3:1", "3:2", "4:1", "4:2"] and harness.now - began == timedelta(hours=3)

    async def test_r11_each_wait_forgives_the_errors_before_it(self) -> None:
        """R11: The default retries count the errors since the last suspension, however long the run lives."""
        tries: list[int] = []

        class BusyError(Exception):
            temporary = True

        async def agent(ctx: RunContext) -> None:
            async def work(day: int) -> None:
                tries.append(day)
                if tries.count(day) == 1:
                    raise BusyError("429")

            for day in range(10):
                await ctx.sleep(DAY, key=f"{day}")
                await ctx.step(work, day, key=f"work {day}")
            await say(ctx, "done")

        async with Harness(agent) as harness:
            assert (await harness.prompt("t", "hi")).text == "done"

    async def test_k1_a_tool_of_a_model_sleeps(self) -> None:
        agent = pydantic_ai.Agent(ScriptedModel([call("nap"), "Rested."]))

        @agent.tool_plain
        async def nap() -> str:
            await current_run().sleep(DAY)
            return "slept"

        async with Harness(agent) as harness:
            began = harness.now
            assert (await harness.prompt("t", "sleep")).text == "Rested."
            assert harness.now - began == timedelta(days=1)

    @pytest.mark.parametrize("until", [-1, float("nan"), float("inf"), 1e12, True, "soon", datetime(2030, 1, 1), None])
    async def test_k1_an_impossible_time_is_refused(self, until: Any) -> None:
        async def agent(ctx: RunContext) -> None:
            await ctx.sleep(until)

        async with Harness(agent) as harness:
            run = await harness.prompt("t", "hi")
            assert run.error is not None and run.error.code == "invalid_input"

    async def test_k1_probes_do_not_sleep(self) -> None:
        """F9: A probe has no row that could wait."""

        async def agent(ctx: RunContext) -> None:
            if ctx.input is not None and ctx.input.text == "probe":
                await ctx.sleep(1)
            await say(ctx, "awake")

        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r1")
            with pytest.raises(HitlNotAllowedError):
                await harness.fork_once("t", "probe", "r1")

    async def test_r14_an_agent_without_a_worker_does_not_sleep(self) -> None:
        agent = Agent(model=ScriptedModel([call("nap_tool"), "Rested."]), tools=[nap_tool])
        await agent.prompt("sleep")
        [result] = [part for message in agent.state.messages for part in message.tool_results]
        assert result.is_error and "CapabilityMissingError" in str(result.content)


async def test_e1_answers_and_questions_are_announced_once() -> None:
    """E1: Neither a later wake nor a later suspension announces them again, and the wait for an answer is measured once."""

    def measured() -> float:
        return REGISTRY.get_sample_value("runyard_suspended_seconds_count") or 0.0

    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.ask("first", key="1"))
            group.create_task(ctx.ask("second", key="2"))
        await ctx.sleep(1)
        await ctx.sleep(1)
        await say(ctx, "done")

    before = measured()
    async with Harness(agent) as harness:
        run = await harness.prompt("t", "hi", "r1")
        for request in run.requests:
            await harness.client.respond("t", "yes", request.request_id)
            run = await harness.result("t", "r1")
        assert (run.status, run.attempts) == (RunStatus.COMPLETED, 5)
        requested = [event for event in run.events if event.type == "hitl.requested"]
        answered = [event.data["request_id"] for event in run.events if event.type == "hitl.answered"]
        assert len(requested) == 2 and len(answered) == len(set(answered)) == 2
        assert measured() == before + 2


async def nap_tool() -> str:
    await current_run().sleep(1)
    return "slept"


class TestSignals:
    @pytest.mark.parametrize("before", [True, False])
    async def test_k2_a_signal_before_or_after_it_is_waited_for(self, before: bool) -> None:
        async def agent(ctx: RunContext) -> None:
            first = await ctx.wait_for("paid", {"type": "integer"})
            await say(ctx, f"{first} {await ctx.wait_for('paid')}")

        async with Harness(agent) as harness:
            client = harness.client
            await client.store_message("t", "hello")
            if before:
                for n in (1, 2):
                    await client.signal("t", "paid", n)
                assert (await harness.prompt("t", "hi", "r1")).attempts == 1
            else:
                run = await harness.prompt("t", "hi", "r1")
                assert run.status is RunStatus.SUSPENDED and not run.requests and run.run.waiting_for == "wait"
                for n in (1, 2):
                    sent = await client.signal("t", "paid", n, signal_id=f"s{n}")
                    assert sent.run_id == "r1"
                    await harness.result("t", "r1")
            assert (await harness.result("t", "r1")).text == "1 2"

    async def test_k2_a_timeout_is_an_error_that_the_agent_can_catch(self) -> None:
        async def agent(ctx: RunContext) -> None:
            try:
                await ctx.wait_for("paid", timeout=DAY)
            except SignalTimeoutError as error:
                assert isinstance(error, TimeoutError)
                await say(ctx, "nobody paid")

        async with Harness(agent) as harness:
            assert (await harness.prompt("t", "hi", "r1")).status is RunStatus.SUSPENDED
            await harness.advance(DAY)
            assert (await harness.result("t", "r1")).text == "nobody paid"

    async def test_k2_a_value_that_does_not_fit_fails_the_run(self) -> None:
        """K2: A sender does not know who waits. The same value has the same outcome, whether it comes first or last."""

        async def agent(ctx: RunContext) -> None:
            await ctx.wait_for("paid", {"type": "integer"})

        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r1")
            await harness.client.signal("t", "paid", "a lot")
            run = await harness.result("t", "r1")
            assert run.error is not None and run.error.code == "signal_invalid"
            assert run.error.message == "signal 'paid': the value does not fit: $: 'a lot' is not of type 'integer'"
            assert run.error.details["name"] == "paid" and "request_id" not in run.error.details
            [signal_id, faults] = [run.error.details[name] for name in ("signal_id", "errors")]
            assert isinstance(signal_id, str) and faults == [{"path": "$", "message": "'a lot' is not of type 'integer'"}]

    async def test_k2_parallel_waits_take_one_signal_each(self) -> None:
        async def agent(ctx: RunContext) -> None:
            async with asyncio.TaskGroup() as group:
                found = [group.create_task(ctx.wait_for("vote", key=f"{n}")) for n in range(3)]
            await say(ctx, " ".join(str(task.result()) for task in found))

        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r1")
            for vote in ("yes", "no", "maybe"):
                await harness.client.signal("t", "vote", vote)
            assert sorted((await harness.result("t", "r1")).text.split()) == ["maybe", "no", "yes"]


async def worker(ctx: RunContext) -> None:
    assert ctx.input is not None
    if ctx.input.text == "later":
        await ctx.sleep(DAY)
    ctx.result = len(ctx.input.text)
    await say(ctx, f"did {ctx.input.text}")


class TestChildren:
    async def test_k3_a_parent_waits_for_its_children(self) -> None:
        """K3: Parallel children are started together. Their results are replayed."""

        async def agent(ctx: RunContext) -> None:
            async with asyncio.TaskGroup() as group:
                children = [group.create_task(ctx.run(None, word, agent="worker", key=word)) for word in ("a", "bb", "ccc")]
            found = [task.result() for task in children]
            again = await ctx.run(found[0].thread_id, "dddd", agent="worker")
            await say(ctx, ", ".join(f"{each.text} {each.value}" for each in (*found, again)))

        async with Harness(App({"agent": agent, "worker": worker})) as harness:
            run = await harness.prompt("t", "hi", agent="agent")
            assert run.text == "did a 1, did bb 2, did ccc 3, did dddd 4"
            runs = (await harness.client.runs()).items
            assert len(runs) == 5 and {each.attempt for each in runs if each.agent == "worker"} == {1}

    async def test_k3_a_child_that_fails_is_an_error_of_its_parent(self) -> None:
        async def broken(ctx: RunContext) -> None:
            raise ValueError("no luck")

        async def agent(ctx: RunContext) -> None:
            for _ in range(2):
                try:
                    await ctx.run(None, "go", agent="broken", key="once")
                except ChildFailedError as error:
                    assert error.details["status"] == "failed"
                    await say(ctx, error.message)

        async with Harness(App({"agent": agent, "broken": broken})) as harness:
            run = await harness.prompt("t", "hi", agent="agent")
            assert run.ok and run.text.endswith("is failed: ValueError: no luck")

    @pytest.mark.parametrize("words", ["no luck", "no luck" * 1000])
    async def test_k3_the_traceback_of_a_parent_names_the_line_of_its_child(self, words: str) -> None:
        """K3: The message of the error does not name the line, because events and webhooks have the message."""

        async def broken(ctx: RunContext) -> None:
            raise ValueError(words)

        async def parent(ctx: RunContext) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.run("c", "go", agent="broken", key="once"))

        line = broken.__code__.co_firstlineno + 1
        async with Harness(App({"parent": parent, "broken": broken})) as harness:
            run = await harness.prompt("t", "hi", agent="parent")
        assert run.error is not None and run.error.traceback is not None and __file__ not in run.error.message
        assert (
            f"\nThe child failed at {__file__}:{line} in broken.\n" in run.error.traceback
            and words[:700] in run.error.traceback
        )

    async def test_k3_a_child_without_a_stored_traceback_has_no_line(self) -> None:
        """K3: A filter of tracebacks can drop the child's traceback."""

        async def broken(ctx: RunContext) -> None:
            raise ValueError("no luck")

        async def parent(ctx: RunContext) -> None:
            try:
                await ctx.run("c", "go", agent="broken", key="once")
            except ChildFailedError as error:
                notes.append(getattr(error, "__notes__", []))
                raise

        notes: list[list[str]] = []
        async with Harness(App({"parent": parent, "broken": broken}, traceback_filter=lambda text: None)) as harness:
            run = await harness.prompt("t", "hi", agent="parent")
        assert run.error is not None and run.error.message.endswith("of thread c is failed: ValueError: no luck")
        assert notes == [[]]

    async def test_k3_a_redriven_parent_gets_the_result_of_a_redriven_child(self) -> None:
        """K3, R12: The failure of a child is not recorded, so that redrives of the child and of its parent mend both."""
        broken = True

        async def child(ctx: RunContext) -> None:
            if broken:
                raise ValueError("no luck")
            await say(ctx, "mended")

        async def parent(ctx: RunContext) -> None:
            await say(ctx, (await ctx.run("c", "go", agent="child", key="once")).text)

        async with Harness(App({"parent": parent, "child": child})) as harness:
            run = await harness.prompt("t", "hi", "r", agent="parent")
            assert run.error is not None and run.error.code == "child_failed"
            broken = False
            [failed] = [each for each in (await harness.client.runs()).items if each.thread_id == "c"]
            await harness.client.redrive("c", failed.run_id)
            assert (await harness.result("c", failed.run_id)).ok
            await harness.client.redrive("t", "r")
            assert (await harness.result("t", "r")).text == "mended"

    async def test_k3_the_result_of_a_child_outlives_the_thread_of_the_child(self) -> None:
        """K3: A later attempt of the parent replays the recorded result."""

        async def parent(ctx: RunContext) -> None:
            found = await ctx.run("c", "a", agent="worker", key="once")
            await say(ctx, f"{await ctx.wait_for('go')} {found.text} {found.value}")

        async with Harness(App({"parent": parent, "worker": worker})) as harness:
            assert (await harness.prompt("t", "hi", "r", agent="parent")).status is RunStatus.SUSPENDED
            await harness.client.delete_thread("c")
            await harness.client.signal("t", "go", "so")
            assert (await harness.result("t", "r")).text == "so did a 1"

    async def test_k3_no_step_has_the_key_of_a_child(self) -> None:
        """K3, R20: A step with any other key is no child, and a key of a child is refused."""

        async def agent(ctx: RunContext) -> None:
            for prefix in ("run", "tool"):
                await ctx.step(lambda: {"a": 1}, key=f"{prefix}:k")
            await say(ctx, (await ctx.run(None, "a", agent="worker", key="k")).text)
            await ctx.step(lambda: {"a": 1}, key="child:k")

        async with Harness(App({"agent": agent, "worker": worker})) as harness:
            run = await harness.prompt("t", "hi", agent="agent")
            assert run.error is not None and run.error.code == "invalid_input"

    @pytest.mark.parametrize("again", ["d", None])
    @pytest.mark.parametrize("state", ["open", "ended", "recorded"])
    async def test_k3_a_key_with_another_thread_is_refused(self, again: str | None, state: str) -> None:
        """K3: A later attempt neither waits for the child on another thread nor returns its result."""

        async def parent(ctx: RunContext) -> None:
            if state != "recorded" and ctx.attempt > 1:
                await ctx.run(again, "a", agent="worker", key="k")
            if state == "open":
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.run("c", "later", agent="worker", key="k"))
                    group.create_task(ctx.sleep(1))
            await ctx.run("c", "a", agent="worker", key="k")
            await ctx.run(again, "a", agent="worker", key="k")

        async with Harness(App({"parent": parent, "worker": worker})) as harness:
            run = await harness.prompt("t", "hi", agent="parent")
            assert run.error is not None and run.error.code == "run_conflict"
            assert run.error.details["differs"] == ["thread_id"]
            assert [each.thread_id for each in (await harness.client.runs()).items if each.agent == "worker"] == ["c"]

    async def test_k3_parallel_children_with_one_key_are_refused(self) -> None:
        """K3: One of them is no child."""

        async def parent(ctx: RunContext) -> None:
            async with asyncio.TaskGroup() as group:
                for thread in "cd":
                    group.create_task(ctx.run(thread, "a", agent="worker", key="k"))

        async with Harness(App({"parent": parent, "worker": worker})) as harness:
            run = await harness.prompt("t", "hi", agent="parent")
            assert run.error is not None and run.error.code == "run_conflict"

    async def test_k3_a_child_on_the_own_thread_is_refused(self) -> None:
        async def agent(ctx: RunContext) -> None:
            await ctx.run(ctx.thread_id, "go")

        async with Harness(agent) as harness:
            run = await harness.prompt("t", "hi")
            assert run.error is not None and run.error.code == "child_deadlock"

    async def test_i3_each_child_once_wherever_a_worker_dies(self) -> None:
        """I3, K1 to K3: Whichever write a worker dies before or after, each child runs once and the signal is taken once."""
        app = App({"agent": composed, "worker": worker})

        async def scenario(harness: Harness) -> None:
            await harness.client.store_message("t", "hello")
            await harness.client.signal("t", "go", "now", signal_id="s")
            run = await harness.prompt("t", "hi", "r1", agent="agent")
            assert run.text == "now: did a, did b"
            assert len((await harness.client.runs()).items) == 3

        assert await crash_everywhere(app, scenario) > 20


async def composed(ctx: RunContext) -> None:
    await ctx.sleep(3 * DAY)
    word = await ctx.wait_for("go")
    async with asyncio.TaskGroup() as group:
        children = [group.create_task(ctx.run(None, name, agent="worker", key=name)) for name in "ab"]
    await say(ctx, f"{word}: {', '.join(task.result().text for task in children)}")


class TestStepsBesideWaits:
    async def test_r20_a_suspension_lets_a_parallel_step_finish(self) -> None:
        """K3, R20: A child suspends the run while a parallel step calls its function. The step finishes and is not repeated."""
        sent: list[str] = []
        app = App()

        @app.agent("child")
        async def child(ctx: RunContext) -> None:
            await say(ctx, "done")

        @app.agent("parent")
        async def parent(ctx: RunContext) -> None:
            suspending = asyncio.Event()

            async def send() -> str:
                sent.append("e-mail")
                await suspending.wait()
                await ctx.emit("sending")
                await asyncio.sleep(0)
                return await ctx.step(lambda: "sent", key="inner")  # type: ignore[no-any-return]

            async def wait() -> None:
                asyncio.get_running_loop().call_later(0.01, suspending.set)
                await ctx.sleep(DAY)

            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step(send, key="send"))
                for key in ("a", "b"):
                    group.create_task(ctx.run(None, key, agent="child", key=key))
                group.create_task(wait())
            await say(ctx, "ok")

        async with Harness(app) as harness:
            run = await harness.prompt("t", "hi", agent="parent")
            assert (run.text, sent) == ("ok", ["e-mail"])

    async def test_k1_steps_whose_functions_wait_do_not_wait_for_each_other(self) -> None:
        """K1, R20: Two parallel steps wait inside of their functions. A step that only calls its function finishes."""
        calls: list[str] = []

        async def agent(ctx: RunContext) -> None:
            async def nap(key: str) -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.sleep(DAY, key=key))
                    group.create_task(ctx.sleep(DAY, key=f"{key}, too"))

            async def send() -> None:
                calls.append("send")
                await asyncio.sleep(0.01)

            async with asyncio.TaskGroup() as group:
                for key in ("a", "b"):
                    group.create_task(ctx.step(nap, key, key=key))
                group.create_task(ctx.step(send, key="send"))
            await say(ctx, "ok")

        async with Harness(agent) as harness:
            run = await harness.prompt("t", "hi")
            assert (run.text, run.attempts, calls) == ("ok", 2, ["send"])
