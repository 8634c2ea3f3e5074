"""An agent of cubeloop in runyard's workers. A human approves the tool that sends money."""

from cubeloop import Agent, tool
from cubeloop.hitl import ConfirmToolCallMiddleware, InMemoryChannel
from cubeloop.providers.base import AssistantMessage, Message, ToolResultMessage
from cubeloop.providers.faux import FauxProvider, faux_assistant_message, faux_tool_call

from runyard import App, current_step

provider = FauxProvider()  # for a real model: cubeloop.providers.openai.OpenAIProvider(…)


def script(messages: list[Message], *_: object) -> AssistantMessage:
    """Return the reply of the scripted model. The model requests a refund once per question."""
    provider.append_responses([script])  # the provider also calls this function for the next request
    last = messages[-1]
    if isinstance(last, ToolResultMessage):
        return faux_assistant_message(f"Done: {last.content[0].text}")  # type: ignore[union-attr]
    if "refund" in last.content[0].text.lower():  # type: ignore[union-attr]
        return faux_assistant_message([faux_tool_call("refund", {"order": "A-7"})], stop_reason="tool_use")
    return faux_assistant_message(f"We have {len(messages)} messages so far.")


provider.append_responses([script])
channel = InMemoryChannel()


@tool
async def refund(order: str) -> str:
    """Pay the price of an order back."""
    return f"order {order} is paid back (key {current_step().idempotency_key[:8]})"


support = Agent(
    model=provider.model("script"),
    tools=[refund],
    channel=channel,
    middleware=[ConfirmToolCallMiddleware(channel, require_confirm=["refund"])],
)

app = App(agents={"support": support}, version="1")
