"""The agent behind web.py: it writes to the customer of an order."""

from pydantic_ai import Agent

from runyard import App, default_model
from runyard.testing import ScriptedModel

agent = Agent(
    default_model() or ScriptedModel(lambda request: f"Thank you! {request.prompt} It leaves our workshop on Monday."),
    instructions="Write two kind sentences to the customer who placed this order.",
)

app = App(agents={"clerk": agent}, version="1")
