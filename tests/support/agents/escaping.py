"""Agents whose calls of a model leave the context of their run: ``tests.support.agents.escaping:app``.

The first message is the URL of a file to download. The answer is the outcome of the download. Only the agent imports
pydantic-ai, when it runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from runyard import App, Message, RunContext

app = App()


def look(url: str) -> str:
    """Show a model the file at ``url``, in an event loop of its own."""
    from pydantic_ai.direct import model_request_sync
    from pydantic_ai.messages import ImageUrl, ModelRequest, UserPromptPart

    from tests.support.providers.conversation import MODELS

    file = ImageUrl(url, force_download="allow-local")
    try:
        model_request_sync(MODELS["openai-chat"], [ModelRequest([UserPromptPart(["look", file])])])
    except Exception as error:
        return type(error).__name__
    return "seen"


async def answer(ctx: RunContext, said: str) -> None:
    await ctx.append(Message.assistant(said))


def prompt(ctx: RunContext) -> str:
    assert ctx.input is not None
    return ctx.input.text


@app.agent
async def executor(ctx: RunContext) -> None:
    """Call the model in a thread of the loop's executor, which copies no context."""
    await answer(ctx, await asyncio.get_running_loop().run_in_executor(None, look, prompt(ctx)))


@app.agent
async def thread(ctx: RunContext) -> None:
    """Call the model in a new thread with its own event loop."""
    said: list[str] = []
    own = threading.Thread(target=lambda: said.append(look(prompt(ctx))))
    own.start()
    await asyncio.to_thread(own.join)
    await answer(ctx, said[0])


@app.agent
async def alone(ctx: RunContext) -> None:
    """Do the same in the child process that executes a run after two crashes."""
    if ctx.attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    await thread(ctx)
