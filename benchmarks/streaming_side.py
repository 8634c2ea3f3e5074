"""A model that streams at the speed of a provider. It is called in three ways: by runyard, by pydantic-ai, and directly.

``python -m benchmarks.streaming_side alone RUNS`` executes the agent with pydantic-ai in this process. ``… model RUNS`` calls
the model directly. Both print JSON: the seconds of each run, and the seconds of CPU time. ``… worker POSTGRES REDIS SLOTS
PORT`` starts a worker of runyard.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

TOKENS = 100
PER_SECOND = 20


async def answer(messages: Any = None, info: Any = None) -> AsyncIterator[str]:
    """Stream an answer at a fixed rate. Late tokens follow at once, as from a provider."""
    begin = time.monotonic()
    for n in range(TOKENS):
        await asyncio.sleep(begin + (n + 1) / PER_SECOND - time.monotonic())
        yield f"token-{n} "


agent: Agent[None, str] = Agent(FunctionModel(stream_function=answer))


async def by_pydantic_ai() -> None:
    """Execute the agent and read its stream, like a program that displays the stream."""
    async with agent.iter("go") as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass


async def by_nobody() -> None:
    async for _ in answer():
        pass


async def drive(once: Callable[[], Awaitable[None]], runs: int) -> dict[str, Any]:
    """Call ``once`` ``runs`` times at once, and return the seconds of each call and the CPU time.

    A first call, which loads modules, is not counted.
    """

    async def timed() -> float:
        begin = time.monotonic()
        await once()
        return time.monotonic() - begin

    await once()
    cpu = time.process_time()
    seconds = await asyncio.gather(*(timed() for _ in range(runs)))
    return {"seconds": seconds, "cpu": time.process_time() - cpu}


def work(url: str, redis_url: str, slots: str, port: str) -> None:
    """Run a worker that serves the agent."""
    from benchmarks.process import exit_with_parent
    from runyard import App
    from runyard.support.settings import Settings
    from runyard_api.worker.process import run_worker

    exit_with_parent()
    settings = Settings(postgres_url=url, redis_url=redis_url, slots=int(slots), metrics_port=int(port), log_level="warning")
    run_worker(App(agents={"streams": agent}), settings)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "worker":
        work(*arguments)
    else:
        print(json.dumps(asyncio.run(drive(by_pydantic_ai if what == "alone" else by_nobody, int(arguments[0])))))
