"""A whole deployment inside the event loop of a test: a real worker, the stores in memory, Redis by fakeredis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING

from ..app import App
from ..client.client import Client
from ..support import backend_urls
from ..worker.worker import Worker
from .harness import HarnessScope, stage
from .task_ends import ended

if TYPE_CHECKING:
    pass


@asynccontextmanager
async def deployment(
    app: object,
    *,
    tenant: str = "",
    queues: Sequence[str] | None = None,
    slots: int = 100,
    grace: float = 0.0,
) -> AsyncIterator[Client]:
    """Serve ``app`` while the block lasts. The block gets a client of the deployment, which has no threads at first.

    ``app``: an App, or a single agent as an App takes it. ``tenant``: the tenant of the client. ``queues``: the queues that the
    worker serves, by default all of the app. ``slots``: maximum number of runs at once. ``grace``: seconds that runs may take
    to end after the block. Runs that take longer are stopped.

    Backoffs, delays and deadlines take their real time. :class:`~runyard.testing.Harness` skips them and simulates crashes.
    Webhooks are not sent.

    The deployment opens no port and starts no process and no thread. After the block, also after an exception in it, the worker
    and all its tasks have ended. A fixture may enter the block in one task and leave it in another.

    Raises ExtraMissingError if ``runyard[testing]`` is not installed. Raises the worker's error at the end of the block if the
    worker failed.
    """
    served = app if isinstance(app, App) else App({"agent": app})
    backend = await backend_urls.connect("memory://", tenant=tenant, redis="fakeredis://")
    try:
        async with _serving(Worker(served, backend, queues=queues, slots=slots, grace=grace)):
            yield Client(backend, app_version=served.version, namespace=served.namespace)
    finally:
        await backend.close()


@asynccontextmanager
async def _serving(worker: Worker) -> AsyncIterator[None]:
    """Run ``worker`` while the block lasts. Scripted models start without state, as in a harness."""
    context = copy_context()
    context.run(stage.set, HarnessScope())
    running = asyncio.create_task(worker.run(), name="deployment", context=context)
    started = asyncio.create_task(worker.started.wait())
    try:
        await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            yield
    finally:
        started.cancel()
        worker.stop()
        await ended(running, on_cancel=worker.stop)  # a second stop ends the grace time
