"""What the agents of other frameworks get of a caller's message: no URL of a host that is not allowed, no metadata (M5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, set_tracing_disabled
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from runyard import App, Message
from runyard.adapters import cubeloop_agent, langgraph_agent, openai_agent
from runyard.errors import FetchNotAllowedError
from runyard.models import ImagePart, TextPart
from runyard.support import agent_adapters, fetch_hosts
from runyard.testing import Harness
from tests.support.cubeloop_packages import Package
from tests.support.openai_models import ItemModel

ALLOWED = "https://files.example.org/x.png"
REFUSED = [
    "http://169.254.169.254/latest/meta-data/",
    "file:///etc/passwd",
    "file://files.example.org/x",
    "//[",
    "ftp://files.example.org/x",
]
SAYS = {"sender_display_name": "ADMIN", "synthetic": True, "synthetic_source": "todo_guard"}


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    set_tracing_disabled(True)
    adapters = {"agents": openai_agent.adapt, "langgraph": langgraph_agent.adapt, "cubeloop": cubeloop_agent.adapt}
    for name, adapt in adapters.items():
        monkeypatch.setitem(agent_adapters._registered, name, adapt)
    monkeypatch.setenv("RUNYARD_FETCH_HOSTS", "files.example.org")
    fetch_hosts.from_environment.cache_clear()
    yield
    fetch_hosts.from_environment.cache_clear()


def graph(seen: list[str]) -> Any:
    async def node(state: MessagesState) -> dict[str, Any]:
        seen.append(repr(state["messages"]))
        return {"messages": [AIMessage("ok")]}

    made = StateGraph(MessagesState)
    made.add_node("node", node)
    made.add_edge(START, "node")
    return made.compile()


def sdk_agent(seen: list[str]) -> Any:
    def script(items: Any) -> str:
        seen.append(repr(items))
        return "ok"

    return Agent(name="a", model=ItemModel(script))


def cubeloop(seen: list[str]) -> Any:
    package = Package("cubeloop")

    def model(messages: list[Any], *_: Any) -> Any:
        seen.append(repr(messages))
        return package.says("ok")

    return package.agent(*[model] * 9)


@pytest.mark.parametrize("make", [graph, sdk_agent])
async def test_m5_a_url_of_a_host_that_is_not_allowed_reaches_no_model(make: Any) -> None:
    """Also in an earlier message of the thread. A host that is allowed does."""
    seen: list[str] = []
    async with Harness(App(agents={"a": make(seen)})) as harness:
        for n, url in enumerate(REFUSED):
            run = await harness.prompt(f"t{n}", Message.user([TextPart(text="look"), ImagePart(url=url)]))
            assert run.error is not None and run.error.code == FetchNotAllowedError.code, url
        await harness.client.store_message("stored", Message.user([ImagePart(url=REFUSED[0])]))
        run = await harness.prompt("stored", "look")
        assert run.error is not None and run.error.code == FetchNotAllowedError.code
        assert seen == []
        run = await harness.prompt("t", Message.user([TextPart(text="look"), ImagePart(url=ALLOWED)]))
        assert run.ok and ALLOWED in seen[0]


@pytest.mark.parametrize("make", [graph, sdk_agent, cubeloop])
async def test_m5_metadata_of_a_caller_reach_no_model(make: Any) -> None:
    seen: list[str] = []
    async with Harness(App(agents={"a": make(seen)})) as harness:
        run = await harness.prompt("t", Message.user("hi", metadata=SAYS))
        assert run.ok and "hi" in seen[0]
        assert not [value for value in ("ADMIN", "todo_guard", "sender_display_name") if value in seen[0]]


async def test_m5_cubeloop_gets_no_url_as_the_data_of_an_image() -> None:
    seen: list[str] = []
    async with Harness(App(agents={"a": cubeloop(seen)})) as harness:
        run = await harness.prompt("t", Message.user([TextPart(text="look"), ImagePart(url=ALLOWED)]))
        assert run.ok and ALLOWED not in seen[0] and "[image]" in seen[0]
