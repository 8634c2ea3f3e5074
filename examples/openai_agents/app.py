"""An agent of the OpenAI Agents SDK that refunds orders. A human approves each refund.

Install ``runyard[server,openai-agents]``. If OPENAI_API_KEY is set, the model is a model of OpenAI. Otherwise it is a script.
"""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from runyard import App, current_step
from runyard.adapters.openai_agent import serve

ORDERS = {"A-7": "a cup", "B-2": "a bicycle"}


@function_tool
def look_up(order: str) -> str:
    """Look up the item of an order."""
    return ORDERS.get(order, "There is no such order.")


@function_tool(needs_approval=True)
def refund(order: str) -> str:
    """Pay the money back for an order."""
    return f"Order {order} is refunded under the key {current_step().idempotency_key[:8]}."


class Script(Model):
    """The model that is used without OPENAI_API_KEY. It chooses its answer from the items of the request."""

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        last = max(n for n, item in enumerate(input) if item.get("role") == "user")
        results = [item["output"] for item in input[last:] if item.get("type") == "function_call_output"]
        order = next((order for order in ORDERS if order in str(input[last]["content"])), None)
        if order is None:
            return _says("Which order is it about?")
        if len(results) == 2:
            return _says(f"{results[1]} I am sorry about {results[0]}.")
        name = ("look_up", "refund")[len(results)]
        call = ResponseFunctionToolCall(
            type="function_call", call_id=f"call_{len(input)}", name=name, arguments=json.dumps({"order": order})
        )
        return ModelResponse(output=[call], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError  # runyard then requests the answer in one piece


def _says(text: str) -> ModelResponse:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    message = ResponseOutputMessage(id="msg_script", type="message", role="assistant", status="completed", content=[part])
    return ModelResponse(output=[message], usage=Usage(requests=1), response_id=None)


key = os.environ.get("OPENAI_API_KEY")
if not key:
    set_tracing_disabled(True)  # otherwise the SDK sends traces to OpenAI

agent = Agent(
    name="support",
    instructions="You are the support of a shop. Look an order up before you refund it. Be brief.",
    model="gpt-5.4-mini" if key else Script(),
    tools=[look_up, refund],
)

app = App(agents={"support": serve(agent)}, version="1")
