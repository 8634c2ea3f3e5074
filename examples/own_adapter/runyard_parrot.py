"""The adapter of parrot. It makes bots of parrot agents of a runyard App."""

from __future__ import annotations

from dataclasses import dataclass

from parrot import Bot, Call

from runyard import Message, RunContext
from runyard.models import ToolCallPart, ToolResultPart, Usage

CALL = "call"
"""The id of a run's call. A bot makes one call per run."""


def adapt(agent: object) -> Served | None:
    """Return a bot as an agent for an App. Return None for any other object.

    This function is the value of the package's entry point.
    """
    return Served(agent) if isinstance(agent, Bot) else None


@dataclass
class Served:
    """A bot as the agent of an App."""

    bot: Bot

    @property
    def asks_humans(self) -> bool:
        """Whether the bot may ask a human. A probe of such a bot is refused before it starts."""
        return self.bot.careful

    async def __call__(self, ctx: RunContext) -> None:
        """Continue after the last stored message. An earlier attempt may have stored the call, or the call and its result."""
        history = await ctx.history()
        conversation = [message.text for message in history if message.role in ("user", "assistant") and message.text]
        own = [message for message in history if message.run_id == ctx.run_id]
        calls = [call for message in own for call in message.tool_calls]
        results = [result for message in own for result in message.tool_results]
        result = str(results[0].content) if results else None
        if result is None:
            if not calls and not (calls := await self._answer(ctx, conversation)):
                return
            result = await self._call(ctx, calls[0])
        await self._answer(ctx, conversation, result)

    async def _answer(self, ctx: RunContext, conversation: list[str], result: str | None = None) -> list[ToolCallPart]:
        """Stream and store an answer of the bot. Return its calls."""
        text, calls = "", []
        async for piece in self.bot.next(conversation, result):
            if isinstance(piece, Call):
                calls.append(ToolCallPart(id=CALL, name=piece.function.__name__, arguments={"text": piece.text}))
            else:
                text += piece
                await ctx.stream_text(piece)
        await ctx.append(Message.assistant([*calls] if calls else text, usage=Usage(requests=1)))
        return calls

    async def _call(self, ctx: RunContext, call: ToolCallPart) -> str:
        """Make the call if a human allows the call. Store the result of the call at once."""
        arguments, function = call.arguments, self.bot.function
        assert function is not None
        result: str | None = None
        if self.bot.careful:
            approval = await ctx.approve(call)  # suspends the run; the next attempt gets the answer from the same call
            arguments = approval.arguments
            result = None if approval else f"denied: {approval.reason}"
        if result is None:
            with ctx.in_tool(call.id):
                result = await function(str(arguments["text"]))
        await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=result)))
        return result
