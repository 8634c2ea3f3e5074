"""The common part of the store scenarios: the contestants, and the timing of one call."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from benchmarks import peers, runyard
from benchmarks.harness import Contestant, Measure
from benchmarks.lab import Lab
from benchmarks.ports import Store

OpenStore = Callable[[Lab], AbstractAsyncContextManager[Store]]
Measured = Callable[[Lab, Store], Measure]
"""A function that takes a store and returns the measure of one turn. The measure may keep fixtures between turns."""


def contestants(measured: Measured) -> list[Contestant]:
    """Return the contestants: runyard if it is available, and cubeloop's checkpointer."""
    side = runyard.side()
    ours = [contestant(runyard.NAME, side.store, measured)] if side else []
    return [*ours, contestant("cubeloop", peers.cubeloop_store, measured)]


def contestant(name: str, open_store: OpenStore, measured: Measured) -> Contestant:
    @asynccontextmanager
    async def open_turns(lab: Lab) -> AsyncIterator[Measure]:
        async with open_store(lab) as store:
            yield measured(lab, store)

    return Contestant(name, open_turns)


async def milliseconds(call: Awaitable[object]) -> float:
    """Return the milliseconds that awaiting ``call`` takes."""
    begin = time.perf_counter()
    await call
    return (time.perf_counter() - begin) * 1000
