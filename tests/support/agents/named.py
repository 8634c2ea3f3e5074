"""A program with one agent, which says its name. The environment gives its namespace."""

from runyard import App, Message, RunContext


async def clerk(ctx: RunContext) -> None:
    await ctx.append(Message.assistant(f"{ctx.agent} in {ctx.run_id}"))


app = App(clerk)
