"""The agent whose runs produce.py enqueues with arq's own client."""

from pydantic_ai import Agent

from runyard import App, default_model
from runyard.testing import ModelRequested, ScriptedModel


def script(request: ModelRequested) -> str:
    """Return the reply of the scripted model. This model is used if no provider's key is set."""
    return "Rain until noon, then sun." if "weather" in request.prompt else "Good to hear from you."


guide = Agent(default_model() or ScriptedModel(script, delay=0.02), instructions="You answer in one sentence.")

app = App(agents={"guide": guide}, version="1")
