"""One attempt of one run: context → agent → complete | suspend | fail | release.

The agent runs in a task of its own, so that stopping it never interrupts a write. Whatever user code does with the signals it
is unwound by, the context remembers them, and the attempt ends as they say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

import structlog

from . import forkjobs, metrics
from .agents.context import Remainder, RunContext
from .agents.journal import Journal, ProbeJournal, StoreJournal
from .agents.signals import AttemptLost, Suspend, signals_in, unwrap
from .agents.steps import current_context
from .agents.transcript import completed_events
from .app import AgentSpec, App
from .batching import Batcher, each_its_own
from .errors import (
    AgentCancelledError,
    BackendUnavailableError,
    CancelRequestedError,
    CapabilityMissingError,
    InvalidInputError,
    MessageTooLargeError,
    RunTimeoutError,
    RunyardError,
    StaleFenceError,
    VersionMismatchError,
)
from .eventwriter import EventStream, EventWriter
from .exchange import Attempt, Claim, Ended, Ledger, Write
from .fanout import Answer, FanOutJob
from .fanthreads import Later
from .logging import plain_tracebacks
from .models import ErrorInfo, JsonObject, Message, Run
from .outcomes import LONGEST, UNSERVED_DELAY, backoff, describe, effective_options, end_events, retryable
from .patience import patiently
from .ports import Backend
from .states import RunStatus

UNWIND: Final = 10.0
"""Seconds that a cancelled agent gets to clean up; then its attempt ends without it."""

log = structlog.get_logger("runyard.executor")


class Stop(Enum):
    """Why an attempt is ended from outside."""

    CANCEL = "cancel"
    HANDOVER = "handover"
    ABANDON = "abandon"
    """Another worker has the run: write nothing."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the attempts of a worker share. ``complete`` commits the ends of many runs together."""

    app: App
    backend: Backend
    writer: EventWriter
    complete: Batcher[Write, Ended]

    @classmethod
    def of(cls, app: App, backend: Backend, writer: EventWriter) -> Tools:
        async def complete(writes: Sequence[Write]) -> Sequence[Ended | Exception]:
            return await each_its_own(backend.runs.complete, writes)

        plain_tracebacks()
        return cls(app, backend, writer, Batcher(complete))


@dataclass(frozen=True, slots=True)
class _Result:
    """How an agent left: ``error`` is None if it returned."""

    left: Remainder
    error: BaseException | None = None


class Execution:
    """One attempt under way. :meth:`run` executes it; :meth:`stop` ends it early, at its last commit."""

    def __init__(self, tools: Tools, claim: Claim) -> None:
        assert claim.run is not None and claim.attempt is not None
        self.record: Run = claim.run
        self.attempt: Attempt = claim.attempt
        self._tools = tools
        self._claim = claim
        self._spec: AgentSpec | None = tools.app.find(claim.run.agent)
        self._options = effective_options(claim.run.options, self._spec)
        self._stream = EventStream(tools.writer, claim.attempt, claim.run.thread_id)
        agent = self._spec.name if self._spec and claim.run.kind != "fork" else None
        self._meter = metrics.Meter(claim.run, agent)
        self._why: Stop | None = None
        self._asked = Remainder.nothing()
        """Holds what the probes of a job used."""
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self, why: Stop) -> None:
        """Cancel the agent. ABANDON wins over the others; asking twice changes nothing."""
        if self._why is None or why is Stop.ABANDON:
            self._why = why
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def run(self) -> Ended | None:
        """Execute the attempt. Returns how it ended, or None if it was lost: another attempt, or nobody, is to end it."""
        fields = {"thread_id": self.record.thread_id, "run_id": self.record.run_id}
        with structlog.contextvars.bound_contextvars(**fields, attempt=self.record.attempt, fence=self.attempt.fence):
            try:
                ended = await self._bounded()
            except StaleFenceError:
                metrics.STALE_WRITES.inc()
                ended = None
            except RunyardError as error:
                log.error("attempt given up", error=str(error), code=error.code)
                ended = None
            finally:
                self._stream.close()
            outside = ended is not None and any(event.ref == self.attempt.ref for event in ended.effects.events)
            self._meter.ended(ended.status if ended else None, self._stream.spoke_at, outside=outside)
            return ended

    async def _bounded(self) -> Ended | None:
        """The attempt; a defect in it counts as the attempt's error, or the run would be started again for ever."""
        try:
            return await self._run()
        except RunyardError:
            raise
        except Exception as error:
            return await self._failed(error, Remainder.nothing())

    def _lost(self, error: RunyardError) -> None:
        """A write was refused: nothing that the agent still does counts."""
        self.stop(Stop.CANCEL if isinstance(error, CancelRequestedError) else Stop.ABANDON)

    async def _run(self) -> Ended | None:
        if self._spec is None and self.record.kind != "fork":
            log.warning("agent is not served here", agent=self.record.agent)
            return await self._release(delay=UNSERVED_DELAY)
        before, app = self._claim.version_before, self._tools.app
        if app.on_version_mismatch == "fail" and before not in (None, app.version):
            return await self._fail(
                VersionMismatchError(
                    f"version {before} of the app began the run, this is {app.version}; serve it with a worker of "
                    "that version, or redrive it to start on this one",
                    version=before,
                    app_version=app.version,
                )
            )
        ledger = await self._begin()
        if self.record.kind == "prompt":
            return await self._prompt(ledger)
        if self.record.kind == "fork":
            return await self._job(lambda: forkjobs.fork(self._tools.backend, self._claim))
        if self.record.kind == "fork_once":
            return await self._job(self._probe)
        if self.record.kind == "fork_many":
            return await self._job(lambda: self._fan_out(ledger))
        return await self._fail(
            CapabilityMissingError(f"this worker cannot run {self.record.kind} jobs", kind=self.record.kind)
        )

    async def _begin(self) -> Ledger:
        """Announce the attempt and read what earlier ones left."""
        if self._claim.alone:
            await patiently(lambda: self._tools.backend.runs.isolate(self.attempt))
        run, data = self.record, JsonObject(attempt=self.record.attempt)
        if run.attempt <= 1:
            self._stream.emit("run.started", data)
            if run.kind == "prompt" and run.input is not None:
                message = run.input.model_copy(update={"run_id": run.run_id})
                for kind, what in completed_events([message]):
                    self._stream.emit(kind, what)
            return Ledger()
        ledger = await patiently(lambda: self._tools.backend.runs.ledger(self.attempt))
        answered = [request for request in ledger.requests.values() if request.answered_at is not None]
        parks = self._claim.fork is not None and self._claim.fork.fan is not None and self._claim.fork.fan.threads
        resumed = (bool(answered) or parks) and not self._claim.takeover and not run.error_count
        data["message_id"] = self._claim.leaf_id
        self._stream.emit("run.resumed" if resumed else "run.rewound", data, urgent=True)
        if resumed:
            self._meter.resumed(answered)
        for request in answered if resumed else ():
            self._stream.emit("hitl.answered", {"request_id": request.request_id, "answer": request.answer})
        return ledger

    async def _prompt(self, ledger: Ledger) -> Ended | None:
        backend = self._tools.backend
        threads = backend.for_tenant(self._claim.tenant).threads
        journal = StoreJournal(backend.runs, threads, self.attempt, self.record.thread_id)
        while True:
            result = await self._call(journal, self._claim.extra, ledger)
            ended = await self._end(result)
            if ended is None or ended.status is not RunStatus.RUNNING:
                return ended
            # The answer came while the question was being stored: go on in the same attempt.
            if result.left.usage is not None:
                self.record = self.record.model_copy(update={"usage": self.record.usage + result.left.usage})
            ledger = await patiently(lambda: self._tools.backend.runs.ledger(self.attempt))

    async def _call(
        self,
        journal: Journal,
        extra: JsonObject,
        ledger: Ledger,
        *,
        run: Run | None = None,
        spec: AgentSpec | None = None,
        stopped: asyncio.Future[None] | None = None,
    ) -> _Result:
        """Run the agent until it returns, raises, is stopped, or its time is over."""
        run, spec, stopped = run or self.record, spec or self._spec, stopped or self._stopped
        assert spec is not None
        timeout = None if self._options.timeout is None else min(self._options.timeout, LONGEST)
        deadline = datetime.now(UTC) + timedelta(seconds=timeout) if timeout is not None else None
        context = RunContext(run, journal, self._stream, extra=extra, ledger=ledger, deadline=deadline, on_lost=self._lost)
        within = copy_context()
        within.run(current_context.set, context)
        task = asyncio.create_task(_drive(spec, context), name=f"agent of run {run.run_id}", context=within)
        await asyncio.wait((task, stopped), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        cut, timed_out = not task.done(), not task.done() and not stopped.done()
        if cut:
            context.stop()
            task.cancel()
            await asyncio.wait((task,), timeout=UNWIND)
        left = await context.remainder()
        task.add_done_callback(_forget)
        if timed_out:
            return _Result(left, RunTimeoutError(f"the attempt took longer than {timeout} s", timeout=timeout))
        if not task.done():
            log.error("agent ignores its cancellation; its attempt ends without it")
        # What a stopped agent raises while it unwinds, or that it returns, says nothing about its run.
        return _Result(left, asyncio.CancelledError() if cut or task.cancelled() else task.exception())

    async def _end(self, result: _Result) -> Ended | None:
        """Write how the attempt ended."""
        signals = [*signals_in(result.error)] if result.error else []
        if result.left.signal is not None:
            signals.append(result.left.signal)
        lost = next((signal for signal in signals if isinstance(signal, AttemptLost)), None)
        if lost is not None and not isinstance(lost.error, CancelRequestedError):
            raise lost.error
        if self._why is Stop.ABANDON:
            return None
        if lost is not None:
            return await self._release()
        if result.left.requests and any(isinstance(signal, Suspend) for signal in signals):
            return await self._suspend(result.left)
        if result.error is None:
            return await self._complete(result.left)
        if isinstance(result.error, asyncio.CancelledError) and self._why is not None:
            return await self._release(result.left)
        return await self._failed(unwrap(result.error), result.left)

    async def _failed(self, error: BaseException, left: Remainder) -> Ended | None:
        if isinstance(error, asyncio.CancelledError):
            error = AgentCancelledError("the agent was cancelled from inside")
        if isinstance(error, BackendUnavailableError):
            log.warning("the store went away under the attempt", error=str(error))
            return await self._release(left)
        log.warning("attempt failed", exc_info=error)
        policy = self._options.retry.of(error) if retryable(error) else None
        if policy is None or self.record.error_count + 1 >= self._options.max_attempts:
            return await self._fail(error, left)
        return await self._release(left, backoff(policy, self.record.error_count, error), describe(error))

    async def _complete(self, left: Remainder, value: object = None) -> Ended:
        return await self._write(left, self._last_write(left, value), lambda w: self._tools.complete(w))

    async def _suspend(self, left: Remainder) -> Ended:
        suspend = self._tools.backend.runs.suspend
        return await self._write(left, self._last_write(left), lambda w: suspend(w, left.requests))

    async def _fail(self, error: BaseException, left: Remainder | None = None) -> Ended:
        left = left or Remainder.nothing()
        info, fail = describe(error), self._tools.backend.runs.fail
        return await self._write(left, self._last_write(left), lambda w: fail(w, info))

    async def _release(
        self,
        left: Remainder | None = None,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        until_fewer: int | None = None,
    ) -> Ended:
        """Give the run back, after committing what its agent finished saying. ``until_fewer``: to wait for what it started."""
        runs = self._tools.backend.runs
        if left is not None and left.messages:
            try:
                await self._save(left)
            except (InvalidInputError, MessageTooLargeError) as refused:
                return await self._fail(refused)  # it would be refused in every attempt
        reservation = self._stream.reserve(1)
        try:
            ended = await patiently(
                lambda: runs.release(
                    self.attempt, delay=delay, error=error, first_event=reservation.first, until_fewer=until_fewer
                )
            )
        except BaseException:
            reservation.drop()
            raise
        reservation.fill(end_events(ended, Remainder.nothing()))
        return ended

    async def _save(self, left: Remainder) -> None:
        reservation = self._stream.reserve(len(left.messages))
        try:
            stored = await self._tools.backend.runs.append(self.attempt, left.messages, first_event=reservation.first)
        except CancelRequestedError:
            reservation.drop()  # the release finalises the cancel
        except BaseException:
            reservation.drop()
            raise
        else:
            reservation.fill(completed_events(stored))

    def _last_write(self, left: Remainder, value: object = None) -> Write:
        return Write(
            attempt=self.attempt,
            messages=left.messages,
            extra=left.extra,
            usage=left.usage,
            result=value if value is not None else left.result,
        )

    async def _write(self, left: Remainder, write: Write, call: Callable[[Write], Awaitable[Ended]]) -> Ended:
        """Make the attempt's last write; its events follow the commit (semantics: E2)."""
        reservation = self._stream.reserve(len(left.messages) + len(left.requests) + 1)
        write.first_event = reservation.first
        try:
            ended = await patiently(lambda: call(write))
        except (InvalidInputError, MessageTooLargeError) as error:
            reservation.drop()
            if not (left.messages or left.extra or left.usage or left.requests or write.result is not None):
                raise
            return await self._fail(error)  # what the agent said would be refused in every attempt
        except BaseException:
            reservation.drop()
            raise
        reservation.fill(end_events(ended, left))
        return ended

    async def _job(self, work: Callable[[], Awaitable[object]]) -> Ended | None:
        """A run that is not a prompt: its result instead of messages."""
        try:
            value = await work()
        except BackendUnavailableError as error:
            return await self._failed(error, self._asked)
        except Exception as error:
            if self._why is not None:
                return None if self._why is Stop.ABANDON else await self._release()
            return await self._failed(error, self._asked)
        if self._why is Stop.ABANDON:
            return None
        if isinstance(value, Later):
            return await self._release(delay=value.delay, until_fewer=value.until_fewer)
        return await self._complete(self._asked, value)

    async def _probe(self) -> object:
        assert self._spec is not None
        messages, extra = await forkjobs.snapshot(self._tools.backend, self._claim, self._spec)
        answer = await self._ask(self._spec, self.record, messages, extra, self._stopped)
        if self._why is not None and answer.error is not None:
            raise RunyardError("the probe was stopped")
        return forkjobs.probe_result(answer.written, answer.error)

    async def _ask(
        self, spec: AgentSpec, run: Run, messages: Sequence[Message], extra: JsonObject, stopped: asyncio.Future[None]
    ) -> Answer:
        """Run an agent on a snapshot, without a trace in any thread."""
        journal = ProbeJournal(messages, run)
        result = await self._call(journal, extra, Ledger(), run=run, spec=spec, stopped=stopped)
        error = unwrap(result.error) if result.error else None
        if (used := result.left.usage) is not None:
            self._asked = replace(self._asked, usage=used if self._asked.usage is None else self._asked.usage + used)
        return Answer([*journal.written, *result.left.messages], error, result.left.result)

    async def _fan_out(self, ledger: Ledger) -> object:
        assert self._spec is not None
        tools = self._tools
        return await FanOutJob(tools.app, tools.backend, self._claim, self._spec, ledger, self._ask, self._stopped).run()


async def _drive(spec: AgentSpec, context: RunContext) -> None:
    try:
        await spec.function(context)
    except SystemExit as error:
        # A task hands SystemExit to the event loop, and not every loop that runs attempts is contained.
        raise RuntimeError(f"the agent called sys.exit({error.code!r})") from error


def _forget(task: asyncio.Task[None]) -> None:
    """Take the outcome of a task that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
