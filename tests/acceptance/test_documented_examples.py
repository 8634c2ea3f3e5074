"""The examples of the documents on conversation forking and on checkpointers, as written there but for the package's name."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import uuid
from types import ModuleType, SimpleNamespace

import pytest
from pydantic_ai.models import Model

import runyard
from runyard import Agent, Message, RunyardError
from runyard.checkpointer import CheckpointData, PostgresCheckpointer
from runyard.errors import (
    CapabilityMissingError,
    CheckpointerError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    RunNotCompletedError,
    SchemaUninitialized,
    ThreadNotFoundError,
)
from runyard.hitl import CheckpointedChannel, InMemoryChannel, ask_user_tool
from runyard.models import ForkOnceResult, HitlRequest, JsonObject
from runyard.ports.stores import Checkpointer
from tests.support.scripted_models import answering, calling, echo

COLOR = {"questions": [{"question": "Which color?"}]}
provider = SimpleNamespace(model=lambda name: calling(("ask_user", COLOR), then=f"{name} knows"))


def agent_of(cp: Checkpointer, thread_id: str = "conv_123", model: Model | None = None) -> Agent:
    return Agent(model=model or echo(), checkpointer=cp, thread_id=thread_id)


class TestForking:
    """Conversation forking."""

    async def test_prompt_returns_its_run_id(self, cp: Checkpointer) -> None:
        """R1: "Agent.prompt() now returns the run_id it used for the call"."""
        agent = agent_of(cp)

        run_id = await agent.prompt("hello")
        print(run_id)  # → "8c0b…" — server-generated

        assert uuid.UUID(run_id).version == 7
        data = await cp.load("conv_123")
        assert data is not None
        assert [(m.role, m.text, m.run_id) for m in data.messages] == [
            ("user", "hello", run_id),
            ("assistant", "hello!", run_id),
        ]

    async def test_prompt_takes_a_run_id(self, cp: Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
        """R1: "hosts that want to control the id can supply it"."""
        source = ModuleType("uuid_extensions")
        source.uuid7str = runyard.new_id  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "uuid_extensions", source)
        agent = agent_of(cp)

        import uuid_extensions  # type: ignore[import-not-found]  # or whatever uuid7 source you prefer

        my_run_id = uuid_extensions.uuid7str()
        run_id = await agent.prompt("hello", run_id=my_run_id)
        assert run_id == my_run_id

    async def test_the_active_run_is_known_while_it_runs(self, cp: Checkpointer) -> None:
        """R8: "active_run_id is None between runs; it's set on entry to prompt() and cleared on clean exit"."""
        seen: list[str | None] = []
        watched = asyncio.Event()

        async def lookup() -> str:
            await watched.wait()
            return "found"

        agent = Agent(model=calling(("lookup", {})), tools=[lookup], checkpointer=cp, thread_id="conv_123")

        async def watch(agent: Agent) -> None:
            while agent.state.is_streaming:
                seen.append(agent.state.active_run_id)
                if agent.state.active_run_id:
                    watched.set()
                await asyncio.sleep(0.1)

        assert (agent.state.active_run_id, agent.state.is_streaming) == (None, False)
        prompt = asyncio.create_task(agent.prompt("hello", run_id="R1"))
        while not agent.state.is_streaming:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await watch(agent)
        assert await prompt == "R1"
        assert set(seen) - {None} == {"R1"}
        assert (agent.state.active_run_id, agent.state.is_streaming) == (None, False)

    async def test_a_failed_prompt_keeps_its_run(self, cp: Checkpointer) -> None:
        """R8: "if a prompt fails mid-flight it stays set so respond() can resume the same run"."""
        broken = iter([RuntimeError("provider is down"), "back again"])
        agent = agent_of(cp, model=answering(lambda prompt, results: next(broken)))
        with pytest.raises(RuntimeError, match="provider is down"):
            await agent.prompt("hello", run_id="R1")
        assert (agent.state.active_run_id, agent.state.is_streaming) == ("R1", False)
        assert await agent.resume() == "R1"
        assert agent.state.active_run_id is None

    async def test_documented_fork_has_the_history_up_to_its_cut(self, cp: Checkpointer) -> None:
        """F1 to F3: the branch has the history up to R1 and nothing of what is pending or came later."""
        agent = agent_of(cp)
        await cp.append("conv_123", [Message.user("legacy")])
        await agent.prompt("hello", run_id="R1")
        await agent.prompt("later", run_id="R2")
        before = await cp.load("conv_123")

        await agent.fork(
            src_thread_id="conv_123",
            new_thread_id="conv_456",
            after_run_id="R1",
            metadata={"label": "branch experiment"},
        )

        branch = await cp.load("conv_456")
        assert branch is not None
        assert [m.text for m in branch.messages] == ["legacy", "hello", "hello!"]
        assert [m.run_id for m in branch.messages] == [None, "R1", "R1"]
        assert branch.parent_thread_id == "conv_123"
        assert branch.extra["fork"] == {"label": "branch experiment"}
        await agent_of(cp, "conv_456").prompt("another way", run_id="R2")
        assert await cp.load("conv_123") == before

    async def test_fork_of_what_is_no_boundary(self, cp: Checkpointer) -> None:
        """F4, F10: "fork / fork_once against such a thread raise CheckpointerError"."""
        agent = agent_of(cp)
        for call in (agent.fork, agent.fork_once):
            fields = {"message": "?"} if call == agent.fork_once else {}
            with pytest.raises(ThreadNotFoundError):
                await call(src_thread_id="nowhere", after_run_id="R1", **fields)  # type: ignore[operator]
            await cp.append("legacy", [Message.user("old")])
            with pytest.raises(RunNotCompletedError) as refused:
                await call(src_thread_id="legacy", after_run_id="R1", **fields)  # type: ignore[operator]
            assert isinstance(refused.value, CheckpointerError)

    async def test_a_backend_without_forks(self) -> None:
        """R14: "on a v3-only backend it raises CheckpointerError"; prompts work all the same."""

        class V3:
            def __init__(self) -> None:
                self.data = CheckpointData()

            async def load(self, thread_id: str) -> CheckpointData | None:
                return dataclasses.replace(self.data, messages=[*self.data.messages])

            async def append(self, thread_id: str, messages: list[Message]) -> None:
                self.data.messages += messages

            async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
                self.data.extra |= extra

        v3 = V3()
        agent = Agent(model=echo(), checkpointer=v3, thread_id="conv_123")  # type: ignore[arg-type]
        await agent.prompt("hello", run_id="R1")
        assert [m.text for m in v3.data.messages] == ["hello", "hello!"]
        for call in (
            agent.fork(src_thread_id="conv_123", new_thread_id="x", after_run_id="R1"),
            agent.fork_once(src_thread_id="conv_123", message="?", after_run_id="R1"),
        ):
            with pytest.raises(CapabilityMissingError, match="V3 has no") as refused:
                await call
            assert isinstance(refused.value, CheckpointerError)

    async def test_fork_once(self, cp: Checkpointer, capsys: pytest.CaptureFixture[str]) -> None:
        """F9: only the probe's own messages, under a run id of its own; the thread is untouched."""
        agent = agent_of(cp)
        await agent.prompt("hello", run_id="R1")
        before = await cp.load("conv_123")

        result = await agent.fork_once(
            src_thread_id="conv_123",
            message="What if you had said yes?",
            after_run_id="R1",
        )
        print(result.text)  # final assistant text
        print(result.stop_reason)  # "stop" | "max_tokens" | "error" | ...
        for m in result.messages:  # only the new messages added during the probe
            print(m.role)

        assert capsys.readouterr().out.splitlines() == ["What if you had said yes?!", "stop", "user", "assistant"]
        assert [field.name for field in dataclasses.fields(ForkOnceResult)][:3] == ["text", "messages", "stop_reason"]
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.text = "changed"  # type: ignore[misc]
        assert {m.run_id for m in result.messages}.isdisjoint({None, "R1"})
        assert await cp.load("conv_123") == before

    async def test_fork_once_with_a_human_in_the_loop(self, cp: Checkpointer) -> None:
        """F9: "HITL is banned outright … fork_once raises RuntimeError immediately", before the thread is looked for."""
        agent = Agent(model=echo(), checkpointer=cp, thread_id="conv_123", tools=[ask_user_tool(InMemoryChannel())])
        with pytest.raises(RuntimeError):
            await agent.fork_once(src_thread_id="nowhere", message="?", after_run_id="R1")

    async def test_hitl_binding(self, cp: Checkpointer) -> None:
        """H2: the prompt is given the id that the channel is bound to; without it, or with another, ValueError."""
        run_id = uuid.uuid4().hex
        channel = CheckpointedChannel(checkpointer=cp, thread_id="conv_123", run_id=run_id)
        agent = Agent(
            model=provider.model("claude-sonnet-4-5-20250929"),
            checkpointer=cp,
            thread_id="conv_123",
            tools=[ask_user_tool(channel)],
            channel=channel,
        )
        with pytest.raises(ValueError) as missing:
            await agent.prompt("…")
        with pytest.raises(ValueError) as mismatch:
            await agent.prompt("…", run_id="another")
        assert run_id in str(mismatch.value) and "another" in str(mismatch.value)
        assert isinstance(missing.value, RunyardError) and isinstance(mismatch.value, RunyardError)
        assert agent.state.active_run_id is None and await cp.load("conv_123") is None

        # run_id MUST be supplied — it's the same id the channel is bound to
        result_run_id = await agent.prompt("…", run_id=run_id)

        assert result_run_id == run_id
        assert agent.state.active_run_id == run_id and len(agent.state.pending) == 1
        await agent.respond("blue")
        assert agent.state.active_run_id is None
        assert agent.state.messages[-1].text == "claude-sonnet-4-5-20250929 knows"

    async def test_in_memory_channels_bind_nothing(self, cp: Checkpointer) -> None:
        """H2: "InMemoryChannel HITL doesn't have this requirement"."""
        channel = InMemoryChannel()
        agent = Agent(
            model=provider.model("any"), checkpointer=cp, thread_id="conv_123", tools=[ask_user_tool(channel)], channel=channel
        )
        channel.subscribe(lambda request: channel.answer(request.request_id, "blue") and None)
        await agent.prompt("…")
        assert agent.state.messages[-1].text == "any knows"

    async def test_legacy_threads(self, cp: Checkpointer) -> None:
        """F10: "to make a legacy thread forkable, send one prompt() and then fork after its run id"."""
        await cp.append("old", [Message.user("legacy"), Message.assistant("answer")])
        agent = agent_of(cp, "old")
        run_id = await agent.prompt("hello")
        new = await agent.fork(after_run_id=run_id)
        data = await cp.load(new)
        assert data is not None and [m.text for m in data.messages] == ["legacy", "answer", "hello", "hello!"]


class TestCheckpointers:
    """The checkpointer reference."""

    async def test_documented_usage_is_reported(self, postgres_url: str) -> None:
        """R15."""
        thread_id, msg1, msg2 = "t", Message.user("a"), Message.assistant("b")

        cp = PostgresCheckpointer(dsn=postgres_url)
        async with cp:
            await cp.append(thread_id, [msg1, msg2])
            data = await cp.load(thread_id)
            await cp.save_extra(thread_id, {"k": "v"})
            assert data is not None and [m.text for m in data.messages] == ["a", "b"]

        async with PostgresCheckpointer(postgres_url, min_pool_size=1, max_pool_size=2) as again:
            kept = await again.load(thread_id)
            assert kept is not None and (kept.extra, kept.parent_thread_id) == ({"k": "v"}, None)

    async def test_connecting_without_a_schema_says_what_to_do(self, empty_postgres_url: str) -> None:
        """ "Raises …SchemaUninitialized at aenter"; outside it says what to do."""
        cp = PostgresCheckpointer(dsn=empty_postgres_url)
        with pytest.raises(SchemaUninitialized):
            async with cp:
                pass
        with pytest.raises(ValueError, match="async with"):
            await cp.load("t")

    async def test_client_has_every_method_of_the_reference(self, cp: Checkpointer) -> None:
        """R13, R15: the methods of the reference, by name and by keyword."""
        assert CheckpointData() == CheckpointData(messages=[], extra={}, parent_thread_id=None)
        await cp.claim_run("t", "R1")
        with pytest.raises(RunAlreadyClaimedError):
            await cp.claim_run("t", "R1")
        with pytest.raises(RunNotClaimedError):
            await cp.mark_run_complete("t", "R2")
        await cp.append("t", [Message.user("a", run_id="R1"), Message.assistant("b", run_id="R1")])
        with pytest.raises(RunNotCompletedError):
            await cp.snapshot("t", after_run_id="R1")
        await cp.mark_run_complete("t", "R1")
        await cp.mark_run_complete("t", "R1")
        with pytest.raises(RunAlreadyCompletedError):
            await cp.claim_run("t", "R1")
        assert [m.text for m in await cp.snapshot("t", after_run_id="R1")] == ["a", "b"]
        await cp.fork("t", "u", after_run_id="R1", metadata={"label": "x"})
        request = HitlRequest(payload={"question": "?"})
        await cp.save_pending_request("t", request, run_id="R3")
        pending = await cp.load_pending("t")
        assert pending is not None and (pending[0].request_id, pending[1]) == (request.request_id, "R3")
        loaded = await cp.load_pending_request("t")
        assert loaded is not None and loaded.request_id == request.request_id
        assert await cp.load_pending_run_id("t") == "R3"
        await cp.save_pending_request("t", None)
        assert (await cp.load_pending("t"), await cp.load_pending_run_id("t")) == (None, None)
