"""The spans of runs, in the harness: the tree, the links, and what no span contains."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import get_tracer

from runyard import RetryPolicy, RunContext
from runyard.models import Message, Usage
from runyard.support import tracing
from runyard.testing import Harness
from tests.support.traces import Seen, Spans, recorded, using

SECRET = "the-secret-words"


def attempts(spans: Spans) -> list[Seen]:
    found = (span for span in spans if "runyard.attempt" in span.attributes)
    return sorted(found, key=lambda span: span.attributes["runyard.attempt"])


async def charge(amount: int) -> int:
    return amount


async def test_a_run_is_one_trace_from_the_hosts_request_to_its_steps() -> None:
    """T1, with the names of the GenAI conventions."""

    async def agent(ctx: RunContext) -> None:
        await ctx.step(charge, 5)
        await ctx.tool(charge, amount=6, key="k")
        await ctx.append(Message.assistant("done", usage=Usage(requests=1, input_tokens=7, output_tokens=8)))
        ctx.add_usage(Usage(input_tokens=1))

    with recorded() as spans:
        async with Harness(agent, tenant="acme") as harness:
            with get_tracer("host").start_as_current_span("host"):
                handle = await harness.client.enqueue("t", "hi", "r")
            await harness.result("t", "r")
            run = await handle.run()
    assert len({span.trace_id for span in spans}) == 1
    steps = ["step charge", ("step charge", ["execute_tool charge"])]
    assert spans.tree(spans.one("host")) == ("host", [("accept", ["queue_wait", ("invoke_agent agent", steps)])])
    accepted, [attempt] = spans.one("accept"), attempts(spans)
    assert run.trace_context is not None and run.trace_context[3:52] == f"{accepted.trace_id}-{accepted.span_id}"
    assert (accepted.kind, attempt.kind) == ("PRODUCER", "CONSUMER")
    expected = {
        "gen_ai.conversation.id": "t",
        "gen_ai.agent.name": "agent",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.aggregated_usage.input_tokens": 8,
        "gen_ai.aggregated_usage.output_tokens": 8,
        "runyard.run.id": "r",
        "runyard.tenant": "acme",
        "runyard.outcome": "completed",
        "messaging.destination.name": "default",
    }
    assert expected.items() <= attempt.attributes.items()
    tool = spans.one("execute_tool charge")
    assert (tool.attributes["gen_ai.operation.name"], tool.attributes["gen_ai.tool.name"]) == ("execute_tool", "charge")
    assert not any(span.failed for span in spans)


async def test_a_resumed_attempt_links_to_the_one_that_asked() -> None:
    """T1: the answer is in the trace of the run, and linked with the request of whoever answered."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(str(await ctx.ask("color?"))))

    with recorded() as spans:
        async with Harness(agent) as harness:
            asked = await harness.prompt("t", "hi", "r")
            with get_tracer("host").start_as_current_span("clicked"):
                await asked.respond("blue")
                await harness.client.respond("t", "blue", asked.requests[0].request_id)  # a repetition
    first, second = attempts(spans)
    assert (first.attributes["runyard.outcome"], second.attributes["runyard.outcome"]) == ("suspended", "completed")
    assert second.links == {first.span_id: "suspension"}
    answer, clicked, accepted = spans.one("respond"), spans.one("clicked"), spans.one("accept")
    assert answer.parent_id == first.parent_id == second.parent_id == accepted.span_id
    assert answer.links == {clicked.span_id: "caller"} and clicked.links == {answer.span_id: "answer"}
    assert answer.trace_id == accepted.trace_id != clicked.trace_id
    assert len(spans.named("queue_wait")) == 2


async def test_the_span_of_a_dead_workers_attempt_is_made_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: every parent is exported, although the dead worker never ended its span."""

    async def agent(ctx: RunContext) -> None:
        await ctx.step(charge, 5)
        await ctx.append(Message.assistant("done"))

    with recorded() as spans:
        async with Harness(agent) as harness:
            harness.crash_after("finish_step")
            await harness.prompt("t", "hi", "r")
    lost, second = attempts(spans)
    assert (lost.attributes["runyard.outcome"], second.attributes["runyard.outcome"]) == ("lost", "completed")
    assert lost.failed and lost.attributes["error.type"] == "worker_lost"
    assert second.links == {lost.span_id: "takeover"} and second.attributes["runyard.takeover"] is True
    assert spans.tree(lost) == ("invoke_agent agent", ["step charge"])
    assert spans.orphans() == [] and len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == len(spans)


async def test_a_retry_links_to_the_failed_attempt() -> None:
    """T1, T4: without the text of the error."""

    async def agent(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError(SECRET)

    with recorded() as spans:
        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r", max_attempts=2, retry=RetryPolicy(initial=0))
    first, second = attempts(spans)
    assert first.failed and first.attributes["error.type"] == "ConnectionError"
    assert second.links == {first.span_id: "retry"} and not second.failed
    assert not any(SECRET in span.everything for span in spans)


async def test_a_failed_run_is_named_by_its_error() -> None:
    async def agent(ctx: RunContext) -> None:
        raise ZeroDivisionError(SECRET)

    with recorded() as spans:
        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r")
    [attempt] = attempts(spans)
    assert attempt.failed and attempt.attributes["runyard.outcome"] == "failed"
    assert attempt.attributes["error.type"] == "ZeroDivisionError"


async def test_forks_and_probes_link_to_the_run_of_their_cut() -> None:
    """T1: at once, as a job, as a probe, and later on the forked thread."""

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("done"))

    with recorded() as spans:
        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r")
            source = spans.one("accept")
            spans.clear()
            await harness.fork("t", "t2", "r", message="more")
            await harness.result("t2", (await harness.client.runs("t2")).items[0].run_id)
            assert spans.one("fork").links == {source.span_id: "fork"}
            assert spans.one("accept").parent_id == spans.one("fork").span_id
            assert spans.one("invoke_agent agent").links == {source.span_id: "fork"}
            spans.clear()
            await harness.prompt("t2", "again")
            assert spans.one("invoke_agent agent").links == {source.span_id: "fork"}
            spans.clear()
            await harness.fork_once("t", "what if", "r")
            assert spans.one("invoke_agent agent").links == {source.span_id: "fork"}
            spans.clear()
            job = await harness.client.enqueue_fork("t", "t3", after_run_id="r")
            await harness.result("t", job.id)
            assert spans.one("fork job").links == {source.span_id: "fork"}
            assert "gen_ai.operation.name" not in spans.one("fork job").attributes


async def test_each_probe_of_a_fan_out_has_a_span() -> None:
    """T1: as a job of its own, below the span of the job's attempt."""

    async def agent(ctx: RunContext) -> None:
        await ctx.step(charge, 1)
        await ctx.append(Message.assistant("done"))

    with recorded() as spans:
        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r")
            spans.clear()
            await harness.work(harness.client.fork_many("t", "r", messages=["a", "b"]))
    job = spans.one("invoke_agent agent")
    assert job.attributes["runyard.run.kind"] == "fork_many"
    assert [child.name for child in spans.children(job)] == ["candidate agent", "candidate agent"]


async def test_a_run_that_was_accepted_without_a_trace_has_one_trace() -> None:
    """T1: as by SQL in a host's transaction."""

    async def agent(ctx: RunContext) -> None:
        await ctx.ask("color?")

    async with Harness(agent) as harness:
        await harness.client.enqueue("t", "hi", "r")
        with recorded() as spans:
            asked = await harness.result("t", "r")
            await asked.respond("blue")
    first, second = attempts(spans)
    assert first.trace_id == second.trace_id and second.links == {first.span_id: "suspension"}
    assert {span.trace_id for span in spans} == {first.trace_id} and spans.orphans() == []


async def test_a_repeated_prompt_links_to_the_run_that_exists() -> None:
    """T1, R2."""

    async def agent(ctx: RunContext) -> None: ...

    with recorded() as spans:
        async with Harness(agent) as harness:
            await harness.prompt("t", "hi", "r")
            await harness.prompt("t", "hi", "r")
    first, again = spans.named("accept")
    assert again.links == {first.span_id: "repeated"} and len(attempts(spans)) == 1


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(TraceIdRatioBased(0.0))])
async def test_a_run_that_the_sampler_leaves_out_has_no_spans_and_no_reads(sampler: Any) -> None:
    """T3."""
    reads: list[str] = []

    async def agent(ctx: RunContext) -> None:
        await ctx.step(charge, 1)

    with recorded(sampler) as spans:
        async with Harness(agent) as harness:
            threads = harness.client.backend.threads
            read, threads.thread = threads.thread, lambda id: reads.append(id) or read(id)  # type: ignore[assignment, func-returns-value]
            run = await harness.prompt("t", "hi", "r")
    assert spans == [] and reads == []
    assert run.run.trace_context is not None and int(run.run.trace_context[-2:], 16) & tracing.SAMPLED == 0


class Broken(SpanProcessor, Sampler):
    """What a program adds to its provider, with a mistake in one of its methods."""

    def __init__(self, method: str) -> None:
        setattr(self, method, self.fail)

    def fail(self, *_: object, **__: object) -> Any:
        raise KeyError("user")

    def should_sample(self, *arguments: Any, **options: Any) -> Any:
        return ParentBased(ALWAYS_ON).should_sample(*arguments, **options)

    def get_description(self) -> str:
        return "broken"


@pytest.mark.parametrize("method", ["on_start", "on_end", "should_sample"])
async def test_what_a_program_adds_to_its_provider_breaks_no_run(method: str) -> None:
    """T6: each verb that has a span does its work."""

    async def agent(ctx: RunContext) -> None:
        await ctx.step(charge, 5)
        await ctx.append(Message.assistant(str(await ctx.ask("color?"))))

    provider = TracerProvider(sampler=Broken(method))
    provider.add_span_processor(Broken(method))
    with using(provider):
        async with Harness(agent) as harness:
            asked = await harness.prompt("t", "hi", "r")
            assert (await asked.respond("blue")).ok
            await harness.client.fork("t", new_thread_id="copy")
            harness.crash_after("finish_step")
            assert (await (await harness.prompt("copy", "hi", "r2")).respond("red")).ok


async def test_a_log_that_fails_keeps_no_effect_from_being_sent() -> None:
    """T6: the end of a run starts the next run of its lane."""
    before = structlog.get_config()

    def fail(logger: object, name: str, event: dict[str, Any]) -> Any:
        raise BrokenPipeError

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant("done"))

    try:
        async with Harness(agent) as harness:
            structlog.configure(processors=[fail, *before["processors"]])
            first = await harness.client.enqueue("t", "one")
            second = await harness.client.enqueue("t", "two")
            assert (await first.result(5)).ok and (await second.result(5)).ok
    finally:
        structlog.configure(**before)


async def test_no_span_contains_a_message() -> None:
    """T4: prompts, answers, questions, arguments, results and errors of tools."""

    async def look(word: str) -> str:
        raise LookupError(word)

    async def agent(ctx: RunContext) -> None:
        with pytest.raises(LookupError):
            await ctx.tool(look, word=SECRET, key="look")
        await ctx.step(charge, SECRET)
        await ctx.ask(SECRET)
        await ctx.append(Message.assistant(SECRET))

    with recorded() as spans:
        async with Harness(agent) as harness:
            asked = await harness.prompt("t", SECRET, "r", metadata={"a": SECRET})
            await asked.respond(SECRET)
    assert len(spans) > 8
    assert not any(SECRET in span.everything for span in spans)


async def test_a_task_of_the_agent_has_the_attempt_as_parent() -> None:
    """T1: the host's instrumentation of clients nests below the attempt."""

    async def fetch() -> None:
        with get_tracer("client").start_as_current_span("GET"):
            await asyncio.sleep(0)

    async def agent(ctx: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fetch())

    with recorded() as spans:
        async with Harness(agent) as harness:
            await harness.prompt("t", "hi")
    assert spans.one("GET").parent_id == spans.one("invoke_agent agent").span_id


async def test_without_a_provider_a_run_has_the_callers_context_alone() -> None:
    """T3."""

    trace, found = f"00-{'a' * 32}-{'b' * 16}-01", []

    async def agent(ctx: RunContext) -> None:
        found.append(tracing.current())

    async with Harness(agent) as harness:
        with tracing.within(trace):
            run = await harness.prompt("t", "hi")
        assert run.ok and run.run.trace_context == trace and found == [trace]
