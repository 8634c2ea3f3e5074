"""The executor executes one attempt of one run. At the end of the attempt, the executor completes, suspends, fails or releases
the run.

The agent runs in a separate task. A stop of the agent therefore never interrupts a write. A control signal ends the agent's
code, and says how the attempt ends. The context keeps the signal. The signal therefore decides the end even if user code
catches the signal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from typing import Final

import structlog

from ..app import AgentSpec, App
from ..domain.messages import Message, Usage
from ..domain.runs import Run
from ..domain.size_limits import JsonObject
from ..domain.states import RunStatus
from ..errors import (
    AgentCancelledError,
    BackendUnavailableError,
    CancelRequestedError,
    CapabilityMissingError,
    DataCorruptedError,
    RunyardError,
    StaleFenceError,
    VersionMismatchError,
)
from ..events.writer import EventEmitter, EventWriter
from ..ports.commands import Write
from ..ports.refs import AttemptToken, RunRef
from ..ports.results import Claim, Ended, Ledger
from ..ports.stores import Backend
from ..support import metrics
from ..support.batching import Batcher
from ..support.logging import plain_tracebacks
from ..support.store_retries import patiently
from ..support.tracebacks import logged_traceback
from . import fork_runs, log_fields
from .attempt_store import AttemptStore, FencedAttemptStore, ProbeAttemptStore, StoreUnansweredError
from .attempt_trace import AttemptTrace
from .context import RunContext
from .control_signals import AttemptLost, Suspend, probe_error, signals_in, unwrap
from .end_records import describe, log_end
from .end_writer import EndWriter, completions
from .fan_out import FanOutJob, ProbeAnswer
from .fan_out_candidates import Later
from .probe_usage import ProbeUsage
from .received_answers import ReceivedAnswers
from .remainder import Remainder
from .retries import MAX_DELAY_SECONDS, UNSERVED_RETRY_SECONDS, effective_options, retry_delay
from .run_meter import RunMeter
from .steps import current_context
from .timeouts import timeout_error
from .transcript import completed_events, discard_outcome

CLEANUP_SECONDS: Final = 10.0
"""Seconds that a cancelled agent has for its cleanup. After this time the attempt ends, even if the agent continues."""

log = structlog.get_logger("runyard.executor")


class Stop(Enum):
    """The reason to end an attempt from outside."""

    CANCEL = "cancel"
    HANDOVER = "handover"
    ABANDON = "abandon"
    """Another worker has the run: write nothing."""


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """Services for the attempts of a worker. ``complete`` commits the ends of several attempts together. ``on_used`` counts
    usage by model."""

    app: App
    backend: Backend
    writer: EventWriter
    complete: Batcher[Write, Ended]
    on_used: Callable[[str, Usage, str], None] = metrics.count_usage

    @classmethod
    def of(
        cls, app: App, backend: Backend, writer: EventWriter, may_claim_next: Callable[[RunRef], bool] = lambda _: False
    ) -> WorkerServices:
        """``may_claim_next``: see :func:`.end_writer.completions`."""
        plain_tracebacks()
        return cls(app, backend, writer, completions(backend.runs, may_claim_next))


@dataclass(frozen=True, slots=True)
class _Result:
    """The end of an agent's execution. ``error`` is None if the agent returned."""

    left: Remainder
    error: BaseException | None = None


class Execution:
    """One attempt of a run. :meth:`run` executes the attempt. :meth:`stop` ends the attempt early. Committed data stays.

    ``nested``: another process has the span of the attempt (:class:`.attempt_trace.AttemptTrace`).
    """

    def __init__(self, tools: WorkerServices, claim: Claim, *, nested: bool = False) -> None:
        assert claim.run is not None and claim.attempt is not None
        self.record: Run = claim.run
        self.attempt: AttemptToken = claim.attempt
        self._tools, self._keep = tools, tools.app.traceback_filter
        self._claim = claim
        self._spec: AgentSpec | None = tools.app.find(claim.run.agent)
        self._options = effective_options(claim.run.options, self._spec)
        self._stream = EventEmitter(tools.writer, claim.attempt, claim.run.thread_id, claim.job.queued if claim.job else None)
        self._end_writer = EndWriter(tools.backend.runs, tools.complete, claim.attempt, self._stream, self._keep)
        agent = self._spec.name if self._spec and claim.run.kind != "fork" else None
        self.trace = AttemptTrace(claim, agent, nested=nested)
        self._meter = RunMeter(claim.ref, claim.run, agent, self.trace.span)
        self._answers = ReceivedAnswers(self._stream)
        self._why: Stop | None = None
        self._probes = ProbeUsage(tools.backend.runs, claim.attempt)
        self._traceback: str | None = None
        """The recorded traceback of the error with which the attempt ended."""
        self._used = Usage()
        """The usage of the attempt so far."""
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self, why: Stop) -> None:
        """Cancel the agent, for the reason ``stop``. A second call changes nothing, unless its reason is ABANDON."""
        if self._why is None or why is Stop.ABANDON:
            self._why = why
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def run(self) -> Ended | None:
        """Execute the attempt. Return its end, or None if this attempt wrote no end."""
        lost, began = False, time.monotonic()
        with log_fields.of_attempt(self.record, self.attempt.fence), self.trace.active(), self._meter.running():
            try:
                await self.trace.relate(self._tools.backend)
                ended = await self._bounded()
            except StaleFenceError:
                metrics.STALE_WRITES.inc()
                ended, lost = None, True
            except RunyardError as error:
                log.error("attempt_abandoned", error=str(error), error_code=error.code)
                ended = None
            finally:
                self._stream.close()
            self._report(ended, lost=lost, seconds=time.monotonic() - began)
            return ended

    def _report(self, ended: Ended | None, *, lost: bool, seconds: float) -> None:
        """Measure, trace and log the end of the attempt. Raise no error, because the effects of the committed end must still be
        sent."""
        try:
            self._meter.ended(ended, self._stream.spoke_at)
            self.trace.ended(ended, lost=ended is None and (lost or self._why is Stop.ABANDON))
            self._log_end(ended, seconds)
        except Exception as error:
            with suppress(Exception):  # the log itself may have failed
                log.exception("attempt_telemetry_failed", error=str(error))

    def _log_end(self, ended: Ended | None, seconds: float) -> None:
        log_end(self.record, ended, self._traceback, self._used, seconds)

    async def _bounded(self) -> Ended | None:
        """Execute the attempt. An unexpected error becomes the attempt's error, because the run would otherwise never end."""
        try:
            return await self._run()
        except DataCorruptedError as error:
            return await self._failed(error, Remainder.nothing())  # no attempt could read the row
        except RunyardError:
            raise
        except Exception as error:
            return await self._failed(error, Remainder.nothing())

    def _stop_after_refusal(self, error: RunyardError) -> None:
        """Stop the agent after the store has refused a write. The reason is a cancel of the run, or another attempt of the
        run."""
        self.stop(Stop.CANCEL if isinstance(error, CancelRequestedError) else Stop.ABANDON)

    async def _run(self) -> Ended | None:
        if self._spec is None and self.record.kind != "fork":
            log.warning("agent_not_served", agent=self.record.agent)
            return await self._end_writer.release(delay=UNSERVED_RETRY_SECONDS)
        before, app = self._claim.version_before, self._tools.app
        if app.on_version_mismatch == "fail" and before not in (None, app.version):
            return await self._end_writer.fail(
                VersionMismatchError(
                    f"version {before} of the app began the run, and this worker has version {app.version}; start a worker of "
                    f"version {before}, or redrive the run",
                    version=before,
                    app_version=app.version,
                )
            )
        ledger = await self._begin()
        if self.record.kind == "prompt":
            return await self._prompt(ledger)
        if self.record.kind == "fork":
            return await self._job(lambda: fork_runs.fork(self._tools.backend, self._claim))
        if self.record.kind == "fork_once":
            return await self._job(self._probe)
        if self.record.kind == "fork_many":
            return await self._job(lambda: self._fan_out(ledger))
        return await self._end_writer.fail(
            CapabilityMissingError(f"this worker cannot run {self.record.kind} jobs", kind=self.record.kind)
        )

    async def _begin(self) -> Ledger:
        """Emit the events at the start of the attempt. Return the steps and requests of earlier attempts."""
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
        parks = self._claim.fork is not None and self._claim.fork.fan is not None and self._claim.fork.fan.threads
        resumed = ledger.resumes or (parks and not self._claim.takeover and not run.error_count)
        data["message_id"] = self._claim.leaf_id
        if not resumed:
            data["takeover"] = self._claim.takeover
            if ledger.retries and run.error is not None:
                data["error"] = run.error.without_traceback().model_dump(mode="json")
        self._stream.emit("run.resumed" if resumed else "run.rewound", data, urgent=True)
        answered = self._answers.announce(ledger)
        if resumed:
            self._meter.resumed(answered)
            self.trace.resumed(answered)
        elif not self._claim.takeover:
            self.trace.continues("retry")
        return ledger

    async def _prompt(self, ledger: Ledger) -> Ended | None:
        runs, of_tenant = self._tools.backend.runs, self._tools.backend.for_tenant(self._claim.tenant)
        attempt_store = FencedAttemptStore(runs, of_tenant, self.attempt, self.record.thread_id)
        leaf = self._claim.leaf_id
        while True:
            result = await self._call(attempt_store, self._claim.extra, ledger)
            self._used += result.left.used or Usage()
            ended = await self._end(result)
            if ended is None or ended.status is not RunStatus.RUNNING:
                return ended
            # The answer came while the question was being stored. Continue in the same attempt.
            leaf = result.left.leaf_id or leaf
            if result.left.used is not None:
                self.record = self.record.model_copy(update={"usage": self.record.usage + result.left.used})
            ledger = await patiently(lambda: runs.ledger(self.attempt))
            self._stream.emit("run.resumed", {"attempt": self.record.attempt, "message_id": leaf}, urgent=True)
            self._answers.announce(ledger)

    async def _call(
        self,
        attempt_store: AttemptStore,
        extra: JsonObject,
        ledger: Ledger,
        *,
        run: Run | None = None,
        spec: AgentSpec | None = None,
        stopped: asyncio.Future[None] | None = None,
    ) -> _Result:
        """Run the agent until it returns, raises, is stopped, or times out."""
        run, spec, stopped = run or self.record, spec or self._spec, stopped or self._stopped
        assert spec is not None
        timeout = None if self._options.timeout is None else min(self._options.timeout, MAX_DELAY_SECONDS)
        deadline = datetime.now(UTC) + timedelta(seconds=timeout) if timeout is not None else None
        context = RunContext(
            run,
            attempt_store,
            self._stream,
            extra=extra,
            config=self._claim.config,
            ledger=ledger,
            deadline=deadline,
            on_lost=self._stop_after_refusal,
            on_used=partial(self._tools.on_used, spec.name),
            agent=spec.name,
            traceback_filter=self._keep,
        )
        within = copy_context()
        within.run(current_context.set, context)
        task = asyncio.create_task(spec.execute(context), name=f"agent of run {run.run_id}", context=within)
        await asyncio.wait((task, stopped), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        cut = not task.done()
        late = timeout_error(task, timeout) if cut and not stopped.done() else None
        if cut:
            context.stop()
            task.cancel()
            await asyncio.wait((task,), timeout=CLEANUP_SECONDS)
        left = await context.remainder()
        self.trace.count(left.used)
        task.add_done_callback(discard_outcome)
        if late is not None:
            return _Result(left, late)
        if not task.done():
            log.error("agent_ignored_cancel", agent=run.agent, waited_seconds=CLEANUP_SECONDS)
        # The error or the return value of a stopped agent is not the outcome of the run.
        return _Result(left, asyncio.CancelledError() if cut or task.cancelled() else task.exception())

    async def _end(self, result: _Result) -> Ended | None:
        """Write the end of the attempt."""
        signals = [*signals_in(result.error)] if result.error else []
        if result.left.signal is not None:
            signals.append(result.left.signal)
        lost = next((signal for signal in signals if isinstance(signal, AttemptLost)), None)
        if lost is not None and not isinstance(lost.error, CancelRequestedError):
            raise lost.error
        if self._why is Stop.ABANDON:
            return None
        if lost is not None:
            return await self._end_writer.release(result.left.usage_only())
        if result.left.parked and any(isinstance(signal, Suspend) for signal in signals):
            return await self._end_writer.suspend(result.left)
        if result.error is None:
            return await self._end_writer.complete(result.left)
        if isinstance(result.error, asyncio.CancelledError) and self._why is not None:
            return await self._end_writer.release(result.left)
        return await self._failed(unwrap(result.error), result.left)

    async def _failed(self, error: BaseException, left: Remainder) -> Ended | None:
        """Fail or release the run after ``error``."""
        if isinstance(error, asyncio.CancelledError):
            error = AgentCancelledError("the agent cancelled its own task")
        if isinstance(error, StoreUnansweredError):
            return await self._unanswered(error, left)
        self.trace.failed(error)
        info = describe(error, self._keep)
        self._traceback = info.traceback
        delay = retry_delay(self._options, self.record.error_count, error)
        if delay is None:
            return await self._end_writer.fail(info, left)
        return await self._end_writer.release(left, delay, info)

    async def _unanswered(self, error: BackendUnavailableError, left: Remainder) -> Ended:
        """Release the run, because its store did not answer. This outage does not count as an error of the run."""
        log.warning("backend_call_failed", error=str(error))
        return await self._end_writer.release(left)

    async def _job(self, work: Callable[[], Awaitable[object]]) -> Ended | None:
        """Execute a run whose kind is not ``prompt``. Such a run has a result instead of messages."""
        try:
            value = await work()
        except BackendUnavailableError as error:  # of the store: an error of a probe's agent becomes the answer of the probe
            return await self._unanswered(error, await self._probes.left())
        except Exception as error:
            if self._why is not None:
                return None if self._why is Stop.ABANDON else await self._end_writer.release(await self._probes.left())
            return await self._failed(error, await self._probes.left())
        if self._why is Stop.ABANDON:
            return None
        if isinstance(value, Later):
            return await self._end_writer.release(await self._probes.left(), value.delay, until_fewer=value.until_fewer)
        return await self._end_writer.complete(await self._probes.left(), value)

    async def _probe(self) -> object:
        assert self._spec is not None
        messages, extra = await fork_runs.snapshot(self._tools.backend, self._claim, self._spec)
        answer = await self._ask(self._spec, self.record, messages, extra, self._stopped)
        if self._why is not None and answer.error is not None:
            raise RunyardError("the probe was stopped")
        return fork_runs.probe_result(answer.written, answer.error, self._keep)

    async def _ask(
        self, spec: AgentSpec, run: Run, messages: Sequence[Message], extra: JsonObject, stopped: asyncio.Future[None]
    ) -> ProbeAnswer:
        """Run an agent on a snapshot, and write to no thread."""
        attempt_store = ProbeAttemptStore(messages, run, self._tools.backend.for_tenant(self._claim.tenant).graphs)
        with self.trace.candidate(spec.name):
            result = await self._call(attempt_store, extra, Ledger(), run=run, spec=spec, stopped=stopped)
        error = probe_error(result.left.signal, result.error)
        if error is not None and not stopped.done():
            trace = logged_traceback(error, self._keep)
            log.warning("probe_failed", agent=spec.name, probe_id=run.run_id, error=str(error), **trace)
        if (used := result.left.used) is not None:
            self._used += used
            self._probes.add(run.run_id, used)
        return ProbeAnswer([*attempt_store.written, *result.left.messages], error, result.left.result, used or Usage())

    async def _fan_out(self, ledger: Ledger) -> object:
        assert self._spec is not None
        given = (self._tools.app, self._tools.backend, self._claim, self._spec, ledger, self._ask, self._stopped)
        return await FanOutJob(*given, self._probes, tell=self._stream.emit).run()
