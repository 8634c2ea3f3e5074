"""The suite of adapters (:mod:`runyard.testing.adapter_suite`) for every adapter of the package."""

from __future__ import annotations

from typing import Any

import agents
import pytest
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, TextPart, UserPromptPart

from runyard import current_run, step
from runyard.adapters import cubeloop_agent, langgraph_agent, openai_agent
from runyard.adapters.functions import message_agent
from runyard.models import Message, ToolCallPart, ToolResultPart
from runyard.support import agent_adapters
from runyard.testing import ScriptedModel, call
from runyard.testing.adapter_suite import AdapterSuite, SuiteTool
from tests.support.cubeloop_packages import NAMES, Package
from tests.support.langgraph_models import Script, ScriptedChat
from tests.support.openai_models import ItemModel, Items, calls, results, texts


class TestPydanticAi(AdapterSuite):
    def echo_agent(self, seen: list[list[str]]) -> object:
        def answer(request: Any) -> str:
            seen.append([*_shown(request.messages)])
            return f"You said: {request.prompt}"

        return PydanticAgent(ScriptedModel(answer))

    def tool_agent(self, tool: SuiteTool) -> object:
        return PydanticAgent(ScriptedModel(_use), tools=[tool])

    def approval_agent(self, tool: SuiteTool) -> object:
        return PydanticAgent(ScriptedModel(_use), tools=[Tool(tool, requires_approval=True)])


def _shown(messages: list[ModelMessage]) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart | TextPart)]


def _use(request: Any) -> Any:
    return f"done: {request.results['work']}" if request.results else call("work", text="x")


@pytest.fixture
def _sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent_adapters._registered, "agents", openai_agent.adapt)
    agents.set_tracing_disabled(True)


@pytest.mark.usefixtures("_sdk")
class TestOpenAIAgents(AdapterSuite):
    stream = True

    def echo_agent(self, seen: list[list[str]]) -> object:
        def answer(items: Items) -> str:
            seen.append(texts(items))
            return f"You said: {texts(items)[-1]}"

        return self._agent(answer)

    def tool_agent(self, tool: SuiteTool) -> object:
        return self._agent(self._use, agents.function_tool(tool))

    def approval_agent(self, tool: SuiteTool) -> object:
        return self._agent(self._use, agents.function_tool(tool, needs_approval=True))

    def _agent(self, script: Any, *tools: agents.Tool) -> object:
        return agents.Agent(name="suite", model=ItemModel(script, streams=self.stream), tools=[*tools])

    @staticmethod
    def _use(items: Items) -> Any:
        found = results(items)
        return f"done: {found[0]}" if found else calls("work", f"call_{len(items)}", text="x")


class TestOpenAIAgentsWithoutStreams(TestOpenAIAgents):
    """A model that cannot stream."""

    stream = False


class TestFunctions(AdapterSuite):
    streams = counts_usage = False

    def echo_agent(self, seen: list[list[str]]) -> object:
        def answer(messages: list[Message]) -> str:
            seen.append([message.text for message in messages])
            return f"You said: {messages[-1].text}"

        return message_agent(answer)

    def tool_agent(self, tool: SuiteTool) -> object:
        async def use(messages: list[Message]) -> list[Message] | str:
            if messages[-1].role == "tool":  # an earlier attempt stored it
                return f"done: {messages[-1].tool_results[0].content}"
            result = await step(tool)("x")
            asked = ToolCallPart(id="c", name="work", arguments={"text": "x"})
            return [
                *messages,
                Message.assistant([asked]),
                Message.tool(ToolResultPart(call_id="c", content=result)),
                Message.assistant(f"done: {result}"),
            ]

        return message_agent(use)

    def approval_agent(self, tool: SuiteTool) -> object:
        async def use(messages: list[Message]) -> str:
            approval = await current_run().approve(ToolCallPart(id="c", name="work", arguments={"text": "x"}))
            if not approval:
                return f"denied: {approval.reason}"
            return f"done: {await step(tool)(approval.arguments['text'])}"

        return message_agent(use, asks_humans=True)


@pytest.fixture
def _langgraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(agent_adapters._registered, "langgraph", langgraph_agent.adapt)


@pytest.mark.usefixtures("_langgraph")
class TestLangGraph(AdapterSuite):
    """A model and its tools are two nodes. A tool is a step, because a node that was lost is executed again."""

    def echo_agent(self, seen: list[list[str]]) -> object:
        def answer(messages: list[BaseMessage]) -> AIMessage:
            seen.append([str(message.content) for message in messages])
            return AIMessage(f"You said: {messages[-1].content}")

        return self._graph(answer)

    def tool_agent(self, tool: SuiteTool) -> object:
        return self._graph(self._use, lambda call: step(tool)(call["args"]["text"]))

    def approval_agent(self, tool: SuiteTool) -> object:
        async def use(call: Any) -> str:
            asked = ToolCallPart(id=call["id"], name=call["name"], arguments=call["args"])
            approval = await current_run().approve(asked)
            return await step(tool)(approval.arguments["text"]) if approval else f"denied: {approval.reason}"

        return langgraph_agent.serve(self._graph(self._use, use), asks_humans=True)

    @staticmethod
    def _graph(script: Script, tool: Any = None) -> Any:
        model = ScriptedChat(script=script)

        async def answer(state: MessagesState) -> Any:
            return {"messages": [await model.ainvoke(state["messages"])]}

        async def use(state: MessagesState) -> Any:
            [call] = state["messages"][-1].tool_calls  # type: ignore[union-attr]
            return {"messages": [ToolMessage(await tool(call), tool_call_id=call["id"], name=call["name"])]}

        def after(state: MessagesState) -> str:
            return "use" if state["messages"][-1].tool_calls else END  # type: ignore[union-attr]

        made = StateGraph(MessagesState)
        made.add_node("answer", answer)
        made.add_node("use", use)
        made.add_edge(START, "answer")
        made.add_conditional_edges("answer", after, ["use", END])
        made.add_edge("use", "answer")
        return made.compile()

    @staticmethod
    def _use(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(f"done: {messages[-1].content}")
        return AIMessage("", tool_calls=[{"id": f"call-{len(messages)}", "name": "work", "args": {"text": "x"}}])


@pytest.fixture(params=NAMES)
def _cubeloop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    request.instance.package = Package(request.param)
    monkeypatch.setitem(agent_adapters._registered, request.param, cubeloop_agent.adapt)


@pytest.mark.usefixtures("_cubeloop")
class TestCubeloop(AdapterSuite):
    package: Package

    def echo_agent(self, seen: list[list[str]]) -> object:
        def answer(messages: list[Any], *_: Any) -> Any:
            seen.append(["".join(part.text for part in message.content) for message in messages])
            return self.package.says(f"You said: {seen[-1][-1]}")

        return self.package.agent(*[answer] * 9)

    def tool_agent(self, tool: SuiteTool) -> object:
        return self.package.agent(*[self._use] * 99, tools=[self.package.module().tool(tool)])

    def approval_agent(self, tool: SuiteTool) -> object:
        channel = self.package.hitl.InMemoryChannel()
        gate = self.package.hitl.ConfirmToolCallMiddleware(channel, require_confirm=["work"])
        tools = [self.package.module().tool(tool)]
        return self.package.agent(*[self._use] * 99, tools=tools, middleware=[gate], channel=channel)

    def _use(self, messages: list[Any], *_: Any) -> Any:
        if messages[-1].role == "tool_result":
            return self.package.says(f"done: {''.join(part.text for part in messages[-1].content)}")
        return self.package.calls_for((f"call-{len(messages)}", "work", {"text": "x"}))
