"""The child process of a worker that executes attempts alone: ``python -m backends.redis.isolated <socket>``.

It does what the other end of the socket says (:mod:`runner.isolation`), and ends with it, whatever user code is doing.
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

import structlog

from runner.app import App, load_app
from runner.containment import contain
from runner.eventwriter import EventWriter
from runner.exchange import Claim, Ended
from runner.executor import Execution, Stop, Tools
from runner.isolation import HEADER, Alive, Answer, Order, frame
from runner.logging import configure
from runner.patience import patiently
from runner.ports import Backend
from runner.worker import TURN

from .arq_worker import CONNECT_BOUND, connectors, guard_downloads, loop_factory

POOL = {"min_pool_size": 1, "max_pool_size": 2}
"""One run at a time needs few connections."""

log = structlog.get_logger("runyard.isolation")


class Isolated:
    """One attempt at a time, as told."""

    def __init__(self, app: App, backend: Backend, link: socket.socket, parent: int) -> None:
        self._app = app
        self._backend = backend
        self._link = link
        self._parent = parent
        self._execution: Execution | None = None
        self._task: asyncio.Task[None] | None = None

    def told(self, message: Order | Claim | Stop) -> None:
        """Execute the attempt of a claim, or stop the one that is under way."""
        if isinstance(message, Claim):
            self._task = asyncio.create_task(self._execute(message))
        elif isinstance(message, Stop) and self._execution is not None:
            self._execution.stop(message)

    async def turn(self) -> None:
        """Say that the loop turns, for as long as somebody listens."""
        while os.getppid() == self._parent:
            self._say(Alive())
            await asyncio.sleep(TURN)

    async def _execute(self, claim: Claim) -> None:
        writer = EventWriter(self._backend.events)
        writing = asyncio.create_task(writer.run())
        ended: Ended | None = None
        try:
            self._execution = Execution(Tools.of(self._app, self._backend, writer), claim)
            ended = await self._execution.run()
        except Exception:
            log.exception("an attempt ended by an error of runyard itself", run_id=claim.ref.run_id)
        finally:
            self._execution = None
            writer.close()
            await writing
        self._say(Answer(ended))

    def _say(self, message: Alive | Answer) -> None:
        self._link.sendall(frame(message))


def _read(stream: io.BufferedIOBase) -> Order | Claim | Stop:
    """The next message; the worker's end is this process's end."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        os._exit(0)
    message: Order | Claim | Stop = pickle.loads(stream.read(*HEADER.unpack(header)))
    return message


async def _serve(order: Order, link: socket.socket, stream: io.BufferedIOBase) -> None:
    app = load_app(order.app)
    connect, _ = connectors(order.settings.model_copy(update=POOL))
    isolated = Isolated(app, await patiently(connect, bound=CONNECT_BOUND), link, order.parent)
    loop = asyncio.get_running_loop()
    contain(loop)

    def listen() -> None:
        while True:
            loop.call_soon_threadsafe(isolated.told, _read(stream))

    threading.Thread(target=listen, name="runyard-orders", daemon=True).start()
    await isolated.turn()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the worker hears them, and says what to do
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
