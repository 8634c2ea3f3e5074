"""The span of an attempt, and its links to the other attempts and runs (T1).

The id of an attempt's span is derived from the run and the number of the attempt. If a run was accepted without a trace, its
trace id is derived from the run. Every worker can compute these ids. No store keeps these ids. The next attempt can therefore
link to the span of the previous attempt. If the worker of the previous attempt died, the next attempt makes the lost span.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from ..domain.messages import Usage
from ..domain.requests import HitlRequest
from ..domain.runs import AttemptInfo, Run
from ..ports.queries import PageRequest
from ..ports.results import Claim, Ended
from ..ports.stores import Backend
from ..support import genai_spans, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ATTEMPTS_PER_PAGE: Final = 100
"""Number of attempts in one page of the search for the previous attempt."""
LINKS: Final = {"suspended": "suspension", "lost": "takeover"}
"""Outcome of an attempt → the kind of the link to this attempt. For any other outcome, the link is ``retry``."""

log = structlog.get_logger("runyard.executor")


class AttemptTrace:
    """The spans of the attempt that ``claim`` began. Without a tracer provider every method returns immediately.

    The span of the attempt is the agent's span in the conventions for generative AI. The spans of models, tools and steps are
    its children.

    ``agent``: the name of the agent, or None for a fork job. ``nested``: whether a child process of the worker executes the
    attempt. The worker itself then has the span, and the run's trace context names this span.
    """

    def __init__(self, claim: Claim, agent: str | None, *, nested: bool = False) -> None:
        assert claim.run is not None
        self._claim, self._run, self._agent = claim, claim.run, agent
        self._usage: Usage | None = None
        self._failed = False
        self.span: Span = tracing.NO_SPAN
        if tracing.tracer() is None:
            return
        if nested:
            self.span = _remote(self._run.trace_context)
            return
        self.span = self._start(self._run.attempt)
        if self.span is tracing.NO_SPAN:
            return
        self.span.set_attribute("runyard.takeover", claim.takeover)
        if self._run.attempt == 1 and self._run.started_at is not None:
            self._waited(max(filter(None, (self._run.run_at, self._run.accepted_at))))

    @property
    def context(self) -> str | None:
        """The ``traceparent`` of the attempt's span, or None without a span."""
        return None if self.span is tracing.NO_SPAN else tracing.traceparent(self.span.get_span_context())

    def active(self) -> AbstractContextManager[None]:
        """Make the attempt's span the current span inside a ``with`` block.

        Without a span, use the context of the run's caller.
        """
        if self.span is not tracing.NO_SPAN:
            return tracing.active(self.span)
        return nullcontext() if self._run.trace_context is None else tracing.within(self._run.trace_context)

    def candidate(self, agent: str) -> AbstractContextManager[object]:
        """Make the span of one probe of a fan-out. The probe of a ``fork_once`` gets no span, because the attempt already has
        one."""
        if self._run.kind != "fork_many":
            return nullcontext()
        return tracing.span(f"candidate {agent}", attributes={"gen_ai.agent.name": agent})

    async def relate(self, backend: Backend) -> None:
        """Link the attempt to the previous attempt if the worker of that attempt died. Link the first run of a fork to the run
        after which the thread was forked.

        A dead worker cannot end the span of its attempt. This method makes the span instead. If this method fails, the links
        are missing.
        """
        if not self.span.is_recording():
            return
        try:
            of_tenant = backend.for_tenant(self._claim.tenant)
            if self._claim.takeover:
                self.continues("takeover")
                await self._record_lost(of_tenant)
            if (source := await self._source(of_tenant)) is not None:
                tracing.add_link(self.span, source.trace_context, "fork")
        except Exception as error:  # a missing link must not fail the run
            log.warning("attempt_trace_links_missing", error=str(error))

    def continues(self, why: str) -> None:
        """Link to the previous attempt. ``why``: ``takeover``, ``suspension`` or ``retry``."""
        self._link_before(self.span, self._run.attempt, why)

    def resumed(self, answered: Iterable[HitlRequest]) -> None:
        """Record that answers started this attempt.

        Link to the attempt that asked the questions. Record the time since the last answer.
        """
        self.continues("suspension")
        if self.span.is_recording() and (times := [request.answered_at for request in answered if request.answered_at]):
            self._waited(max(times))

    def failed(self, error: BaseException) -> None:
        """Record the agent's error in the span."""
        self._failed = True
        tracing.fail(self.span, error)

    def count(self, usage: Usage | None) -> None:
        """Add ``usage`` to the usage that the attempt's span records."""
        if usage is not None and self.span.is_recording():
            self._usage = usage if self._usage is None else self._usage + usage

    def ended(self, ended: Ended | None, *, lost: bool) -> None:
        """End the attempt's span.

        ``ended``: the end that was written, or None. ``lost``: whether another attempt has the run. If so, this process drops
        the span. The other attempt records a span for the lost attempt (:meth:`relate`).
        """
        if lost and tracing.chooses_ids():
            return
        if self.span.is_recording():
            self.span.set_attribute("runyard.outcome", ended.status.value if ended is not None else "lost")
            if ended is not None and ended.error is not None and not self._failed:
                tracing.fail(self.span, ended.error.code)
            if self._usage is not None:
                self.span.set_attributes(genai_spans.total_usage(self._usage))
        tracing.end(self.span)

    def _start(self, number: int, began: datetime | None = None) -> Span:
        """Start the span of the attempt ``number`` of this run."""
        run = self._run
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.conversation.id": run.thread_id,
            "runyard.run.id": run.run_id,
            "runyard.run.kind": run.kind,
            "runyard.attempt": number,
            "messaging.system": "runyard",
            "messaging.operation.type": "process",
            "messaging.operation.name": "attempt",
            "messaging.destination.name": run.queue,
        }
        if self._claim.tenant:
            attributes["runyard.tenant"] = self._claim.tenant
        if self._agent is not None:
            attributes |= {"gen_ai.agent.name": self._agent, "gen_ai.operation.name": "invoke_agent"}
        name = f"invoke_agent {self._agent}" if self._agent is not None else f"{run.kind} job"
        ids = self._ids(number)
        return tracing.start(name, "consumer", attributes, parent=self._parent(), began=_nanoseconds(began), ids=ids)

    def _parent(self) -> SpanContext | str:
        """Return the context of the span under which the run was accepted, or an invalid context."""
        from opentelemetry.trace import INVALID_SPAN_CONTEXT

        return tracing.valid(self._run.trace_context) or INVALID_SPAN_CONTEXT

    def _ids(self, number: int) -> tracing.SpanIds:
        """Return the ids of the attempt ``number``.

        The ids depend on the time at which the run was accepted. They therefore differ between deployments.
        """
        of_run = f"{self._claim.ref.thread_key}/{self._run.run_id}/{_nanoseconds(self._run.accepted_at)}"
        return tracing.SpanIds(_derived(of_run, 16), _derived(f"{of_run}/{number}", 8))

    def _waited(self, since: datetime) -> None:
        """Record the wait in the queue, from ``since`` to the claim."""
        assert self._run.started_at is not None
        parent = self._run.trace_context or self.span.get_span_context()
        wait = tracing.start("queue_wait", parent=parent, began=_nanoseconds(min(since, self._run.started_at)))
        wait.set_attribute("messaging.destination.name", self._run.queue)
        tracing.end(wait, _nanoseconds(self._run.started_at))

    def _link_before(self, span: Span, number: int, why: str) -> None:
        """Link ``span`` of the attempt ``number`` to the previous attempt."""
        if number < 2 or not (span.is_recording() and tracing.chooses_ids()):
            return
        from opentelemetry.trace import SpanContext

        own = span.get_span_context()
        before = SpanContext(own.trace_id, self._ids(number - 1).span_id, is_remote=True, trace_flags=own.trace_flags)
        tracing.add_link(span, before, why)

    async def _record_lost(self, of_tenant: Backend) -> None:
        """Make the span of the previous attempt, whose worker died."""
        before = await self._attempts_before(of_tenant)
        if not before or before[-1].outcome != "lost" or not tracing.chooses_ids():
            return
        lost = before[-1]
        number = self._run.attempt - 1
        span = self._start(number, began=lost.started_at)
        if len(before) > 1:
            self._link_before(span, number, LINKS.get(before[-2].outcome or "", "retry"))
        tracing.fail(span, "worker_lost")
        span.set_attributes({"runyard.outcome": "lost", "runyard.worker.id": lost.worker_id or ""})
        tracing.end(span, _nanoseconds(lost.ended_at or self._run.started_at))

    async def _attempts_before(self, of_tenant: Backend) -> list[AttemptInfo]:
        """Return the earlier attempts of the run, the oldest first."""
        found: list[AttemptInfo] = []
        cursor: str | None = None
        while True:
            asked = PageRequest(limit=ATTEMPTS_PER_PAGE, cursor=cursor)
            page = await of_tenant.runs.attempts(self._run.thread_id, self._run.run_id, asked)
            found += (attempt for attempt in page.items if attempt.fence < (self._run.fence or 0))
            if (cursor := page.next) is None:
                return found

    async def _source(self, of_tenant: Backend) -> Run | None:
        """Return the run after which a fork begins.

        If this run is a fork job, the fork is the thread that this job makes. If this run is a prompt, the fork is its thread.

        Return None if there is no such run.
        """
        run, thread_id, after = self._run, self._run.thread_id, self._run.after_run_id
        if run.kind == "prompt":
            thread = await of_tenant.threads.thread(thread_id) if run.attempt == 1 else None
            if thread is None or thread.parent_thread_id is None:
                return None
            thread_id, after = thread.parent_thread_id, thread.forked_after_run_id
        return None if after is None else await of_tenant.runs.run(thread_id, after)


def _remote(traceparent: str | None) -> Span:
    """Return a span of another process. This span has a context and no other data."""
    from opentelemetry.trace import NonRecordingSpan

    found = tracing.span_context(traceparent)
    return tracing.NO_SPAN if found is None else NonRecordingSpan(found)


def _derived(text: str, size: int) -> int:
    """Return a number of ``size`` bytes that is derived from ``text`` and is not 0."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1


def _nanoseconds(moment: datetime | None) -> int | None:
    """Return the nanoseconds from 1970 to ``moment``."""
    return None if moment is None else (moment - EPOCH) // timedelta(microseconds=1) * 1000
