"""Connections of one object, for callers in several event loops, or in threads without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ..client.client import Client
from ..client.sync import Portal, SyncClient
from ..ports.stores import Backend
from ..support import backend_urls

T = TypeVar("T")


class Connections(Protocol):
    """The connections of one object, for example of a checkpoint saver.

    ``wait`` executes a coroutine for a caller without an event loop. ``here`` executes a coroutine for a caller in an event
    loop. ``backend`` returns the backend of the running event loop. ``close`` and ``aclose`` close the opened connections.
    """

    def wait(self, work: Coroutine[Any, Any, T]) -> T: ...
    async def here(self, work: Coroutine[Any, Any, T]) -> T: ...
    async def backend(self) -> Backend: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


class Own:
    """Connections to a URL. Each event loop has a separate backend. Synchronous calls use a backend in a separate thread."""

    def __init__(self, url: str, tenant: str) -> None:
        self._url, self._tenant = url, tenant
        self._portal: Portal | None = None
        self._lock = threading.Lock()
        self._backends: dict[asyncio.AbstractEventLoop, asyncio.Task[Backend]] = {}

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._portal is None:
                self._portal = Portal()
        return self._portal.wait(work)

    async def here(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def backend(self) -> Backend:
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [other for other in self._backends if other.is_closed()]:
                del self._backends[other]
            connecting = self._backends.get(loop)
            if connecting is None or (connecting.done() and (connecting.cancelled() or connecting.exception())):
                connecting = self._backends[loop] = loop.create_task(self._connect())
        return await asyncio.shield(connecting)

    async def _connect(self) -> Backend:
        backend = await backend_urls.connect(self._url, tenant=self._tenant)
        try:
            await backend.check()
        except BaseException:
            await backend.close()
            raise
        return backend

    def close(self) -> None:
        with self._lock:
            portal, self._portal = self._portal, None
        if portal is not None:
            try:
                portal.wait(self._close())
            finally:
                portal.close()

    async def aclose(self) -> None:
        try:
            await self._close()
        finally:
            await asyncio.to_thread(self.close)

    async def _close(self) -> None:
        """Close the backend of the running event loop.

        Ignore the error of a failed connect, because the call that connected has already raised this error.
        """
        with self._lock:
            connecting = self._backends.pop(asyncio.get_running_loop(), None)
        if connecting is None:
            return
        await asyncio.wait((connecting,))
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close()


class Shared:
    """The connections of an existing client or worker. All calls are executed in the event loop of this client or worker."""

    def __init__(self, backend: Backend | None, loop: asyncio.AbstractEventLoop) -> None:
        self._backend, self._loop = backend, loop

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            inside = False
        if inside:
            work.close()
            raise RuntimeError(
                "a synchronous method of a saver would block the saver's event loop; await the async method, such as aput"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def here(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def backend(self) -> Backend:
        assert self._backend is not None
        return self._backend

    def close(self) -> None:
        return

    async def aclose(self) -> None:
        return


def connections(where: str | Client | SyncClient, tenant: str) -> Connections:
    """Return the connections of the given client. For a URL, return new connections to this URL."""
    if isinstance(where, str):
        return Own(where, tenant)
    if isinstance(where, SyncClient):
        return Shared(where.client.backend, where.portal.loop)
    return Shared(where.backend, asyncio.get_running_loop())
