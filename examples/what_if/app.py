"""The agents of ask.py: a planner, and a judge that selects the cheapest of several plans."""

import re

from pydantic_ai import Agent

from runyard import App, RunContext, default_model
from runyard.testing import ModelRequested, ScriptedModel

PLANS = {
    "three days": "Day one the old town, day two the museums, day three the sea.",
    "by train": "Night train to Paris, then the Atlantic coast: 210 €, and you wake up by the sea.",
    "half the money": "A hostel in Graça, picnics, and the public viewpoints: 95 € in all.",
    "rains": "Tiles, coaches and contemporary art: three museums, all of them dry.",
}


def script(request: ModelRequested) -> str:
    """Return the reply of the scripted model, which is used if no provider's key is set."""
    return next((plan for words, plan in PLANS.items() if words in request.prompt), "Tell me more about it.")


planner = Agent(
    default_model() or ScriptedModel(script, delay=0.02), instructions="You plan short trips. Two sentences, with the price."
)

app = App(agents={"planner": planner}, version="1")


@app.agent
async def cheapest(ctx: RunContext) -> None:
    """Judge the candidates that succeeded: set the number of the cheapest one as the result."""
    assert ctx.input is not None
    ctx.result = min(ctx.input.metadata["candidates"], key=lambda candidate: price(candidate["text"]))["number"]


def price(text: str) -> float:
    found = re.search(r"(\d+) ?€", text)
    return float(found[1]) if found else float("inf")
