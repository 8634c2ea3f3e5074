"""Five agents whose runs use every metric of a worker: ``tests.support.agents.metered:app``.

``scripted`` is the agent of ``runyard.testing.scripted_agent``. ``writer`` and ``reader`` ask a model. ``priced`` states its
usage. ``thrifty`` has a budget that its second request exceeds.
"""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from runyard import App, RunContext, serve
from runyard.agents.budgets import Budget
from runyard.models import Message, Usage
from runyard.testing.scripted_agent import scripted


def lookup(word: str) -> str:
    """Return the meaning of ``word``."""
    return f"the meaning of {word}"


async def priced(ctx: RunContext) -> None:
    """Answer after 50 ms, for two cents."""
    await asyncio.sleep(0.05)
    ctx.add_usage(Usage(requests=1, input_tokens=200, output_tokens=20, cost=0.02), model="example-large")
    await ctx.stream_text("done")
    await ctx.append(Message.assistant("done"))


app = App(
    {
        "scripted": scripted,
        "writer": Agent(TestModel(custom_output_text="a line"), tools=[lookup]),
        "reader": Agent(TestModel(custom_output_text="understood")),
        "priced": priced,
        "thrifty": serve(Agent(TestModel(), tools=[lookup]), budget=Budget(steps=1)),
    }
)
