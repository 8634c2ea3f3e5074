"""The agent of the conversations that tasks.py reads."""

from pydantic_ai import Agent

from runyard import App, default_model
from runyard.testing import ScriptedModel

assistant = Agent(
    default_model() or ScriptedModel(lambda request: "I have written it down.", delay=0.02),
    instructions="You are an assistant. Confirm in one sentence what you are asked for.",
)

app = App(agents={"assistant": assistant}, version="1")
