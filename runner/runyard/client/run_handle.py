"""The handle of a run, and the result of a run.

A handle reads the run, waits for the run, streams its events and cancels the run. To wait for a run, the handle follows the
run's events. :mod:`runyard.events.run_stream` handles lost and delayed events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..domain.events import STREAM_ENDS, Event
from ..domain.fan_outs import MAX_CANDIDATES, Candidate, FanOutProgress
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.runs import ErrorInfo, Run
from ..domain.size_limits import JsonValue
from ..domain.states import RunStatus
from ..errors import BY_CODE, RunNotCompletedError, RunyardError, from_dict
from ..events.inherited_runs import check_source
from ..ports.queries import PageRequest
from ..ports.results import Page

if TYPE_CHECKING:
    from .runs import RunCalls

STATUS_SECONDS: Final = 1.0
"""Maximum seconds to read the status of the run for the message of a TimeoutError."""


@dataclass(frozen=True)
class RunResult:
    """The result of a run that has ended or is suspended.

    ``messages``: the messages that the run wrote. ``requests``: the pending requests of a suspended run. ``omitted``: the names
    of the incomplete lists: ``messages``, ``requests`` or both. A list is incomplete if its entries together have more bytes
    than the caller allowed.
    """

    run: Run
    messages: list[Message] = field(default_factory=list)
    requests: list[HitlRequest] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)

    @property
    def status(self) -> RunStatus:
        return self.run.status

    @property
    def ok(self) -> bool:
        """True if the run completed."""
        return self.run.status is RunStatus.COMPLETED

    @property
    def error(self) -> ErrorInfo | None:
        return self.run.error

    @property
    def value(self) -> JsonValue:
        """The run's result as the agent set it, or the result of a fork job."""
        return self.run.result

    @property
    def text(self) -> str:
        """The text of the last assistant message of a completed run. The text is empty if the run wrote no such message.

        If the run did not complete, its last text is not an answer. The property then raises the errors of
        :meth:`raise_for_status`.
        """
        return self.raise_for_status().last_text

    @property
    def last_text(self) -> str:
        """The text of the last assistant message, whatever the status of the run is.

        The text is empty if there is no such message.
        """
        return next((message.text for message in reversed(self.messages) if message.role == "assistant"), "")

    def raise_for_status(self) -> RunResult:
        """Return self if the run completed. Raises the run's error if this error is one of :mod:`runyard.errors`.

        For any other error, raises RunNotCompletedError with the run's status and error.
        """
        if self.ok:
            return self
        if self.error is not None and self.error.code in BY_CODE:
            raise from_dict(self.error.model_dump(mode="json"))
        why = f": {self.error.headline}" if self.error else ""
        raise RunNotCompletedError(
            f"run {self.run.run_id!r} is {self.run.status}{why}", run_id=self.run.run_id, status=str(self.run.status)
        )


class RunHandle:
    """A handle of one run of a thread. Each method calls the deployment.

    ``created``: True if an enqueue returned this handle and created the run. ``accepted``: the run that the enqueue returned,
    or None if the handle is not from an enqueue.
    """

    def __init__(
        self, client: RunCalls, thread_id: str, run_id: str, *, created: bool = False, accepted: Run | None = None
    ) -> None:
        self._client = client
        self.thread_id = thread_id
        self.run_id = run_id
        self.created = created
        self.accepted = accepted

    def __repr__(self) -> str:
        return f"RunHandle(thread_id={self.thread_id!r}, run_id={self.run_id!r})"

    @property
    def id(self) -> str:
        """The same as ``run_id``."""
        return self.run_id

    async def run(self) -> Run:
        """Read the run. Raises RunNotFoundError."""
        return await self._client.run(self.thread_id, self.run_id)

    async def status(self) -> RunStatus:
        """Read the status of the run. Raises RunNotFoundError."""
        return (await self.run()).status

    async def explain(self) -> str:
        """Return one sentence that explains the present status of the run (R12)."""
        return await self._client.explain(self.thread_id, self.run_id)

    async def cancel(self, *, keep: bool = False) -> Run:
        """Cancel the run durably (R10). ``keep``: whether the messages of the run stay in the context of later runs."""
        return await self._client.cancel(self.thread_id, self.run_id, keep=keep)

    async def progress(self) -> FanOutProgress:
        """Return the progress of a fan-out. See :meth:`Client.fan_out_progress`."""
        return await self._client.backend.fan_outs.progress(self.thread_id, self.run_id)

    async def candidates(self, *, limit: int = 100, cursor: str | None = None) -> Page[Candidate]:
        """Return a page of the candidates of a fan-out. See :meth:`Client.candidates`."""
        page = PageRequest(limit=limit, cursor=cursor, most=MAX_CANDIDATES)
        return await self._client.backend.fan_outs.candidates(self.thread_id, self.run_id, page)

    def stream(self, last_event_id: str | None = None) -> AsyncGenerator[Event]:
        """Yield the events after ``last_event_id``, live, until the run ends or is suspended (E1, E2)."""
        return self._client.stream(self.thread_id, self.run_id, last_event_id)

    async def result(self, timeout: float | None = None, most: int | None = None) -> RunResult:
        """Wait until the run has ended or is suspended. Return the result of the run, even if the run failed.

        ``timeout``: seconds to wait. For 0, the call checks once. For None, the call waits without a limit. ``most``: the
        approximate maximum number of bytes of the messages. The bytes of the requests are counted separately, with the same
        maximum. If ``most`` is None, all messages and requests are returned. If the run is suspended, answer its requests, and
        call this method again.

        Raises TimeoutError with the status of the run. The run continues after this error. Raises RunNotFoundError, also for an
        inherited run whose thread was deleted. Raises ResultExpiredError for a fork job whose result has been deleted.
        """
        try:
            async with asyncio.timeout(timeout or None) as bound:
                run = await self.run()
                while not run.stopped:
                    if timeout == 0:
                        raise TimeoutError(self._late(timeout, run.status))
                    run = await self._next_stop(run)
                result = await self._client.result_of(run, most)
                await check_source(self._client.backend.runs, self.thread_id, run)
                return result
        except TimeoutError:
            if not bound.expired():
                raise
        status: RunStatus | None = None
        with suppress(RunyardError, TimeoutError):  # the timeout is the error to report
            async with asyncio.timeout(STATUS_SECONDS):
                status = await self.status()
        raise TimeoutError(self._late(timeout, status))

    def _late(self, timeout: float | None, status: RunStatus | None) -> str:
        """Return the message of a TimeoutError. ``status``: None if the status could not be read."""
        now = "its status could not be read" if status is None else f"it is {status}"
        return f"run {self.run_id} of thread {self.thread_id} has not ended after {timeout:g} s; {now}"

    async def _next_stop(self, run: Run) -> Run:
        async with aclosing(self.stream(run.event_id)) as events:
            async for event in events:
                if event.type in STREAM_ENDS:
                    run = await self.run()
                    if run.stopped:
                        return run
        return await self.run()
