"""Forks and the config of threads, by an Agent alone in its process (F7, R14)."""

from __future__ import annotations

from typing import cast

import pytest

from runyard import Agent, Client
from runyard.checkpointer import MemoryCheckpointer
from runyard.errors import CapabilityMissingError
from runyard.models import JsonObject
from runyard.ports.stores import Checkpointer
from tests.support.checkpointers import Documented
from tests.support.scripted_models import echo


async def test_f7_a_fork_has_its_options() -> None:
    """F7: title, tags and agent of the fork are those of the call."""
    agent = Agent(echo(), checkpointer=MemoryCheckpointer("forks"), thread_id="t")
    run_id = await agent.prompt("hi")
    new = await agent.fork(after_run_id=run_id, title="Copy", tags={"a": "b"}, agent="z", reset_usage=False)
    async with Client.connect("memory://forks") as client:
        fork = await client.thread(new)
    assert (fork.title, fork.tags, fork.agent) == ("Copy", {"a": "b", "title": "Copy"}, "z")


async def test_an_agent_reads_the_config_of_its_thread() -> None:
    """A prompt and a probe have the config of the thread, and a fork has its copy."""
    seen: list[JsonObject] = []
    async with Client.connect("memory://configured") as client:
        await client.create_thread("t", config={"policy": "never"})
        cp = MemoryCheckpointer("configured")
        agent = Agent(echo(), checkpointer=cp, thread_id="t", deps=lambda ctx: seen.append(ctx.config))
        run_id = await agent.prompt("hi")
        new = await agent.fork(after_run_id=run_id)
        await client.update_thread("t", config={"policy": "ask"})
        await agent.fork_once(message="?", after_run_id=run_id)
        await Agent(echo(), checkpointer=cp, thread_id=new, deps=lambda ctx: seen.append(ctx.config)).prompt("hi")
    assert seen == [{"policy": "never"}, {"policy": "ask"}, {"policy": "never"}]


async def test_r14_a_checkpointer_whose_fork_has_no_options() -> None:
    """R14: Such a checkpointer forks without options, and refuses a call with options."""

    class Plain(Documented):
        async def fork(self, src: str, new: str, *, after_run_id: str, metadata: JsonObject | None = None) -> None:
            await self._kept.fork(src, new, after_run_id=after_run_id, metadata=metadata)

    agent = Agent(echo(), checkpointer=cast(Checkpointer, Plain()), thread_id="t")
    run_id = await agent.prompt("hi")
    await agent.fork(after_run_id=run_id)
    with pytest.raises(CapabilityMissingError, match="Plain has no fork with title, reset_usage"):
        await agent.fork(after_run_id=run_id, title="Copy", reset_usage=False)
