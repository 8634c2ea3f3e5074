"""Two apps that share the queue ``default`` and have different agents: ``clerks`` and ``sellers``."""

from runyard import App, Message, RunContext


async def clerk(ctx: RunContext) -> None:
    await ctx.append(Message.assistant("I am the clerk."))


async def seller(ctx: RunContext) -> None:
    await ctx.append(Message.assistant("I am the seller."))


clerks = App({"clerk": clerk})
sellers = App({"seller": seller})
