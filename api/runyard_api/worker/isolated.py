"""The child process in which a worker executes attempts alone: ``python -m runyard_api.worker.isolated <socket>``.

The process executes the attempts of the claims that it reads from the socket (:mod:`runyard.worker.isolation`). When the socket
closes, the process exits, even while user code runs.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Final

import structlog

from runyard.app import App, load_app
from runyard.domain.messages import Usage
from runyard.events.writer import EventWriter
from runyard.execution.executor import Execution, Stop, WorkerServices
from runyard.ports.results import Claim, Ended
from runyard.ports.stores import Backend
from runyard.ports.workers import BlockedLoop
from runyard.support.logging import configure
from runyard.support.store_retries import patiently
from runyard.support.tracebacks import logged_traceback
from runyard.worker.blocked_loop import BLOCKED_SECONDS, LOOK_SECONDS, blocked
from runyard.worker.isolation import HEADER, Alive, ChildReply, Order, frame
from runyard.worker.task_guard import contain
from runyard.worker.worker import TURN_SECONDS

from .. import trace_export
from .process import CONNECT_SECONDS, connectors, guard_downloads, loop_factory

ISOLATED_MIN_CONNECTIONS: Final = 1
ISOLATED_MAX_CONNECTIONS: Final = 2
"""Minimum and maximum number of connections of this process to Postgres. One run at a time needs few connections."""

log = structlog.get_logger("runyard.isolation")


class Isolated:
    """Executes the attempts that the worker sends, one at a time."""

    def __init__(self, app: App, backend: Backend, link: socket.socket, parent: int) -> None:
        self._app = app
        self._backend = backend
        self._link = link
        self._parent = parent
        self._execution: Execution | None = None
        self._stops: list[Stop] = []
        """The stops of an attempt whose execution has not begun."""
        self._task: asyncio.Task[None] | None = None
        self._turned = time.monotonic()
        self._sending = threading.Lock()

    def told(self, message: Order | Claim | Stop) -> None:
        """Execute the attempt of a claim, or stop the present attempt."""
        if isinstance(message, Claim):
            self._stops = []  # later stops belong to this attempt
            self._task = asyncio.create_task(self._execute(message))
        elif isinstance(message, Stop) and self._execution is not None:
            self._execution.stop(message)
        elif isinstance(message, Stop):
            self._stops.append(message)

    async def turn(self) -> None:
        """Send :class:`Alive` every TURN_SECONDS until the worker has ended."""
        while os.getppid() == self._parent:
            self._turned = time.monotonic()
            self._say(Alive())
            await asyncio.sleep(TURN_SECONDS)

    def watch(self, main_thread: int) -> None:
        """Repeatedly report the place where user code blocks the main loop. ``main_thread``: the loop's thread."""
        while True:
            time.sleep(LOOK_SECONDS)
            silence, keep = time.monotonic() - self._turned, self._app.traceback_filter
            if silence >= BLOCKED_SECONDS and (found := blocked(main_thread, silence, keep)) is not None:
                self._say(found)

    async def _execute(self, claim: Claim) -> None:
        writer = EventWriter(self._backend.events)
        writing = asyncio.create_task(writer.run())
        ended: Ended | None = None
        used: dict[tuple[str, str], Usage] = {}

        def count(agent: str, usage: Usage, model: str) -> None:
            used[agent, model] = used.get((agent, model), Usage()) + usage

        try:
            services = replace(WorkerServices.of(self._app, self._backend, writer), on_used=count)
            self._execution = Execution(services, claim, nested=True)
            for stop in self._stops:
                self._execution.stop(stop)
            ended = await self._execution.run()
        except Exception as error:
            names = {"thread_key": claim.ref.thread_key, "run_id": claim.ref.run_id}
            trace = logged_traceback(error, self._app.traceback_filter)
            log.error("isolated_execution_failed", **names, error=str(error), **trace)
        finally:
            self._execution = None
            writer.close()
            await writing
        self._say(ChildReply(ended, used))
        await asyncio.to_thread(trace_export.flush)  # from now on, the worker may kill this process at any time

    def _say(self, message: Alive | BlockedLoop | ChildReply) -> None:
        """Send a message to the worker. Exit this process if the worker has ended."""
        try:
            with self._sending:
                self._link.sendall(frame(message))
        except ConnectionError:
            os._exit(0)


def _read(stream: io.BufferedIOBase) -> Order | Claim | Stop:
    """Return the next message from the worker's socket. Exit this process if the worker has ended."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        os._exit(0)
    message: Order | Claim | Stop = pickle.loads(stream.read(*HEADER.unpack(header)))
    return message


async def _serve(order: Order, link: socket.socket, stream: io.BufferedIOBase) -> None:
    app = load_app(order.app)
    trace_export.set_up(trace_export.WORKER, content=order.settings.trace_content)
    small = {"min_pool_size": ISOLATED_MIN_CONNECTIONS, "max_pool_size": ISOLATED_MAX_CONNECTIONS, "history_cache_bytes": 0}
    connect, _ = connectors(order.settings.model_copy(update=small))
    isolated = Isolated(app, await patiently(connect, bound=CONNECT_SECONDS), link, order.parent)
    loop = asyncio.get_running_loop()
    contain(loop)

    def listen() -> None:
        while True:
            loop.call_soon_threadsafe(isolated.told, _read(stream))

    threading.Thread(target=listen, name="runyard-orders", daemon=True).start()
    watch = threading.Thread(target=isolated.watch, args=(threading.get_ident(),), name="runyard-watch", daemon=True)
    watch.start()
    await isolated.turn()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the worker also gets these signals, and then stops the attempt
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    stream = link.makefile("rb")
    order = _read(stream)
    assert isinstance(order, Order)
    sys.path[:] = order.path
    configure(order.settings.log_level, order.settings.log_format)
    guard_downloads()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(order, link, stream))


if __name__ == "__main__":
    main()
