from runyard import App, RunContext
from runyard.testing import Harness

app: App
harness: Harness


async def careful(ctx: RunContext) -> None: ...
