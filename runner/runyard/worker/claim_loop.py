"""The claim loop takes deliveries from the scheduler, claims their runs in the store, and starts the claimed runs.

If a run was not claimed, ``_settle`` decides whether and when its job is submitted again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from ..app import App
from ..domain.agent_names import namespace_of
from ..errors import BackendUnavailableError, LockedError, RunyardError, WorkerDeadError
from ..execution.executor import Execution, Stop, WorkerServices
from ..execution.retries import UNSERVED_RETRY_SECONDS
from ..execution.run_meter import waited
from ..ports.refs import RunRef
from ..ports.results import Claim, Ended
from ..ports.scheduling import Delivery, Effects, Job, requirement
from ..support import metrics
from ..support.batching import each_its_own
from ..support.failure_log import FailureLog
from ..support.store_retries import jittered
from ..support.tracebacks import logged_traceback
from ..worker.effects_sender import EffectsSender
from .isolation import Isolation
from .slots import Slot, Slots

if TYPE_CHECKING:
    from opentelemetry.trace import Span

CLAIM_BATCH: Final = 100
"""Maximum number of deliveries in one call of the scheduler and in one claim."""
LATE_POLL_SECONDS: Final = 0.1
"""Seconds between two checks of the last heartbeat's age, while the last heartbeat is too old."""
QUEUE_POLL_SECONDS: Final = 2.0
"""Maximum number of seconds between two reads of the queues."""
START_TURNS: Final = 2
"""Number of iterations of the event loop from the start of an attempt to its agent's first statement. The claim loop sends
nothing during these iterations, because sending a message would delay the agent by a tenth of a millisecond."""

log = structlog.get_logger("runyard.claim_loop")

PAUSED_RETRY_SECONDS: Final = 1.0
"""Seconds until a run of a paused queue is submitted again. After this time every worker knows that the queue is paused."""
OTHER_VERSION_RETRY_SECONDS: Final = 10.0
"""Seconds until a run of another app version is submitted again."""
LOCK_WAIT_SECONDS: Final = 0.005
"""Seconds for which the first claim of a run waits for the row lock of its thread. During this wait no other run is claimed."""
LOCKED_PAUSES_SECONDS: Final = (0.0, 0.005)
"""Seconds before the second claim and before the third claim of a run whose thread stayed locked."""
LONG_LOCK_WAIT_SECONDS: Final = 0.05
"""Seconds for which the second and the third claim of a run wait for the row lock of its thread."""
PATIENT_CLAIMS: Final = 2
"""Maximum number of claims of a worker that wait for a row lock at the same time. Each of these claims holds a connection."""
LOCKED_RETRY_SECONDS: Final = 0.5
"""Seconds until a run whose thread stays locked is submitted again."""

Dispatch = Callable[[Job, Execution], Awaitable[Ended | None]]


KINDS: Final = ("prompt", "fork", "fork_once", "fork_many")


async def execute(job: Job, execution: Execution) -> Ended | None:
    """Execute a claimed run in this process."""
    return await execution.run()


class ClaimLoop:
    """The claim loop of a worker.

    ``on_dead``: a function that is called with the worker's id when a claim finds that the worker was declared dead.
    ``worker_id``: the current id. A worker that was declared dead registers again under a new id. ``late``: a function that
    returns True if the last accepted heartbeat is so old that the worker must take no deliveries."""

    def __init__(
        self,
        tools: WorkerServices,
        slots: Slots,
        effects_sender: EffectsSender,
        queues: Sequence[str],
        *,
        on_dead: Callable[[str], None],
        dispatch: Dispatch = execute,
        kinds: Container[str] = KINDS,
        isolation: Isolation | None = None,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.worker_id = ""
        self.stopping = False
        self.claiming: set[RunRef] = set()
        self._handing_over = False
        self._tools = tools
        self._scheduler = tools.backend.scheduler
        self._slots = slots
        self._effects_sender = effects_sender
        self._queues = queues
        self._has: list[str] = []
        self._paused: frozenset[str] = frozenset()
        self._on_dead = on_dead
        self._dispatch = dispatch
        self._kinds = kinds
        self._isolation = isolation
        self._late = late
        self._tasks: set[asyncio.Task[None]] = set()
        self._registered = asyncio.Event()
        self._pause: asyncio.Timeout | None = None
        self._waiting: str | None = None
        self._rousing: set[asyncio.Task[None]] = set()
        self._patient = asyncio.Semaphore(PATIENT_CLAIMS)
        self._failures = FailureLog(log, "claim_round_failed")

    def open(self, worker_id: str) -> None:
        """Start to take deliveries as the worker ``worker_id``, which is registered in the store."""
        self.worker_id = worker_id
        self._has = _requirements(self._tools.app)
        self._registered.set()

    def close(self) -> None:
        """Take no deliveries until :meth:`open`, and stop all runs. Other workers take the runs over."""
        self._registered.clear()
        for execution in self._slots.executions():
            execution.stop(Stop.ABANDON)

    def stop(self) -> None:
        """Take no further deliveries."""
        self.stopping = True
        self.end_wait()

    def hand_over(self) -> None:
        """Release all runs, also the runs whose claims are under way. The loop takes no further deliveries."""
        self._handing_over = True
        for execution in self._slots.executions():
            execution.stop(Stop.HANDOVER)

    def pause(self, queues: frozenset[str]) -> None:
        """Pause exactly the queues ``queues``. Resume all other queues."""
        self._paused = queues
        self.end_wait()

    def end_wait(self) -> None:
        """End the wait for deliveries. The loop then checks its conditions again."""
        if self._pause is not None and not self._pause.expired():
            self._pause.reschedule(0.0)
        if self._waiting is not None:
            task = asyncio.create_task(self._end_wait(self._waiting))
            self._waiting = None
            self._rousing.add(task)
            task.add_done_callback(self._rousing.discard)

    async def run(self) -> None:
        """Take and start runs until :meth:`stop`."""
        failures = 0
        emptied: list[str] | None = None  # the queues that the last claim emptied
        while not self.stopping:
            if not self._registered.is_set():
                await self._until_changed(self._registered.wait())
                continue
            if self._late():  # the worker may soon be declared dead
                await self._until_changed(asyncio.sleep(LATE_POLL_SECONDS))
                continue
            limit = min(self._slots.free, CLAIM_BATCH)
            if not limit:
                await self._until_changed(self._slots.room())
                continue
            try:
                queues = self._open_queues()
                took = await self._take(queues, limit, QUEUE_POLL_SECONDS if queues == emptied else 0.0)
                failures, emptied = 0, queues if took < limit else None
                self._failures.worked(worker_id=self.worker_id)
                for _ in range(START_TURNS if took else 0):
                    await asyncio.sleep(0)
            except Exception as error:
                failures, emptied = failures + 1, None
                self._failures.failed(error, worker_id=self.worker_id)
                await self._until_changed(asyncio.sleep(jittered(min(0.1 * 2**failures, 2.0))))
        await asyncio.gather(*self._rousing)

    async def finished(self) -> None:
        """Wait until no run is being executed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _take(self, queues: Sequence[str], limit: int, wait: float) -> int:
        worker_id = self.worker_id
        self._waiting = worker_id if wait else None
        try:
            deliveries = await self._scheduler.claim(worker_id, queues, limit, wait, has=self._has)
        finally:
            self._waiting = None
        await self._claim(worker_id, deliveries)
        return len(deliveries)

    async def _end_wait(self, worker_id: str) -> None:
        """End the wait in :meth:`_take`. The wait is not cancelled, because a cancel could lose deliveries."""
        try:
            await self._scheduler.end_wait(worker_id)
        except RunyardError as error:
            log.warning("claim_loop_wakeup_failed", worker_id=worker_id, error=str(error))

    def _open_queues(self) -> list[str]:
        return [queue for queue in self._queues if queue not in self._paused]

    async def _claim(self, worker_id: str, deliveries: Sequence[Delivery]) -> None:
        """Claim the runs of ``deliveries``. Release each delivery whose run was not claimed, also after an error."""
        fresh = {delivery.job.ref: delivery for delivery in self._slots.take(worker_id, deliveries)}
        for ref in [ref for ref, delivery in fresh.items() if delivery.job.kind not in self._kinds]:
            del fresh[ref]
            self._give_back(ref, Effects(), OTHER_VERSION_RETRY_SECONDS)
        if self.stopping:
            self._give_back_all(fresh, delay=0.0)
            return
        if not fresh:
            return
        if locked := await self._claim_unlocked(worker_id, fresh, LOCK_WAIT_SECONDS):
            task = asyncio.create_task(self._claim_locked(worker_id, locked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _claim_unlocked(self, worker_id: str, fresh: Mapping[RunRef, Delivery], wait: float) -> dict[RunRef, Delivery]:
        """Claim the runs of ``fresh``. Return the deliveries whose threads stayed locked in the store for ``wait`` seconds."""
        self.claiming |= fresh.keys()
        try:
            claims = await self._win(worker_id, list(fresh), wait)
        except WorkerDeadError:
            self._give_back_all(fresh, delay=0.0)
            self._on_dead(worker_id)
            return {}
        except LockedError:  # another lock than that of a thread
            return dict(fresh)
        except BackendUnavailableError:
            self._give_back_all(fresh, delay=jittered(0.5))
            raise
        finally:
            self.claiming -= fresh.keys()
        locked = {}
        for (ref, delivery), claim in zip(fresh.items(), claims, strict=True):
            if isinstance(claim, LockedError):
                locked[ref] = delivery
            elif isinstance(claim, WorkerDeadError):
                self._give_back(ref, Effects(), 0.0)
                self._on_dead(worker_id)
            elif not isinstance(claim, Claim):
                names = {"worker_id": worker_id, "thread_key": ref.thread_key, "run_id": ref.run_id}
                log.error("run_claim_failed", **names, error=str(claim), exc_info=claim)
                away = isinstance(claim, BackendUnavailableError)
                self._give_back(ref, Effects(), jittered(0.5) if away else OTHER_VERSION_RETRY_SECONDS)
            elif claim.outcome == "skipped":
                locked[ref] = delivery
            else:
                self._settle(delivery, claim)
        return locked

    async def _claim_locked(self, worker_id: str, locked: dict[RunRef, Delivery]) -> None:
        """Claim runs whose threads were locked in the store, and wait longer for these row locks.

        Release the deliveries whose threads stay locked. Each delivery occupies a slot until it is released."""
        try:
            for pause in LOCKED_PAUSES_SECONDS:
                await asyncio.sleep(pause)
                async with self._patient:
                    if self.stopping:
                        break
                    locked = await self._claim_unlocked(worker_id, locked, LONG_LOCK_WAIT_SECONDS)
                if not locked:
                    return
        except BackendUnavailableError as error:
            log.warning("claim_retry_failed", worker_id=worker_id, runs=len(locked), error=str(error))
            return
        for ref in locked:
            self._give_back(ref, Effects(), 0.0 if self.stopping else jittered(LOCKED_RETRY_SECONDS))

    async def _win(self, worker_id: str, refs: Sequence[RunRef], wait: float) -> Sequence[Claim | Exception]:
        """Claim ``refs``. For each of them, in the same order, return the claim or the error."""

        async def claim(some: Sequence[RunRef]) -> list[Claim | Exception]:
            claims = {claim.ref: claim for claim in await self._tools.backend.runs.claim(worker_id, some, wait=wait)}
            return [claims.get(ref) or Claim(ref, "unknown") for ref in some]

        return await each_its_own(claim, refs)

    def _settle(self, delivery: Delivery, claim: Claim) -> None:
        if claim.outcome == "claimed":
            self._effects_sender.carry_out(claim.effects)
            self._start(delivery, claim)
        elif claim.outcome == "not_due":
            self._give_back(delivery.job.ref, claim.effects, max(claim.retry_in or 0.0, 0.01))
        elif claim.outcome == "paused":
            self._give_back(delivery.job.ref, claim.effects, PAUSED_RETRY_SECONDS)
        elif claim.outcome == "other_version":
            self._give_back(delivery.job.ref, claim.effects, jittered(OTHER_VERSION_RETRY_SECONDS), claim.requires)
        elif claim.outcome == "unserved":
            self._give_back(delivery.job.ref, claim.effects, jittered(UNSERVED_RETRY_SECONDS), claim.requires)
        else:
            self._give_back(delivery.job.ref, claim.effects)

    def _start(self, delivery: Delivery, claim: Claim) -> None:
        if claim.alone and self._isolation is not None:
            execution = self._isolation.execution(self._tools, claim)
        else:
            execution = Execution(self._tools, claim)
        slot = self._slots.start(delivery.job.ref, execution)
        if slot.worker_id != self.worker_id or not self._registered.is_set():  # the worker was declared dead during the claim
            execution.stop(Stop.ABANDON)
        elif self._handing_over:
            execution.stop(Stop.HANDOVER)
        _count(delivery, claim, execution.trace.span)
        task = asyncio.create_task(self._execute(delivery.job, execution), name=f"run {delivery.job.run_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _execute(self, job: Job, execution: Execution) -> None:
        ended: Ended | None = None
        names = {"thread_id": execution.record.thread_id, "run_id": job.run_id, "fence": execution.attempt.fence}
        try:
            ended = await self._dispatch(job, execution)
        except Exception as error:
            # The run stays `running` in the store without a task in this worker. Worker._inspect releases the run.
            trace = logged_traceback(error, self._tools.app.traceback_filter)
            log.error("attempt_end_not_stored", worker_id=self.worker_id, **names, error=str(error), **trace)
        finally:
            slot = self._leave(job.ref, ended)
        if slot is not None and slot.again is not None:
            try:
                await self._claim(slot.worker_id, [slot.again])
            except BackendUnavailableError as error:  # the reconciler submits the run again
                log.warning("second_delivery_not_claimed", worker_id=slot.worker_id, **names, error=str(error))

    def _leave(self, ref: RunRef, ended: Ended | None) -> Slot | None:
        """Free the slot of an attempt that has ended, and return the slot. Return None if the lane's next run has the slot."""
        if ended is None or ended.next is None or ended.next.job is None:
            slot = self._slots.leave(ref)
            self._effects_sender.give_back(slot.worker_id, slot.delivery, ended.effects if ended else None)
            return slot
        self._effects_sender.carry_out(ended.effects)
        delivery = self._slots.pass_on(ref, ended.next.job)
        if delivery is not None:
            self._start(delivery, ended.next)
        return None

    def may_claim_next(self, ref: RunRef) -> bool:
        """Return whether the completion of the run ``ref`` may claim the next run of its lane."""
        if self.stopping or not self._registered.is_set() or self._late():
            return False
        return self._slots.may_pass_on(ref, self.worker_id)

    def _give_back(self, ref: RunRef, effects: Effects, delay: float | None = None, requires: str | None = None) -> None:
        """Give back an unclaimed delivery. ``delay``: seconds until its job is due again, or None to drop the job.

        ``requires``: the requirement that this worker does not fulfil. Workers that fulfil the requirement may take the job
        during the delay."""
        slot = self._slots.leave(ref)
        jobs = [] if delay is None else [replace(slot.delivery.job, delay=delay, requires=requires)]
        if slot.again is not None:
            self._effects_sender.give_back(slot.worker_id, slot.again)
            jobs = jobs or [replace(slot.again.job, delay=0.0)]
        self._effects_sender.give_back(slot.worker_id, slot.delivery, effects, jobs)

    def _give_back_all(self, refs: Iterable[RunRef], delay: float) -> None:
        for ref in refs:
            self._give_back(ref, Effects(), delay)

    async def _until_changed(self, wait: Awaitable[object]) -> None:
        """Await ``wait``. Return earlier if the worker stops or the served queues change."""
        try:
            async with asyncio.timeout(0.0 if self.stopping else None) as pause:
                self._pause = pause
                await wait
        except TimeoutError:
            if not pause.expired():
                raise
        finally:
            self._pause = None


def _requirements(app: App) -> list[str]:
    """Return the requirements that a worker of ``app`` fulfils."""
    default = [] if app.default is None else [f"{namespace_of(app.default.name)}/"]
    return [requirement(name, version) for version in (None, app.version) for name in (*app.agents, *default)]


def _count(delivery: Delivery, claim: Claim, span: Span) -> None:
    """Record how long a claimed run has waited. ``span``: the span of its attempt, for exemplars."""
    if claim.takeover:
        metrics.TAKEOVERS.inc()
    job, run = delivery.job, claim.run
    if run is None or run.started_at is None:
        return
    queue = metrics.queue_label(job.queue)
    if job.ready_at is not None:
        picked_up = max(0.0, run.started_at.timestamp() - job.ready_at)
        metrics.observe(metrics.child(metrics.PICKUP, queue), picked_up, span)
    if run.attempt == 1:
        metrics.observe(metrics.child(metrics.QUEUE_WAIT, queue), waited(run), span)
