"""The agent of projection.py. It knows your name if you said it in this conversation, or before the conversation was forked."""

import re

from runyard import App, Message, RunContext

app = App(version="1")


@app.agent
async def companion(ctx: RunContext) -> None:
    """Answer from the history alone. A fork has the history of its parent up to the fork."""
    told = [message.text for message in await ctx.history() if message.role == "user"]
    names = [found[1] for text in told if (found := re.search(r"I am (\w+)", text))]
    known = f"You are {names[-1]}." if names else "You did not say who you are."
    await ctx.append(Message.assistant(known if "my name" in told[-1] else f"You told me {len(told)} things."))
