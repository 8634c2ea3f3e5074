"""The store of runs: the verbs of a run and of its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..domain.events import Event
from ..domain.messages import Message, Usage
from ..domain.requests import HitlRequest
from ..domain.runs import AttemptInfo, ErrorInfo, Run
from ..domain.states import RunStatus
from ..domain.waits import Wait
from ..errors import RunyardError
from .commands import AcceptRequest, PromptSeries, Write
from .queries import ALL_RUNS, FIRST_PAGE, PageRequest, RunFilter
from .refs import AttemptToken, RunRef
from .results import (
    Aborted,
    Accepted,
    Admitted,
    Changed,
    Claim,
    Ended,
    Ledger,
    Page,
    Responded,
    Signalled,
    Step,
)
from .scheduling import EVENTS_PER_READ


class RunStore(Protocol):
    """The verbs of a run (:mod:`runyard.domain.states`).

    A store is bound to one tenant. The verbs of an attempt use the tenant of the run.

    ``accept_many``: accept prompts, and return the run or the error of each, in order. Prompts of one thread keep their order.
    If a prompt fails with one of OUTAGES, the later prompts are not accepted and have the same error. An existing run may lack
    large values (``Run.omitted``). ``series``: an object that the successive calls of one caller share. A store that is not
    remote may get the second call of a series before it has returned from the first. If the first call could not reach the
    store, the second call sends no prompt (:class:`~.commands.PromptSeries`).

    ``admit``: admit due runs, apply the deadlines of HITL requests and waits, and fail runs that did not start by their
    ``expires_at``. Each of these three tasks covers at most ``limit`` threads of all tenants. The reconciler calls ``admit`` in
    each pass.

    ``claim`` and ``complete``: ``wait`` is the number of seconds to wait for a thread that another transaction has locked.
    After this time the outcome of a claim is ``skipped``, and the result of a completion is LockedError. The other claims and
    completions of the same call are stored. Without ``wait``, ``complete`` waits for a lock as long as the other verbs do.

    ``suspend``: suspend the run until one of ``requests`` is answered or one of ``waits`` ends. If an answer is already stored
    or a wait has already ended, the run stays RUNNING. A request with ``created_at`` was stored before. Its event is not sent
    again.

    ``start_child``: accept a child of the attempt's run, and store the wait for its end. The ``job`` of ``request`` is the
    attempt's run. The id of the wait is the child's run id. Raises RunConflictError if another run has this id. Raises
    StaleFenceError, CancelRequestedError, ChildDeadlockError, TooManyChildrenError, and the errors of ``accept``.

    ``recent``: return up to ``limit`` messages of the context, the last one first. ``before``: the oldest message that the
    previous call returned. A page may have fewer messages. Only an empty page means that there are no more messages. The
    messages are not grouped by run.

    ``signal``: send a signal to a thread. A suspended run that waits for the signal continues. Without such a run the signal is
    kept. Raises ThreadNotFoundError, SignalConflictError, TooManySignalsError.

    ``statuses``: return the status of each of ``runs`` (pairs of thread id and run id), or None for an unknown run.

    ``answered``: return the thread's request with the answer ``response_id``, or None.

    ``delete_run``: delete the content of a run that ended and is in no context. Messages that a fork or a branch shows are
    kept. The run's row stays, with ``deleted_at``. No list shows the run. A repetition changes nothing. Raises RunInUseError.

    ``input`` of ``start_step``: the arguments of the step as text, at most SHORT_CHARACTERS characters
    (:mod:`runyard.domain.timeline`). The start and the input are stored in one commit.

    ``isolate``: record that an attempt is executed in a separate process. ``bury``: record that this process died. ``how``: the
    cause of the death, as text.

    ``release`` with ``until_fewer``: submit the fan-out again when fewer than this number of its runs are live.

    The verbs that end an attempt add their argument ``usage`` to the total of the run, even after a cancel. The argument
    ``usage`` of ``append`` and ``finish_step`` is the total so far. For each amount, the record keeps the larger of the stored
    and the given value.

    ``run_events``: return the events after the event with the id ``after``. One call returns at most ``limit`` events, and
    about EVENT_BYTES_PER_READ bytes in total. An empty list means the end.
    """

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted: ...
    async def accept_many(
        self, requests: Sequence[AcceptRequest], series: PromptSeries | None = None
    ) -> list[Accepted | RunyardError]: ...
    async def admit(self, limit: int = 100) -> Admitted: ...
    async def claim(self, worker_id: str, refs: Sequence[RunRef], *, wait: float = 0.0) -> list[Claim]: ...
    async def context(self, attempt: AttemptToken) -> list[Message]: ...
    async def recent(self, attempt: AttemptToken, limit: int, before: Message | None = None) -> list[Message]: ...
    async def ledger(self, attempt: AttemptToken) -> Ledger: ...
    async def append(
        self, attempt: AttemptToken, messages: Sequence[Message], *, first_event: int = 1, usage: Usage | None = None
    ) -> list[Message]: ...
    async def start_step(self, attempt: AttemptToken, key: str, *, input: str | None = None) -> Step | None: ...
    async def finish_step(self, attempt: AttemptToken, key: str, result: Any, *, usage: Usage | None = None) -> None: ...
    async def complete(self, writes: Sequence[Write], *, wait: float | None = None) -> list[Ended | Exception]: ...
    async def suspend(self, write: Write, requests: Sequence[HitlRequest], waits: Sequence[Wait] = ()) -> Ended: ...
    async def fail(self, write: Write, error: ErrorInfo) -> Ended: ...
    async def release(
        self,
        attempt: AttemptToken,
        *,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        first_event: int | None = 1,
        until_fewer: int | None = None,
        usage: Usage | None = None,
    ) -> Ended: ...
    async def isolate(self, attempt: AttemptToken) -> None: ...
    async def bury(self, attempt: AttemptToken, how: str) -> Ended: ...
    async def respond(
        self,
        answer: Any,
        *,
        thread_id: str | None = None,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Responded: ...
    async def start_child(self, attempt: AttemptToken, request: AcceptRequest) -> Accepted: ...
    async def signal(
        self, thread_id: str, name: str, value: Any, *, signal_id: str, sent_by: str | None = None
    ) -> Signalled: ...
    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed: ...
    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted: ...
    async def redrive(self, thread_id: str, run_id: str) -> Changed: ...
    async def delete_run(self, thread_id: str, run_id: str) -> None: ...
    async def run(self, thread_id: str, run_id: str) -> Run | None: ...
    async def statuses(self, runs: Sequence[tuple[str, str]]) -> list[RunStatus | None]: ...
    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]: ...
    async def explain(self, thread_id: str, run_id: str) -> str: ...
    async def attempts(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[AttemptInfo]: ...
    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]: ...
    async def request(self, request_id: str) -> HitlRequest | None: ...
    async def answered(self, thread_id: str, response_id: str) -> HitlRequest | None: ...
    async def last_message_id(self, thread_id: str, run_id: str) -> str | None: ...
    async def run_events(self, ref: RunRef, after: str | None = None, *, limit: int = EVENTS_PER_READ) -> list[Event]: ...
