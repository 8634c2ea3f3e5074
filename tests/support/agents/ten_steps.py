"""An agent of ten steps: five answers of its model, and one tool call for each: ``tests.support.agents.ten_steps:app``.

Each model request and each tool call is a line in the file that ``RUNYARD_TEST_NOTES`` names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from runyard import App
from tests.support.agents.customer_support import note

CALLS = 5


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Call a tool CALLS times, then answer with a text."""
    n = sum(isinstance(message, ModelResponse) for message in messages)
    note("request", n)
    if n < CALLS:
        yield {0: DeltaToolCall("work", f'{{"n": {n}}}', tool_call_id=f"call-{n}")}
    else:
        yield "done"


agent = Agent(FunctionModel(stream_function=answer))


@agent.tool_plain
async def work(n: int) -> str:
    note("tool", n)
    return f"worked {n}"


app = App(agents={"worker": agent})
