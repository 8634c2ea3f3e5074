"""The process host: registers, takes and executes runs, keeps them alive, recovers what others lost, drains."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import structlog

from . import metrics
from .app import App
from .backlog import Backlog
from .courier import Courier
from .errors import BackendUnavailableError, RunyardError, WorkerDeadError
from .eventwriter import EventWriter
from .exchange import Attempt, Retention, Standing, WorkerInfo
from .executor import UNWIND, Stop, Tools
from .intake import KINDS, Dispatch, Intake, execute
from .isolation import Isolation
from .liveness import Connect, LivenessThread, Pulse, keep_alive
from .patience import jittered
from .ports import Backend, Sender
from .reconciler import Reconciler
from .slots import Slots
from .webhooks.dispatcher import Dispatcher
from .webhooks.models import WebhookPolicy

INSPECT: Final = 2.0
"""Seconds between two comparisons of this worker's rows in the store with its tasks."""
ANNOUNCE: Final = 2.0
"""Seconds that a worker which is leaving waits for a server, each time that it has to."""
HANDOVER: Final = UNWIND + 5.0
"""Seconds after the grace time within which runs are released."""
LEAVE: Final = HANDOVER + 5 * ANNOUNCE
"""Seconds after the grace time within which :meth:`Worker.run` ends, whatever becomes of the servers."""
TURN: Final = 0.5
"""Seconds between two signs of life of the main loop."""

log = structlog.get_logger("runyard.worker")


def new_worker_id() -> str:
    """``host-pid-random``; an id is never used again."""
    host = socket.gethostname().replace("|", "-")[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Serves the agents of ``app`` from ``backend``.

    ``queues``: those to serve, by default the app's. ``slots``: runs at once. ``grace``: seconds that a stopping worker lets
    its runs finish; the rest are released at their last commit. ``connect`` makes the small second backend of the liveness
    thread; without it heartbeats come from the main loop. ``watchdog``: seconds that user code may block the main loop before
    its runs are given up. ``address``: where its own port answers, for the register. ``retention``: how long to keep what this
    worker prunes when it leads. ``isolation``: where to execute what must run alone;
    without it, here. ``sender``: what tells webhooks when this worker leads, as ``webhooks`` says; without it, others do.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        queues: Sequence[str] | None = None,
        slots: int = 1000,
        grace: float = 20.0,
        watchdog: float = 30.0,
        connect: Connect | None = None,
        address: str | None = None,
        dispatch: Dispatch = execute,
        kinds: Container[str] = KINDS,
        retention: Retention | None = None,
        isolation: Isolation | None = None,
        sender: Sender | None = None,
        webhooks: WebhookPolicy | None = None,
    ) -> None:
        self.app = app
        self.backend = backend
        self.queues = list(queues or app.queues)
        self.grace = grace
        self.slots = Slots(slots)
        self.writer = EventWriter(backend.events)
        self.courier = Courier(backend.scheduler, self.writer)
        self.started = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._address = address
        self._liveness_thread: LivenessThread | None = None
        self._isolation = isolation
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._births: set[asyncio.Task[None]] = set()
        self._suspects: set[Attempt] = set()
        self._pulse = Pulse(
            self.slots.held,
            on_dead=lambda worker_id: self.loop.call_soon_threadsafe(self._on_dead, worker_id),
            on_standing=lambda standing: self.loop.call_soon_threadsafe(self._on_standing, standing),
            watchdog=watchdog,
        )
        tools = Tools.of(app, backend, self.writer)
        self.intake = Intake(
            tools,
            self.slots,
            self.courier,
            self.queues,
            on_dead=self._on_dead,
            dispatch=dispatch,
            kinds=kinds,
            isolation=isolation,
        )
        self.reconciler = Reconciler(backend, lambda: self.worker_id, self.courier.carry_out, retention or Retention())
        self.backlog = Backlog(backend.queues, lambda: self.reconciler.leading)
        self._loops: list[Callable[[], Awaitable[None]]] = [self.reconciler.run, self.backlog.run]
        if sender is not None:
            dispatcher = Dispatcher(backend, sender, lambda: self.reconciler.leading, webhooks or WebhookPolicy())
            self._loops.append(dispatcher.run)
        metrics.serve(app.queue_of, self.queues)
        metrics.SILENCE.set_function(lambda: self._pulse.silence)

    @property
    def worker_id(self) -> str:
        return self.intake.worker_id

    @property
    def alive(self) -> bool:
        """False if the thread that keeps the worker alive has ended. May be asked from any thread."""
        return self._liveness_thread is None or self._liveness_thread.alive

    def troubles(self) -> list[str]:
        """Why the worker does not take runs; empty if it does. May be asked from any thread."""
        return ["the worker is draining"] if self.intake.stopping else self._pulse.troubles()

    def drain(self) -> None:
        """Take nothing more, let runs finish however long they take, then end."""
        self.intake.stop()

    def stop(self) -> None:
        """Take nothing more, let runs finish for the grace time, release the rest. A second call ends the grace time."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        self.intake.stop()

    async def run(self) -> None:
        """Serve until :meth:`stop`, or until it has drained. Raises what ended its intake or its event writer before that."""
        writing = asyncio.create_task(self.writer.run(), name="EventWriter.run")
        writing.add_done_callback(self._on_written)
        metrics.SLOTS.inc(self.slots.size)
        try:
            await self._register()
            async with self._liveness(), self._background():
                taking = asyncio.create_task(self.intake.run(), name="Intake.run")
                self.started.set()
                log.info("worker started", worker_id=self.worker_id, queues=self.queues, agents=list(self.app.agents))
                try:
                    await _first(asyncio.wait((taking,)), self._stop.wait())
                    await asyncio.gather(_announce("drain", self.backend.workers.drain(self.worker_id)), self._drain(taking))
                    for task in (taking, writing):
                        if task.done():
                            task.result()
                finally:
                    await _cancelled(taking)
            await _announce("leave", self._leave())
        finally:
            if self._isolation is not None:
                await self._isolation.close()
            metrics.SLOTS.dec(self.slots.size)
            self.writer.close()
            await asyncio.wait((writing,), timeout=ANNOUNCE)
            writing.cancel()
        log.info("worker stopped", worker_id=self.worker_id)

    async def _register(self) -> None:
        info = WorkerInfo(
            worker_id=new_worker_id(),
            queues=self.queues,
            agents=self.app.queue_of,
            asking=[spec.name for spec in self.app.agents.values() if spec.hitl],
            app_version=self.app.version,
            on_version_mismatch=self.app.on_version_mismatch,
            slots=self.slots.size,
            address=self._address,
        )
        while not self._stop.is_set():
            try:
                await self.backend.workers.register(info)
            except BackendUnavailableError as error:
                log.warning("cannot register", error=str(error))
                await asyncio.sleep(jittered(0.5))
            except WorkerDeadError:
                # An answer that was lost had registered it, and nobody beat for it.
                info = replace(info, worker_id=new_worker_id())
            else:
                self._pulse.worker_id = info.worker_id
                self.intake.open(info.worker_id)
                return

    def _on_dead(self, worker_id: str) -> None:
        """This worker was declared dead: others have its runs. Stop them without a write and start afresh under another id."""
        if worker_id != self.worker_id or self._births:
            return
        log.error("declared dead; starting afresh", worker_id=worker_id, runs=len(self.slots))
        self._pulse.worker_id = None
        self.intake.close()
        for execution in self.slots.executions():
            execution.stop(Stop.ABANDON)
        birth = asyncio.create_task(self._register())
        self._births.add(birth)
        birth.add_done_callback(self._births.discard)

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        """Nobody hears of this worker's runs any more. Let others have them."""
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.error("the event writer ended", worker_id=self.worker_id, exc_info=error)
            if not self._stop.is_set():  # a second call would end the grace time
                self.stop()

    def _on_standing(self, standing: Standing) -> None:
        """What was asked of this worker changed."""
        self.intake.pause(standing.paused)
        if standing.draining and not self.intake.stopping:
            log.info("asked to drain", worker_id=self.worker_id, runs=len(self.slots))
            self.drain()

    @asynccontextmanager
    async def _liveness(self) -> AsyncIterator[None]:
        if self._connect is not None:
            self._liveness_thread = LivenessThread(self._connect, self._pulse)
            self._liveness_thread.start()
            try:
                yield
            finally:
                await self._liveness_thread.stop(ANNOUNCE)
        else:
            task = asyncio.create_task(keep_alive(self.backend, self._pulse))
            try:
                yield
            finally:
                await _cancelled(task)

    @asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        loops = (self._turn, self._inspect, self._hear_cancels, self._hear_accepts, *self._loops)
        tasks = [asyncio.create_task(_for_ever(loop), name=_name(loop)) for loop in loops]
        try:
            yield
        finally:
            await _cancelled(*tasks)

    async def _turn(self) -> None:
        while True:
            self._pulse.turn()
            await asyncio.sleep(TURN)

    async def _hear_cancels(self) -> None:
        async for ref in self.backend.scheduler.cancel_hints():
            if (execution := self.slots.execution(ref)) is not None:
                execution.stop(Stop.CANCEL)

    async def _hear_accepts(self) -> None:
        """Admit what hosts accepted in transactions of their own, when they commit."""
        async for effects in self.backend.notifications():
            self.courier.carry_out(effects)
            self.courier.carry_out((await self.backend.runs.admit()).effects)

    async def _inspect(self) -> None:
        """Find runs that are this worker's in the store but have no task here, and cancels whose hint was lost."""
        while True:
            await asyncio.sleep(INSPECT)
            worker_id = self.worker_id
            suspects = {attempt for attempt in await self.backend.workers.running(worker_id) if self._vanished(attempt)}
            for attempt in suspects & self._suspects:
                await self._release_lost(attempt)
            self._suspects = suspects - self._suspects
            for ref in await self.backend.workers.cancelling(worker_id):
                if (execution := self.slots.execution(ref)) is not None:
                    execution.stop(Stop.CANCEL)

    def _vanished(self, attempt: Attempt) -> bool:
        execution = self.slots.execution(attempt.ref)
        if attempt.ref in self.intake.claiming:
            return False
        return execution is None or execution.attempt.fence != attempt.fence

    async def _release_lost(self, attempt: Attempt) -> None:
        log.error("a run has no task", run_id=attempt.run_id, fence=attempt.fence)
        metrics.LOST_TASKS.inc()
        try:
            ended = await self.backend.runs.release(attempt, first_event=None)
        except BackendUnavailableError:
            raise
        except RunyardError as error:
            log.info("it is somebody else's by now", run_id=attempt.run_id, error=str(error))
        else:
            self.courier.carry_out(ended.effects)

    async def _drain(self, taking: asyncio.Task[None]) -> None:
        """Let runs finish, then release them. ``taking`` ends at a stop, but for a claim that a server still holds on to."""
        await _first(self._finished(taking), self._stop.wait())
        await _first(self._finished(taking), asyncio.sleep(self.grace), self._hurry.wait())
        for execution in self.slots.executions():
            execution.stop(Stop.HANDOVER)
        await _first(self._finished(taking), asyncio.sleep(HANDOVER))
        if len(self.slots):
            log.error("runs are left behind", runs=len(self.slots))

    async def _finished(self, taking: asyncio.Task[None]) -> None:
        await asyncio.wait((taking,))
        await self.intake.finished()
        await self.courier.drained()

    async def _leave(self) -> None:
        if self._births:
            await asyncio.wait(self._births)
        self._pulse.worker_id = None
        await self.backend.workers.leave(self.worker_id)


async def _announce(what: str, call: Coroutine[Any, Any, object]) -> None:
    """Tell the store; one that does not answer, or refuses, does not keep a worker that is leaving."""
    task = asyncio.create_task(call, name=f"announce {what}")
    await asyncio.wait((task,), timeout=ANNOUNCE)
    error = task.exception() if task.done() else BackendUnavailableError(f"no answer within {ANNOUNCE:g} s")
    if error is not None:
        task.cancel()
        expected = isinstance(error, BackendUnavailableError | WorkerDeadError)
        log.warning("unannounced", what=what, error=str(error), exc_info=None if expected else error)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel ``tasks`` and wait for them, but not for the server that one of them may go on waiting for."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=ANNOUNCE)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of ``waits`` has; the others are given up."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _for_ever(loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop of the worker again whenever it fails: a worker outlives the servers that it needs."""
    tries = 0
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await loop()
        except BackendUnavailableError as error:
            log.warning("a loop starts again", loop=_name(loop), error=str(error))
        except Exception:
            log.exception("a loop starts again", loop=_name(loop))
        tries = tries + 1 if asyncio.get_running_loop().time() - began < 10 else 0
        await asyncio.sleep(jittered(min(0.1 * 2 ** min(tries, 5), 2.0)))


def _name(loop: Callable[[], Awaitable[None]]) -> str:
    return getattr(loop, "__qualname__", "").replace("._", ".")
