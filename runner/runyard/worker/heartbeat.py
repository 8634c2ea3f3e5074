"""The heartbeat of a worker and the renewal of its locks.

Both run in a separate thread. The worker therefore keeps its runs even while the main loop is blocked by user code. While
native code holds the interpreter, :mod:`runyard.worker.heartbeat_process` sends the heartbeats. The reply to a heartbeat says
whether an operator has requested a drain, and which queues are paused.

If a worker was declared dead, ``Worker._abandon_runs`` (worker/worker.py) stops all its runs. If another attempt has claimed a
run, the store refuses the next write of the earlier attempt. ``Execution._stop_after_refusal`` (execution/executor.py) then
stops the agent of the earlier attempt. The loss of a lane's lock is counted, but stops no run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from ..errors import BackendUnavailableError, WorkerDeadError
from ..ports.scheduling import Delivery
from ..ports.stores import Backend
from ..ports.workers import HeartbeatReply
from ..support import metrics
from ..support.failure_log import FailureLog
from ..support.tracebacks import TracebackFilter
from .blocked_loop import BlockedLoopWatch
from .heartbeat_process import HeartbeatProcess
from .redis_outage import RedisOutageReport

HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between two heartbeats, and between two renewals of all lane locks."""

CUT_OFF_SECONDS: Final = 3.0
"""Seconds without an accepted heartbeat, after which the worker may have been declared dead.

The worker then renews no locks, because other workers may have taken over its runs.
"""

LATE_SECONDS: Final = 2.0
"""Seconds without an accepted heartbeat, after which the worker takes no jobs.

The worker stops waiting for jobs before the leader can declare it dead and submit its runs. If the worker took the jobs of
these runs itself, the runs would wait until the worker's own locks expire.
"""

READY_WITHIN_SECONDS: Final = 5.0
"""Seconds without a successful write to a server, after which the worker is not ready."""

log = structlog.get_logger("runyard.heartbeat")

Connect = Callable[[], Awaitable[Backend]]
Beside = Callable[[Backend], Awaitable[None]]
"""A loop that runs in the heartbeat thread with the thread's backend, until it is cancelled. The loop raises no error."""


class HeartbeatState:
    """The state that the main loop and the heartbeat thread share.

    The main loop writes the worker's id and deliveries, and records that it is not blocked. The heartbeat records the answers
    of the servers.

    ``held``: a function that returns the deliveries whose locks a worker id holds. ``on_dead``: a function that the heartbeat
    thread calls when the worker was declared dead. ``on_reply``: a function that the heartbeat thread calls when the reply has
    changed. ``watchdog``: seconds for which the main loop may be blocked. After this time the worker sends no heartbeats and
    renewals. The leader then declares the worker dead.
    """

    def __init__(
        self,
        held: Callable[[str], Sequence[Delivery]],
        *,
        on_dead: Callable[[str], object],
        on_reply: Callable[[HeartbeatReply], object],
        watchdog: float = 30.0,
    ) -> None:
        self.worker_id: str | None = None
        self.held = held
        self.on_dead = on_dead
        self.on_reply = on_reply
        self.watchdog = watchdog
        self.reply = HeartbeatReply()
        self._turned = self.beaten = time.monotonic()
        self._redis_answered = float("-inf")
        self._refusals: dict[str, str] = {}
        self._missing: set[Delivery] = set()
        self._unlocked: set[Delivery] = set()

    def registered(self, worker_id: str) -> None:
        """Record that the store knows the worker as ``worker_id``. A registration is a heartbeat."""
        self.beaten = time.monotonic()
        self.worker_id = worker_id

    def turn(self) -> None:
        """Record that the main loop is not blocked."""
        self._turned = time.monotonic()

    def beat(self, reply: HeartbeatReply) -> None:
        """Record a heartbeat that Postgres accepted, with its reply."""
        self.beaten = time.monotonic()
        self._refusals.pop("Postgres", None)
        if reply != self.reply:
            self.reply = reply
            self.on_reply(reply)

    def renewed(self, lost: Sequence[Delivery] = ()) -> None:
        """Record that Redis accepts writes.

        ``lost``: the deliveries whose lane locks were not renewed. A lock counts as lost after two failed renewals in
        succession. A single renewal may fail because the lock is being released.
        """
        self._redis_answered = time.monotonic()
        self._refusals.pop("Redis", None)
        missing = set(lost)
        unlocked = missing & self._missing
        metrics.LOCK_LOSSES.inc(len(unlocked - self._unlocked))
        self._missing, self._unlocked = missing, unlocked

    def refused(self, server: str, reason: str) -> None:
        """Record that a call to ``server`` failed."""
        self._refusals[server] = reason

    def refusal(self, server: str) -> str | None:
        """Return the error of the last call to ``server``, or None if this call succeeded."""
        return self._refusals.get(server)

    @property
    def turned(self) -> float:
        """The time at which the main loop last ran, in seconds of the monotonic clock."""
        return self._turned

    @property
    def silence(self) -> float:
        """Seconds since the main loop last ran."""
        return time.monotonic() - self._turned

    @property
    def silent(self) -> bool:
        return self.silence > self.watchdog

    def troubles(self) -> list[str]:
        """Return the reasons why the worker is not ready. The list is empty if the worker is ready."""
        if self.worker_id is None:
            return ["the worker is not registered"]
        if self.silent:
            return [f"the main loop has been blocked for {self.silence:.0f} s"]
        now = time.monotonic()
        answered = {"Postgres": self.beaten, "Redis": self._redis_answered}
        found = []
        for server, moment in answered.items():
            if now - moment > READY_WITHIN_SECONDS:
                reason = self._refusals.get(server)
                found.append(
                    f"{server} has taken no writes lately: {reason}" if reason else f"{server} has not answered lately"
                )
        if not self.reply.fits:
            found.append("the database schema requires newer code than this worker has")
        return found

    @property
    def late(self) -> bool:
        """Whether the last accepted heartbeat is so old that the worker must take no jobs."""
        return time.monotonic() - self.beaten > LATE_SECONDS

    @property
    def cut_off(self) -> bool:
        """Whether the last accepted heartbeat is so old that the worker may have been declared dead."""
        return time.monotonic() - self.beaten > CUT_OFF_SECONDS


async def keep_alive(backend: Backend, heartbeat_state: HeartbeatState) -> None:
    """Send heartbeats and renew locks until cancelled.

    A slow call to Postgres does not delay calls to Redis, and a slow call to Redis does not delay calls to Postgres.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(_every(heartbeat_state, partial(_beat, backend, heartbeat_state), "Postgres", "heartbeat_failed"))
        group.create_task(_every(heartbeat_state, partial(_renew, backend, heartbeat_state), "Redis", "lock_renewal_failed"))


async def alive_with(backend: Backend, heartbeat_state: HeartbeatState, *beside: Beside) -> None:
    """Run :func:`keep_alive`, the report of outages of Redis, and ``beside`` until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(keep_alive(backend, heartbeat_state))
        for loop in (RedisOutageReport(heartbeat_state).run, *beside):
            group.create_task(_awaited(loop(backend)))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


async def _every(heartbeat_state: HeartbeatState, act: Callable[[str], Awaitable[None]], server: str, failed: str) -> None:
    """Call ``act`` every HEARTBEAT_SECONDS. ``server``: the server that ``act`` calls.

    ``failed``: the log event of an error.
    """
    loop = asyncio.get_running_loop()
    failures = FailureLog(log, failed)
    due = loop.time()
    while True:
        worker_id = heartbeat_state.worker_id
        if worker_id is not None and not heartbeat_state.silent:
            try:
                await act(worker_id)
            except Exception as error:
                heartbeat_state.refused(server, str(error))
                failures.failed(error, worker_id=worker_id)
            else:
                failures.worked(worker_id=worker_id)
        due = max(due + HEARTBEAT_SECONDS, loop.time() + HEARTBEAT_SECONDS / 10)
        await asyncio.sleep(due - loop.time())


async def _beat(backend: Backend, heartbeat_state: HeartbeatState, worker_id: str) -> None:
    try:
        heartbeat_state.beat(await backend.workers.beat(worker_id))
    except WorkerDeadError:
        if heartbeat_state.worker_id == worker_id:
            heartbeat_state.worker_id = None
            heartbeat_state.on_dead(worker_id)


async def _renew(backend: Backend, heartbeat_state: HeartbeatState, worker_id: str) -> None:
    held = [] if heartbeat_state.cut_off else heartbeat_state.held(worker_id)
    lost = await backend.scheduler.renew(worker_id, held) if held else ()
    await backend.scheduler.ping()  # a Redis without free memory renews locks but accepts no jobs
    heartbeat_state.renewed(lost)


class HeartbeatThread:
    """Runs :func:`keep_alive` in a thread with its own event loop.

    ``connect``: a function that makes the thread's backend. ``beside``: a loop that runs in the same event loop. ``process``:
    the process that sends the heartbeats while this thread cannot run. The process ends with the thread. ``keep``: the filter
    of the stack of a blocked main loop.
    """

    def __init__(
        self,
        connect: Connect,
        heartbeat_state: HeartbeatState,
        beside: Beside,
        process: HeartbeatProcess | None = None,
        keep: TracebackFilter | None = None,
    ) -> None:
        self._blocked = BlockedLoopWatch(heartbeat_state, threading.get_ident(), keep)
        self._connect = connect
        self._state = heartbeat_state
        self._beside = beside
        self._process = process
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._failures = FailureLog(log, "heartbeat_connection_failed")
        self._ended = asyncio.Event()
        self._owner = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name="runyard-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def stop(self, timeout: float) -> None:
        """End the thread, and close its connections. Wait for the thread's end, at most ``timeout`` seconds."""
        self._stopping = True
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._ended.wait()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # the leader will declare the worker dead
            log.exception("heartbeat_thread_failed", worker_id=self._state.worker_id, error=str(error))
        finally:
            with suppress(RuntimeError):  # the owner's loop may be closed already
                self._owner.call_soon_threadsafe(self._ended.set)

    async def _run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        signs = asyncio.create_task(self._process.run(self._state)) if self._process is not None else None
        try:
            await self._keep_alive()
        finally:
            if signs is not None:
                signs.cancel()
                await asyncio.wait((signs,))

    async def _keep_alive(self) -> None:
        while not self._stopping:
            try:
                backend = await self._connect()
            except BackendUnavailableError as error:
                self._failures.failed(error, worker_id=self._state.worker_id)
                await asyncio.sleep(HEARTBEAT_SECONDS)
                continue
            self._failures.worked(worker_id=self._state.worker_id)
            try:
                await alive_with(backend, self._state, self._beside, self._blocked.run)
            finally:
                await backend.close()
