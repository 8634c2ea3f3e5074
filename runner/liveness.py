"""Keeping a worker's claims alive from a thread of its own, so that user code that blocks the main loop does not lose its
runs; and hearing what is asked of the worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from . import metrics
from .errors import BackendUnavailableError, WorkerDeadError
from .exchange import Delivery, Standing
from .ports import Backend

EVERY: Final = 1.0
"""Seconds between two heartbeats, and between two renewals of all locks."""

CUT_OFF: Final = 5.0
"""Seconds without a heartbeat after which locks are left to run out: a run that was taken over must not stay locked."""

LATELY: Final = 5.0
"""Seconds within which a server must have answered for the worker to be ready."""

log = structlog.get_logger("runyard.liveness")

Connect = Callable[[], Awaitable[Backend]]


class Pulse:
    """What the main loop and the liveness tell each other: who the worker is, what it holds, that it still turns; that the
    servers answer, and what they said.

    ``watchdog``: seconds of silence of the main loop after which nothing is kept alive any more, as if the process had stopped.
    """

    def __init__(
        self,
        held: Callable[[str], Sequence[Delivery]],
        *,
        on_dead: Callable[[str], object],
        on_standing: Callable[[Standing], object],
        watchdog: float = 30.0,
    ) -> None:
        self.worker_id: str | None = None
        self.held = held
        self.on_dead = on_dead
        self.on_standing = on_standing
        self.watchdog = watchdog
        self.standing = Standing()
        self._turned = self.beaten = time.monotonic()
        self._redis_answered = float("-inf")
        self._missing: set[Delivery] = set()
        self._unlocked: set[Delivery] = set()

    def turn(self) -> None:
        """The main loop turns."""
        self._turned = time.monotonic()

    def beat(self, standing: Standing) -> None:
        """Postgres took the heartbeat and said how the worker stands."""
        self.beaten = time.monotonic()
        if standing != self.standing:
            self.standing = standing
            self.on_standing(standing)

    def renewed(self, lost: Sequence[Delivery] = ()) -> None:
        """Redis answered. A lock that two renewals in a row found lost was: one that is being given back is gone only once."""
        self._redis_answered = time.monotonic()
        missing = set(lost)
        unlocked = missing & self._missing
        metrics.LOCK_LOSSES.inc(len(unlocked - self._unlocked))
        self._missing, self._unlocked = missing, unlocked

    @property
    def silence(self) -> float:
        """Seconds since the main loop last turned."""
        return time.monotonic() - self._turned

    @property
    def silent(self) -> bool:
        return self.silence > self.watchdog

    def troubles(self) -> list[str]:
        """Why the worker cannot do its work at present; empty if it can."""
        if self.worker_id is None:
            return ["the worker is not registered"]
        if self.silent:
            return [f"the main loop has been blocked for {self.silence:.0f} s"]
        now = time.monotonic()
        answered = {"Postgres": self.beaten, "Redis": self._redis_answered}
        found = [f"{server} has not answered lately" for server, moment in answered.items() if now - moment > LATELY]
        if not self.standing.fits:
            found.append("the schema admits only newer code than this")
        return found

    @property
    def cut_off(self) -> bool:
        """True if no heartbeat arrived for so long that the worker may have been declared dead without hearing of it."""
        return time.monotonic() - self.beaten > CUT_OFF


async def keep_alive(backend: Backend, pulse: Pulse) -> None:
    """Beat and renew until cancelled. Postgres and Redis do not wait for each other."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_every(pulse, lambda worker_id: _beat(backend, pulse, worker_id)))
        group.create_task(_every(pulse, lambda worker_id: _renew(backend, pulse, worker_id)))


async def _every(pulse: Pulse, act: Callable[[str], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        if pulse.worker_id is not None and not pulse.silent:
            try:
                await act(pulse.worker_id)
            except BackendUnavailableError as error:
                log.warning("the worker cannot be kept alive", error=str(error))
            except Exception:
                log.exception("the worker cannot be kept alive")
        due = max(due + EVERY, loop.time() + EVERY / 10)
        await asyncio.sleep(due - loop.time())


async def _beat(backend: Backend, pulse: Pulse, worker_id: str) -> None:
    try:
        pulse.beat(await backend.workers.beat(worker_id))
    except WorkerDeadError:
        if pulse.worker_id == worker_id:
            pulse.worker_id = None
            pulse.on_dead(worker_id)


async def _renew(backend: Backend, pulse: Pulse, worker_id: str) -> None:
    held = [] if pulse.cut_off else pulse.held(worker_id)
    if held:
        pulse.renewed(await backend.scheduler.renew(worker_id, held))
    else:
        await backend.scheduler.ping()
        pulse.renewed()


class LivenessThread:
    """:func:`keep_alive` in a thread with its own event loop and its own small backend, made by ``connect``."""

    def __init__(self, connect: Connect, pulse: Pulse) -> None:
        self._connect = connect
        self._pulse = pulse
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._ended = asyncio.Event()
        self._owner = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._main, name="runyard-liveness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def stop(self, timeout: float) -> None:
        """End the thread and close its connections. One that its servers keep for ``timeout`` seconds is left to itself."""
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
        except BaseException:
            log.exception("liveness ended; this worker will be declared dead")
        finally:
            with suppress(RuntimeError):  # nobody waited, and the owner's loop is closed
                self._owner.call_soon_threadsafe(self._ended.set)

    async def _run(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        while not self._stopping:
            try:
                backend = await self._connect()
            except BackendUnavailableError as error:
                log.warning("liveness cannot connect", error=str(error))
                await asyncio.sleep(EVERY)
                continue
            try:
                await keep_alive(backend, self._pulse)
            finally:
                await backend.close()
