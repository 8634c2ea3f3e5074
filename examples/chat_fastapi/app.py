"""The agent behind web.py: it tells very short stories and rolls dice."""

import random

from pydantic_ai import Agent

from runyard import App, default_model
from runyard.testing import ModelRequested, Reply, ScriptedModel, call

STORIES = [
    "Once a lighthouse fell in love with the morning. Every night it wrote her letters of light, and every day she answered "
    "by making it invisible.",
    "So it learned to wait. The ships thought that it blinked for them, and it let them: there is room for many in one light.",
    "One day the keeper forgot to put it out. The morning came, saw the small flame in all her gold, and stayed a minute "
    "longer. That is why days in June are long.",
]


def script(request: ModelRequested) -> Reply:
    """Return the reply of the scripted model, which is used if no provider's key is set."""
    if "roll" in request.results:
        return f"It is a {request.results['roll']}. Shall the story go on with that?"
    if "roll" in request.prompt.lower() or "dice" in request.prompt.lower():
        return call("roll", sides=6)
    told = sum(message.kind == "response" for message in request.messages)
    return STORIES[told % len(STORIES)]


agent = Agent(
    default_model() or ScriptedModel(script, delay=0.04),
    instructions="You tell very short stories, a few sentences at a time, and roll dice when asked.",
)


@agent.tool_plain
def roll(sides: int) -> int:
    """Roll a die."""
    return random.randint(1, sides)


app = App(agents={"storyteller": agent}, version="1")
