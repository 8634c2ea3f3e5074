"""What connections to Postgres keep of the tasks that use them."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar, copy_context

from runyard_backends.postgres.backend import connect


class History:
    """What a run's contextvars may lead to, those of a library included."""


carried: ContextVar[History] = ContextVar("carried")


async def test_a_statement_holds_nothing_of_the_run_that_prepared_it(postgres_url: str) -> None:
    """A worker of long threads would hold a history for each statement of each connection."""
    backend = await connect(postgres_url, max_pool_size=1)
    seen: list[weakref.ref[History]] = []

    async def ask() -> None:
        history = History()
        seen.append(weakref.ref(history))
        carried.set(history)
        await backend.runs.run("t", "r")

    for _ in range(2):  # the pool itself remembers who used a connection last
        await asyncio.create_task(ask(), context=copy_context())
    gc.collect()
    held = seen[0]()
    await backend.close()
    assert held is None
