"""A deployment inside the event loop of a test: a real worker, stores in memory, and fakeredis in place of Redis."""

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
    """Serve ``app`` inside the ``with`` block. The block gets a client of the deployment. At first there are no threads.

    ``app``: an App, or a single agent that an App accepts. ``tenant``: the tenant of the client. ``queues``: the queues that
    the worker serves, by default all queues of the app. ``slots``: maximum number of runs at once. ``grace``: seconds for
    which runs may continue after the block, before they are stopped.

    Backoffs, delays and deadlines take their real time. :class:`~runyard.testing.Harness` skips these times, and simulates
    crashes. Webhooks are not sent.

    The deployment opens no port and starts no process and no thread. After the block the worker and all its tasks have ended,
    even if the block raised an exception. A fixture may enter the block in one task and leave it in another task.

    Raises ExtraMissingError if ``runyard[testing]`` is not installed. If the worker failed, the end of the block raises the
    worker's error.
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
    """Run ``worker`` inside the ``with`` block. If the script of a ScriptedModel has an exception, each block raises it
    once."""
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
