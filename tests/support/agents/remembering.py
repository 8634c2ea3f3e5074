"""An agent that answers from what its run can see: it knows the name that a user gave in the history, and no other."""

from __future__ import annotations

import re

from runyard import App, Message, RunContext


async def remembering(ctx: RunContext) -> None:
    """Answer "what is my name" with the last name that the user gave. Answer anything else with a number of words."""
    told = [message.text for message in await ctx.history() if message.role == "user"]
    names = [found[1] for text in told if (found := re.search(r"I am (\w+)", text))]
    if "what is my name" in told[-1]:
        answer = f"You are {names[-1]}." if names else "You did not say."
    else:
        answer = f"You said {len(told)} things."
    await ctx.append(Message.assistant(answer))


app = App({"remembering": remembering}, version="1")
