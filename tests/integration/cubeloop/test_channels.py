"""Channels of cubeloop's tools that the agent does not hold, in workers and in probes (F9, H1)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from runyard import App
from runyard.adapters import cubeloop_agent
from runyard.domain.states import RunStatus
from runyard.errors import HitlNotAllowedError
from runyard.support import agent_adapters
from runyard.testing import Harness
from tests.support.cubeloop_packages import NAMES, Package

CHANNEL: Any = None


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name in NAMES:
        agent_adapters.register(name, cubeloop_agent.adapt)
    yield


async def of_the_module(path: str) -> str:
    """Delete a file."""
    return "deleted" if await CHANNEL.confirm(f"Delete {path}?") else "kept"


class Tools:
    def __init__(self, channel: Any) -> None:
        self.channel = channel

    async def of_the_object(self, path: str) -> str:
        """Delete a file."""
        return "deleted" if await self.channel.confirm(f"Delete {path}?") else "kept"


def deleting(package: Package, tool: Any) -> Any:
    def model(messages: list[Any], *_: Any) -> Any:
        if messages[-1].role == "tool_result":
            return package.says(messages[-1].content[0].text)
        return package.calls_for(("c1", tool.__name__, {"path": "x"}))

    return package.agent(*[model] * 9, tools=[package.module().tool(tool)])


@pytest.mark.parametrize("holder", ["module", "object"])
async def test_h1_a_channel_that_only_the_code_of_a_tool_names_asks_through_the_run(
    package: Package, holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is suspended and goes on with the answer, and a probe of the agent is refused before it starts (F9)."""
    channel = package.hitl.InMemoryChannel()
    monkeypatch.setitem(globals(), "CHANNEL", channel)
    tool = of_the_module if holder == "module" else Tools(channel).of_the_object
    async with Harness(App(agents={"a": deleting(package, tool)})) as harness:
        run = await harness.prompt("t", "go")
        assert run.status is RunStatus.SUSPENDED and run.requests[0].payload["question"] == "Delete x?"
        assert channel.pending is None
        run = await run.respond(True)
        assert (run.status, run.text) == (RunStatus.COMPLETED, "deleted")
        with pytest.raises(HitlNotAllowedError):
            await harness.fork_once("t", "go", run.id)


async def test_h1_a_channel_that_a_tool_makes_asks_through_the_run(package: Package) -> None:
    """No definition shows this channel."""

    async def made(path: str) -> str:
        """Delete a file."""
        ask = partial(package.hitl.InMemoryChannel().confirm, f"Delete {path}?")
        return "deleted" if await ask() else "kept"

    async with Harness(App(agents={"a": deleting(package, made)})) as harness:
        run = await (await harness.prompt("t", "go")).respond(False)
        assert (run.status, run.text) == (RunStatus.COMPLETED, "kept")


async def test_f9_a_probe_that_asks_all_the_same_is_refused(package: Package) -> None:
    """The tool's question ends the probe. The model does not see an error of the tool."""
    asked: list[Any] = []
    channel = package.hitl.InMemoryChannel()

    async def ask() -> str:
        """Ask."""
        asked.append(1)
        try:
            return f"human said {await channel.confirm('which?')}"
        except Exception as error:
            return f"hidden: {error}"

    def model(messages: list[Any], *_: Any) -> Any:
        assert messages[-1].role != "tool_result", "the model was asked after the question"
        return package.calls_for(("c1", "ask", {}))

    def make(ctx: Any) -> Any:
        return package.agent(*[model] * 3, tools=[package.module().tool(ask)], channel=channel)

    agents = {"echo": package.agent(package.says("hi")), "asks": cubeloop_agent.serve(make, asks_humans=False)}
    async with Harness(App(agents=agents)) as harness:
        run = await harness.prompt("t", "one", agent="echo")
        with pytest.raises(HitlNotAllowedError):
            await harness.fork_once("t", "go", run.id, agent="asks")
    assert asked == [1]
