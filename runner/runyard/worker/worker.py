"""Worker: the process that executes runs.

A worker registers, sends heartbeats, claims and executes runs, reconciles, and drains. ``runyard_api/worker/process.py`` stops
a worker at a signal. ``ports/worker_defaults.py`` has the defaults of its settings.
"""

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

from ..agents.budgets import budgets_of
from ..app import App, check_app
from ..domain.webhooks import WebhookPolicy
from ..errors import BackendUnavailableError, WorkerDeadError
from ..events.writer import EventWriter
from ..execution.executor import CLEANUP_SECONDS, WorkerServices
from ..ports.stores import Backend, WebhookSender
from ..ports.worker_defaults import DEFAULT_GRACE_SECONDS, DEFAULT_SLOTS, DEFAULT_WATCHDOG_SECONDS
from ..ports.workers import HeartbeatReply, Retention, WorkerInfo
from ..support import metrics
from ..support.failure_log import FailureLog
from ..support.store_retries import jittered
from ..worker.effects_sender import EffectsSender
from .cancels import follow_cancel_hints, stop_cancelled
from .claim_loop import KINDS, ClaimLoop, Dispatch, execute
from .failure_detector import FailureDetector
from .heartbeat import Connect, HeartbeatState, HeartbeatThread, alive_with
from .heartbeat_process import HeartbeatProcess
from .isolation import Isolation
from .leader_metrics import LeaderMetrics
from .lost_tasks import LostTaskDetector
from .reconciler import Reconciler
from .slots import Slots
from .webhook_dispatcher import WebhookDispatcher

INSPECT_SECONDS: Final = 2.0
"""Seconds between two checks whether each run that this worker executes according to the store has a task."""
ANNOUNCE_TIMEOUT_SECONDS: Final = 2.0
"""Maximum seconds for which a worker waits for the answer of a server while the worker shuts down."""
HANDOVER_SECONDS: Final = CLEANUP_SECONDS + 5.0
"""Maximum seconds for the release of the unfinished runs after the grace time."""
LEAVE_SECONDS: Final = HANDOVER_SECONDS + 5 * ANNOUNCE_TIMEOUT_SECONDS
"""Maximum seconds after the grace time until :meth:`Worker.run` ends, even if servers do not answer."""
TURN_SECONDS: Final = 0.5
"""At this interval, in seconds, the main loop records that it is not blocked. The heartbeat thread reads these records."""

log = structlog.get_logger("runyard.worker")


def new_worker_id() -> str:
    """Return a new id: ``host-pid-random``. The id is never used again."""
    host = socket.gethostname().replace("|", "-")[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Serves the agents of ``app`` from ``backend``.

    ``queues``: the queues to serve, by default the app's queues. ``slots``: maximum number of runs at the same time. ``grace``:
    seconds for which a stopping worker lets its runs continue. Then the worker releases the unfinished runs. A later attempt
    continues after the last commit of its run. ``connect``: a function that makes a second, small backend for the heartbeat
    thread. Without ``connect``, the main loop sends and watches the heartbeats. ``watchdog``: seconds for which user code may
    block the main loop. After this time the worker sends no heartbeats and loses its runs. ``heartbeat_process``: the process
    that sends the heartbeats while native code holds the interpreter. ``heartbeat_process`` needs ``connect``. ``address``: the
    ``host:port`` of the worker's health server. The worker registers this address. ``retention``: the retention of the data
    that the leader prunes. ``isolation``: the object that executes a run in a separate process if the run needs one. Without
    ``isolation``, this process executes such a run. ``sender``: the object that sends webhooks while this worker leads. Without
    ``sender``, this worker sends no webhooks. ``webhooks``: the settings of webhooks. ``loops``: further coroutine functions
    that run until the worker has drained. If a coroutine fails, the worker starts it again.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        queues: Sequence[str] | None = None,
        slots: int = DEFAULT_SLOTS,
        grace: float = DEFAULT_GRACE_SECONDS,
        watchdog: float = DEFAULT_WATCHDOG_SECONDS,
        connect: Connect | None = None,
        heartbeat_process: HeartbeatProcess | None = None,
        address: str | None = None,
        dispatch: Dispatch = execute,
        kinds: Container[str] = KINDS,
        retention: Retention | None = None,
        isolation: Isolation | None = None,
        sender: WebhookSender | None = None,
        webhooks: WebhookPolicy | None = None,
        loops: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self.app = check_app(app)
        self.backend = backend
        self.queues = list(queues or app.queues)
        self.grace = grace
        self.slots = Slots(slots)
        self.writer = EventWriter(backend.events)
        self.effects_sender = EffectsSender(backend.scheduler, backend.events, self.writer)
        self.started = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._heartbeat_process = heartbeat_process
        self._address = address
        self._heartbeat_thread: HeartbeatThread | None = None
        self._isolation = isolation
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._registrations: set[asyncio.Task[None]] = set()
        self._heartbeat_state = HeartbeatState(
            self.slots.held,
            on_dead=lambda worker_id: self.loop.call_soon_threadsafe(self._abandon_runs, worker_id),
            on_reply=lambda reply: self.loop.call_soon_threadsafe(self._on_reply, reply),
            watchdog=watchdog,
        )
        tools = WorkerServices.of(app, backend, self.writer, lambda ref: self.claim_loop.may_claim_next(ref))
        self.claim_loop = ClaimLoop(
            tools,
            self.slots,
            self.effects_sender,
            self.queues,
            on_dead=self._abandon_runs,
            dispatch=dispatch,
            kinds=kinds,
            isolation=isolation,
            late=lambda: self._heartbeat_state.late,
        )
        self._lost_tasks = LostTaskDetector(backend, self.slots, self.claim_loop, self.effects_sender)
        self.reconciler = Reconciler(
            backend, lambda: self.worker_id, self.effects_sender.carry_out, retention or Retention(), lambda: self.leading
        )
        self.failure_detector = FailureDetector(
            lambda: self._heartbeat_state.worker_id,
            lambda: self.loop.call_soon_threadsafe(self.reconciler.hurry),
            lambda: self._heartbeat_state.silence,
        )
        self.leader_metrics = LeaderMetrics(backend.queues, backend.workers, lambda: self.leading)
        self._loops: list[Callable[[], Awaitable[None]]] = [self.reconciler.run, self.leader_metrics.run, *loops]
        if sender is not None:
            dispatcher = WebhookDispatcher(backend, sender, lambda: self.leading, webhooks or WebhookPolicy())
            self._loops.append(dispatcher.run)
        metrics.serve(app.queue_of, self.queues)
        metrics.SILENCE.set_function(lambda: self._heartbeat_state.silence)
        metrics.LEADING.set_function(lambda: self.leading)

    @property
    def worker_id(self) -> str:
        return self.claim_loop.worker_id

    @property
    def leading(self) -> bool:
        """Whether this worker is the leader. Any thread may read this property."""
        return self.failure_detector.leading

    @property
    def alive(self) -> bool:
        """Whether the heartbeat thread runs. Any thread may read this property."""
        return self._heartbeat_thread is None or self._heartbeat_thread.alive

    def troubles(self) -> list[str]:
        """Return the reasons why the worker claims no runs. The list is empty if the worker claims runs. Any thread may call
        this method."""
        return ["the worker is draining"] if self.claim_loop.stopping else self._heartbeat_state.troubles()

    def drain(self) -> None:
        """Stop claiming. The worker ends when its last run has ended, without a time limit."""
        self.claim_loop.stop()

    def stop(self) -> None:
        """Stop claiming. Let the runs continue for the grace time, then release the unfinished runs, and end.

        A second call ends the grace time.
        """
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        self.claim_loop.stop()

    async def run(self) -> None:
        """Serve until :meth:`stop`, or until the worker has drained.

        Raises the error of the claim loop or of the event writer if one of them failed.
        """
        writing = asyncio.create_task(self.writer.run(), name="EventWriter.run")
        writing.add_done_callback(self._on_written)
        metrics.SLOTS.inc(self.slots.size)
        try:
            await self._register()
            async with self._heartbeat(), self._background():
                taking = asyncio.create_task(self.claim_loop.run(), name="ClaimLoop.run")
                self.started.set()
                log.info("worker_started", worker_id=self.worker_id, queues=self.queues, agents=list(self.app.agents))
                try:
                    await _first(asyncio.wait((taking,)), self._stop.wait())
                    draining = self.backend.workers.drain(self.worker_id)
                    await asyncio.gather(self._call_store("drain", draining), self._drain(taking))
                    for task in (taking, writing):
                        if task.done():
                            task.result()
                finally:
                    await _cancelled(taking)
            await self._call_store("leave", self._leave())
        finally:
            if self._isolation is not None:
                await self._isolation.close()
            metrics.SLOTS.dec(self.slots.size)
            self.writer.close()
            await asyncio.wait((writing,), timeout=ANNOUNCE_TIMEOUT_SECONDS)
            writing.cancel()
        log.info("worker_stopped", worker_id=self.worker_id)

    async def _register(self) -> None:
        info = WorkerInfo(
            worker_id=new_worker_id(),
            queues=self.queues,
            agents=self.app.queue_of,
            default_agent=self.app.default.name if self.app.default else None,
            asking=[spec.name for spec in self.app.agents.values() if spec.hitl],
            app_version=self.app.version,
            on_version_mismatch=self.app.on_version_mismatch,
            budgets={name: shown for name, spec in self.app.agents.items() if (shown := budgets_of(spec.function))},
            slots=self.slots.size,
            address=self._address,
        )
        failures = FailureLog(log, "worker_registration_failed")
        while not self._stop.is_set():
            try:
                await self.backend.workers.register(info)
            except BackendUnavailableError as error:
                failures.failed(error, worker_id=info.worker_id)
                await asyncio.sleep(jittered(0.5))
            except WorkerDeadError:
                # An earlier call registered this id, but its answer was lost. The leader then declared this id dead, because no
                # heartbeats were sent for it.
                info = replace(info, worker_id=new_worker_id())
            else:
                failures.worked(worker_id=info.worker_id)
                self._heartbeat_state.registered(info.worker_id)
                self.claim_loop.open(info.worker_id)
                return

    def _abandon_runs(self, worker_id: str) -> None:
        """Stop all runs without a write, and register under a new id.

        The leader has declared this worker dead. Other workers take over its runs.
        """
        if worker_id != self.worker_id or self._registrations:
            return
        log.error("this_worker_was_declared_dead", worker_id=worker_id, attempts_stopped=len(self.slots.executions()))
        self._heartbeat_state.worker_id = None
        self.claim_loop.close()
        registration = asyncio.create_task(self._register())
        self._registrations.add(registration)
        registration.add_done_callback(self._registrations.discard)

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        """Stop the worker if its event writer failed, because the worker's runs would have no events.

        Other workers execute the runs then.
        """
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.error("event_writer_failed", worker_id=self.worker_id, error=str(error), exc_info=error)
            if not self._stop.is_set():  # a second call would end the grace time
                self.stop()

    def _on_reply(self, reply: HeartbeatReply) -> None:
        """Apply the store's new reply to a heartbeat: pause queues, or drain."""
        self.claim_loop.pause(reply.paused)
        if reply.draining and not self.claim_loop.stopping:
            log.info("drain_requested", worker_id=self.worker_id, occupied_slots=len(self.slots))
            self.drain()

    @asynccontextmanager
    async def _heartbeat(self) -> AsyncIterator[None]:
        if self._connect is not None:
            given = self._connect, self._heartbeat_state, self.failure_detector.run, self._heartbeat_process
            self._heartbeat_thread = HeartbeatThread(*given, self.app.traceback_filter)
            self._heartbeat_thread.start()
            try:
                yield
            finally:
                await self._heartbeat_thread.stop(ANNOUNCE_TIMEOUT_SECONDS)
        else:
            task = asyncio.create_task(alive_with(self.backend, self._heartbeat_state, self.failure_detector.run))
            try:
                yield
            finally:
                await _cancelled(task)

    @asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        loops = (self._turn, self._inspect, self._follow_cancel_hints, self._follow_notifications, *self._loops)
        tasks = [asyncio.create_task(_for_ever(loop, lambda: self.worker_id), name=_name(loop)) for loop in loops]
        try:
            yield
        finally:
            await _cancelled(*tasks)

    async def _turn(self) -> None:
        while True:
            self._heartbeat_state.turn()
            if self._heartbeat_state.late:
                self.claim_loop.end_wait()
            await asyncio.sleep(TURN_SECONDS)

    async def _follow_cancel_hints(self) -> None:
        await follow_cancel_hints(self.backend.scheduler, self.slots.execution)

    async def _follow_notifications(self) -> None:
        """Admit the runs that a host program has accepted in its transaction, when this transaction has committed."""
        async for effects in self.backend.notifications():
            self.effects_sender.carry_out(effects)
            self.effects_sender.carry_out((await self.backend.runs.admit()).effects)

    async def _inspect(self) -> None:
        """Find runs of this worker that have no task. Also find cancels whose hints were lost."""
        while True:
            await asyncio.sleep(INSPECT_SECONDS)
            worker_id = self.worker_id
            await self._lost_tasks.check(worker_id)
            await stop_cancelled(self.backend.workers, worker_id, self.slots.execution)

    async def _drain(self, taking: asyncio.Task[None]) -> None:
        """Wait until all runs have ended. After :meth:`stop`, wait only for the grace time, then release the unfinished runs.

        ``taking``: the task of the claim loop. After a drain or a stop, this task ends when its last claim has returned.
        """
        await _first(self._finished(taking), self._stop.wait())
        await _first(self._finished(taking), asyncio.sleep(self.grace), self._hurry.wait())
        self.claim_loop.hand_over()
        await _first(self._finished(taking), asyncio.sleep(HANDOVER_SECONDS))
        if len(self.slots):
            log.error("runs_abandoned", worker_id=self.worker_id, occupied_slots=len(self.slots))

    async def _finished(self, taking: asyncio.Task[None]) -> None:
        await asyncio.wait((taking,))
        await self.claim_loop.finished()
        await self.effects_sender.drained()

    async def _leave(self) -> None:
        if self._registrations:
            await asyncio.wait(self._registrations)
        self._heartbeat_state.worker_id = None
        await self.backend.workers.leave(self.worker_id)

    async def _call_store(self, verb: str, call: Coroutine[Any, Any, object]) -> None:
        """Make a call to the store while the worker shuts down. If the call fails or gets no answer, the shutdown continues."""
        task = asyncio.create_task(call, name=f"worker {verb}")
        await asyncio.wait((task,), timeout=ANNOUNCE_TIMEOUT_SECONDS)
        error = task.exception() if task.done() else BackendUnavailableError(f"no answer within {ANNOUNCE_TIMEOUT_SECONDS:g} s")
        if error is not None:
            task.cancel()
            trace = None if isinstance(error, BackendUnavailableError | WorkerDeadError) else error
            log.warning("shutdown_call_failed", worker_id=self.worker_id, store_verb=verb, error=str(error), exc_info=trace)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel ``tasks``, and wait until they end. A task may wait for a server, so wait at most ANNOUNCE_TIMEOUT_SECONDS."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=ANNOUNCE_TIMEOUT_SECONDS)


async def _first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of ``waits`` has returned. Cancel the other waits."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _for_ever(loop: Callable[[], Awaitable[None]], worker_id: Callable[[], str]) -> None:
    """Run a loop of the worker. Start the loop again after each failure, so that it continues when a server is back."""
    tries = 0
    failures = FailureLog(log, "worker_loop_failed")
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await loop()
        except Exception as error:
            failures.failed(error, worker_id=worker_id(), loop=_name(loop))
        tries = tries + 1 if asyncio.get_running_loop().time() - began < 10 else 0
        await asyncio.sleep(jittered(min(0.1 * 2 ** min(tries, 5), 2.0)))


def _name(loop: Callable[[], Awaitable[None]]) -> str:
    return getattr(loop, "__qualname__", "").replace("._", ".")
