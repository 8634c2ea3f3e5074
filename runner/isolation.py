"""Attempts that are executed alone, in a child process: a run that took its processes down before takes no neighbour with it.

The worker has one child at most: started on demand, kept for the next attempt, ended when there is none. The child executes the
attempt under the fence that the worker won, on connections of its own; lock and heartbeat stay the worker's. Worker and child
talk over a socket, in pickles: an :class:`Order`, then claims and stops one way, signs of life and answers the other way. The
end of the socket ends the child.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import struct
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from .exchange import Claim, Ended
from .executor import UNWIND, Execution, Stop, Tools
from .outcomes import UNSERVED_DELAY
from .patience import patiently

START: Final = 60.0
"""Seconds within which a child has loaded the app and connected."""
IDLE: Final = 60.0
"""Seconds without an attempt after which the child is ended."""
SLACK: Final = 2.0
"""Seconds that a stopped attempt gets in addition to its agent's."""
HEADER: Final = struct.Struct("!I")

log = structlog.get_logger("runyard.isolation")


@dataclass(frozen=True, slots=True)
class Order:
    """How a child makes itself ready: the app as ``module:attribute``, what its backend is connected with, where to import
    from, and the process that it serves."""

    app: str
    settings: Any
    parent: int
    path: Sequence[str] = field(default_factory=lambda: list(sys.path))


@dataclass(frozen=True, slots=True)
class Answer:
    """How the attempt ended; None if it was lost."""

    ended: Ended | None


class Alive:
    """The child's sign of life: it is ready, and its loop turns."""


class ChildDied(Exception):
    """The child ended, or had to be ended; the message says how."""


def frame(message: object) -> bytes:
    """``message`` as it goes over the socket."""
    body = pickle.dumps(message)
    return HEADER.pack(len(body)) + body


class Child:
    """One child process."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, watchdog: float) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._watchdog = watchdog
        self._exit = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, command: Sequence[str], order: Order, watchdog: float) -> Child:
        """Start a child with ``command`` and the number of its socket, and wait until it is ready. Raises ChildDied."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                start_new_session=True,  # Ctrl-C is for the worker, which tells its child what to do
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, reader, writer, watchdog)
        child.tell(order)
        try:
            await child._hear(START)
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def lives(self) -> bool:
        return self._process.returncode is None

    def tell(self, message: Order | Claim | Stop) -> None:
        """Send a message; one that a dead child does not get is not missed."""
        self._writer.write(frame(message))

    async def answer(self) -> Ended | None:
        """How the attempt that it was told to execute ended. Raises ChildDied, also when it was silent for too long."""
        while True:
            message = await self._hear(self._watchdog)
            if isinstance(message, Answer):
                return message.ended

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """End the child and wait for it."""
        self.kill()
        await self._exit
        self._writer.close()

    async def _hear(self, timeout: float) -> object:
        try:
            async with asyncio.timeout(timeout):
                (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                return pickle.loads(await self._reader.readexactly(size))
        except TimeoutError:
            await self.end()
            raise ChildDied(f"its process gave no sign of life for {timeout:g} s") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._exit
            raise ChildDied(_how(self._process.returncode)) from None

    async def _watch(self) -> None:
        """A process that the agent forked may hold the socket open; it must not hide that the child is gone."""
        await self._process.wait()
        self._writer.transport.close()


class Isolation:
    """The child of one worker. ``watchdog``: seconds that user code may block the child's event loop."""

    def __init__(self, command: Sequence[str], order: Order, *, watchdog: float = 30.0) -> None:
        self.turn = asyncio.Lock()
        self._command = command
        self._order = order
        self._watchdog = watchdog
        self._child: Child | None = None
        self._idle: asyncio.Task[None] | None = None

    def execution(self, tools: Tools, claim: Claim) -> Execution:
        """The attempt of ``claim``, to be executed in the child."""
        return IsolatedExecution(tools, claim, self)

    async def child(self) -> Child:
        """A child that is ready. For who has the ``turn``. Raises ChildDied if none can be started."""
        await self._keep()
        if self._child is not None and not self._child.lives:
            await self._end()
        if self._child is None:
            self._child = await Child.start(self._command, self._order, self._watchdog)
        return self._child

    def leave(self) -> None:
        """Give the turn to the next; without one the child is ended after a while."""
        self.turn.release()
        if not self.turn.locked() and self._idle is None:
            self._idle = asyncio.create_task(self._end_when_idle())

    async def close(self) -> None:
        """End the child."""
        await self._keep()
        await self._end()

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(IDLE)
        async with self.turn:
            await self._end()

    async def _keep(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()
            await asyncio.wait((idle,))

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()


class IsolatedExecution(Execution):
    """An attempt that waits for its turn in the child. Until it began there, nothing can be held against its run."""

    def __init__(self, tools: Tools, claim: Claim, isolation: Isolation) -> None:
        super().__init__(tools, claim)
        self._isolation = isolation
        self._child: Child | None = None

    def stop(self, why: Stop) -> None:
        super().stop(why)
        if self._child is not None:
            self._child.tell(why)

    async def _run(self) -> Ended | None:
        turn = asyncio.create_task(self._isolation.turn.acquire())
        await asyncio.wait((turn, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            turn.cancel()
            await asyncio.wait((turn,))
            return await self._give_up()
        try:
            return await self._alone()
        finally:
            self._child = None
            self._isolation.leave()

    async def _alone(self) -> Ended | None:
        try:
            child = await self._isolation.child()
        except ChildDied as error:
            log.error("an attempt cannot be executed alone", error=str(error))
            return await self._release(delay=UNSERVED_DELAY)
        if self._why is not None:
            return await self._give_up()
        self._child = child
        child.tell(self._claim)
        answer = asyncio.create_task(child.answer())
        await asyncio.wait((answer, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await asyncio.wait((answer,), timeout=UNWIND + SLACK)
            if not answer.done():
                child.kill()
        try:
            return await answer
        except ChildDied as died:
            return await self._died(str(died))

    async def _give_up(self) -> Ended | None:
        return None if self._why is Stop.ABANDON else await self._release()

    async def _died(self, how: str) -> Ended | None:
        log.error("a run took down the process in which it was alone", how=how)
        runs = self._tools.backend.runs
        if self._why is Stop.ABANDON:
            return None
        if self._why is Stop.HANDOVER:
            return await patiently(lambda: runs.release(self.attempt, first_event=None))
        return await patiently(lambda: runs.bury(self.attempt, how))


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process exited with code {code}"
