"""Isolated attempts: if attempts of a run have crashed their processes, the run is executed alone, in a child process.

The worker has at most one child process. The worker starts it on demand, and the child process executes one attempt after
another. After CHILD_IDLE_SECONDS without an attempt, the worker ends the child process. The child process has separate
connections, and uses the fence of the worker's claim. The worker renews the lane's lock and sends the heartbeats.

Worker and child process exchange pickled messages over a socket. The worker sends one :class:`Order`, then a claim for each
attempt. The trace context in the claim is the span of the attempt. A :class:`~runyard.execution.executor.Stop` stops an
attempt. The child process sends :class:`Alive`, :class:`~runyard.ports.workers.BlockedLoop` and :class:`ChildReply`. The child
process ends when the socket is closed.

The stored functions in ``postgres/functions/crashes.sql`` count the crashes, and decide whether an attempt must run alone.
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
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from ..domain.messages import Usage
from ..execution.executor import CLEANUP_SECONDS, Execution, Stop, WorkerServices
from ..execution.retries import UNSERVED_RETRY_SECONDS
from ..ports.results import Claim, Ended
from ..ports.workers import BlockedLoop
from ..support.store_retries import patiently

CHILD_START_SECONDS: Final = 60.0
"""Maximum number of seconds that a child process may take to load the app and to connect."""
CHILD_IDLE_SECONDS: Final = 60.0
"""Seconds without an attempt, after which the worker ends the child process."""
STOP_SLACK_SECONDS: Final = 2.0
"""Seconds that a stopped attempt gets in addition to the agent's cleanup time."""
HEADER: Final = struct.Struct("!I")

log = structlog.get_logger("runyard.isolation")


@dataclass(frozen=True, slots=True)
class Order:
    """The first message to a child process.

    ``app``: the app as ``module:attribute``. ``settings``: the arguments with which the child process connects to the backend.
    ``parent``: the id of the worker's process. ``path``: the import path.
    """

    app: str
    settings: Any
    parent: int
    path: Sequence[str] = field(default_factory=lambda: list(sys.path))


@dataclass(frozen=True, slots=True)
class ChildReply:
    """The end of an attempt.

    ``ended``: the end of the attempt, or None if the child process wrote no end. ``used``: the usage by agent and model. The
    worker adds this usage to its metrics, because the child process serves no metrics.
    """

    ended: Ended | None
    used: dict[tuple[str, str], Usage]


class Alive:
    """Reports that the child process is ready and that its event loop runs."""


class ChildDied(Exception):
    """The child process exited or was killed. The message describes its end."""


def frame(message: object) -> bytes:
    """Return the bytes of ``message`` for the socket: the length of its pickle, then the pickle."""
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
        """Start a child process, and wait until it is ready. Raises ChildDied.

        ``command``: the words of the command line. The number of the child process's end of the socket is added as the last
        word.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                start_new_session=True,  # Ctrl-C goes to the worker only
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        child = cls(process, reader, writer, watchdog)
        child.send(order)
        try:
            await child._receive(CHILD_START_SECONDS, CHILD_START_SECONDS)
        except BaseException:
            await child.end()
            raise
        return child

    @property
    def lives(self) -> bool:
        return self._process.returncode is None

    def send(self, message: Order | Claim | Stop) -> None:
        """Send a message. If the child process is dead, raise no error, because :meth:`answer` reports the death."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def answer(self) -> ChildReply:
        """Wait for the end of the attempt in the child process. Raises ChildDied, also after ``watchdog`` seconds without
        :class:`Alive`.

        No other message is a sign of life. The error names the place in the last report of a blocked loop.
        """
        loop = asyncio.get_running_loop()
        deadline, block = loop.time() + self._watchdog, None
        while True:
            message = await self._receive(deadline - loop.time(), self._watchdog, block)
            if isinstance(message, ChildReply):
                return message
            if isinstance(message, BlockedLoop):
                block = message
            else:
                deadline, block = loop.time() + self._watchdog, None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def end(self) -> None:
        """Kill the child process, and wait for its end."""
        self.kill()
        await self._exit
        self._writer.close()

    async def _receive(self, timeout: float, bound: float, block: BlockedLoop | None = None) -> object:
        """Return the next message. Raises ChildDied after ``timeout`` seconds.

        ``bound``: the seconds without a sign of life, for the text of the error. ``block``: the last report of a blocked loop.
        """
        try:
            async with asyncio.timeout(timeout):
                (size,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                return pickle.loads(await self._reader.readexactly(size))
        except TimeoutError:
            await self.end()
            silent = f"the run's process sent no sign of life for {bound:g} s"
            if block is None:
                raise ChildDied(silent) from None
            log.warning("run_process_blocked", code_line=block.place, stack=block.stack)
            raise ChildDied(f"{silent}; its main loop was blocked at {block.place}") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._exit
            raise ChildDied(_how(self._process.returncode)) from None

    async def _watch(self) -> None:
        """Close the socket when the child process ends. A process that the agent forked may keep the other end of the socket
        open."""
        await self._process.wait()
        self._writer.transport.close()


class Isolation:
    """The child process of one worker. ``watchdog``: maximum seconds for which user code may block the event loop of this
    process."""

    def __init__(self, command: Sequence[str], order: Order, *, watchdog: float = 30.0) -> None:
        self.turn = asyncio.Lock()
        self._command = command
        self._order = order
        self._watchdog = watchdog
        self._child: Child | None = None
        self._idle: asyncio.Task[None] | None = None

    def execution(self, tools: WorkerServices, claim: Claim) -> Execution:
        """Return the attempt of ``claim``. The child process will execute it."""
        return IsolatedExecution(tools, claim, self)

    async def child(self) -> Child:
        """Return a ready child process. The caller holds ``turn``. Raises ChildDied if no child process can be started."""
        await self._keep()
        if self._child is not None and not self._child.lives:
            await self._end()
        if self._child is None:
            self._child = await Child.start(self._command, self._order, self._watchdog)
        return self._child

    def leave(self) -> None:
        """Give the child process to the next waiting attempt. If no attempt waits, end the child process after
        CHILD_IDLE_SECONDS."""
        self.turn.release()
        if not self.turn.locked() and self._idle is None:
            self._idle = asyncio.create_task(self._end_when_idle())

    async def close(self) -> None:
        """End the child process."""
        await self._keep()
        await self._end()

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(CHILD_IDLE_SECONDS)
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
    """An attempt that will be executed in the child process, after the attempts before it.

    Failures before the start of the attempt in the child process do not count as errors of the run.
    """

    def __init__(self, tools: WorkerServices, claim: Claim, isolation: Isolation) -> None:
        super().__init__(tools, claim)
        self._isolation = isolation
        self._child: Child | None = None
        self._answered = False

    def stop(self, why: Stop) -> None:
        super().stop(why)
        if self._child is not None:
            self._child.send(why)

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
            log.error("run_process_not_started", **self._names(), error=str(error))
            return await self._end_writer.release(delay=UNSERVED_RETRY_SECONDS)
        if self._why is not None:
            return await self._give_up()
        self._child = child
        run = self._claim.run
        assert run is not None
        child.send(replace(self._claim, run=run.model_copy(update={"trace_context": self.trace.context or run.trace_context})))
        answer = asyncio.create_task(child.answer())
        await asyncio.wait((answer, self._stopped), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await asyncio.wait((answer,), timeout=CLEANUP_SECONDS + STOP_SLACK_SECONDS)
            if not answer.done():
                child.kill()
        try:
            reply = await answer
        except ChildDied as died:
            return await self._died(str(died))
        self._answered = True
        for (agent, model), usage in reply.used.items():
            self._tools.on_used(agent, usage, model)
        return reply.ended

    def _log_end(self, ended: Ended | None, seconds: float) -> None:
        if not self._answered:  # otherwise the child process has logged the end
            super()._log_end(ended, seconds)

    async def _give_up(self) -> Ended | None:
        return None if self._why is Stop.ABANDON else await self._end_writer.release()

    async def _died(self, how: str) -> Ended | None:
        log.error("run_process_died", **self._names(), error=how)
        runs = self._tools.backend.runs
        if self._why is Stop.ABANDON:
            return None
        if self._why is Stop.HANDOVER:
            return await patiently(lambda: runs.release(self.attempt, first_event=None))
        return await patiently(lambda: runs.bury(self.attempt, how))

    def _names(self) -> dict[str, object]:
        """Return the fields that identify the attempt in the log."""
        return {"thread_id": self.record.thread_id, "run_id": self.attempt.run_id, "fence": self.attempt.fence}


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the run's process was ended by {signal.Signals(-code).name}"
    return f"the run's process exited with code {code}"
