"""A run in the hands of whoever enqueued it: ask, wait, watch, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .errors import BY_CODE, RunNotCompletedError, from_dict
from .models import STREAM_ENDS, ErrorInfo, Event, HitlRequest, JsonValue, Message, Run
from .states import RunStatus
from .streams import follow_run, stopped

if TYPE_CHECKING:
    from .calls.runs import RunCalls


@dataclass(frozen=True)
class RunResult:
    """Where a run stopped: ended, or suspended with its ``requests``. ``messages`` are those that the run wrote. ``omitted``:
    which of the two are not whole, because so many bytes were asked for at most."""

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
        """What the agent set as the run's result, or what a fork job returned."""
        return self.run.result

    @property
    def text(self) -> str:
        """The text of the last assistant message, empty if there is none."""
        return next((message.text for message in reversed(self.messages) if message.role == "assistant"), "")

    def raise_for_status(self) -> RunResult:
        """Return self if the run completed.

        Raises the error that the run failed with if it is one of runner.errors, else RunNotCompletedError naming status and
        error.
        """
        if self.ok:
            return self
        if self.error is not None and self.error.code in BY_CODE:
            raise from_dict(self.error.model_dump(mode="json"))
        why = f": {self.error.message}" if self.error else ""
        raise RunNotCompletedError(
            f"run {self.run.run_id!r} is {self.run.status}{why}", run_id=self.run.run_id, status=str(self.run.status)
        )


class RunHandle:
    """One run of a thread. Cheap to make and stateless: everything is asked anew. ``created`` is False for a repeated
    enqueue. ``accepted``: the run as an enqueue found it, None for a handle that was made without one."""

    def __init__(
        self, client: RunCalls, thread_id: str, run_id: str, *, created: bool = False, accepted: Run | None = None
    ) -> None:
        self._client = client
        self.thread_id = thread_id
        self.id = run_id
        self.created = created
        self.accepted = accepted

    def __repr__(self) -> str:
        return f"RunHandle(thread_id={self.thread_id!r}, id={self.id!r})"

    async def run(self) -> Run:
        """The run as Postgres knows it. Raises RunNotFoundError."""
        return await self._client.run(self.thread_id, self.id)

    async def status(self) -> RunStatus:
        """Where the run stands. Raises RunNotFoundError."""
        return (await self.run()).status

    async def explain(self) -> str:
        """One sentence: why the run is not running, or what it does (semantics: R12)."""
        return await self._client.explain(self.thread_id, self.id)

    async def cancel(self, *, keep: bool = False) -> Run:
        """Cancel the run durably (semantics: R10). ``keep``: what it said so far stays in the conversation."""
        return await self._client.cancel(self.thread_id, self.id, keep=keep)

    async def stream(self, last_event_id: str | None = None) -> AsyncGenerator[Event]:
        """Events after ``last_event_id``, live, until the run ends or is suspended (semantics: E1, E2)."""
        async with aclosing(self._client.stream(self.thread_id, self.id, last_event_id)) as events:
            async for event in events:
                yield event

    async def result(self, timeout: float | None = None, most: int | None = None) -> RunResult:
        """Wait until the run ended or is suspended. A failure is an answer too: see :meth:`RunResult.raise_for_status`.

        ``timeout``: seconds; 0 looks once, None waits for ever. ``most``: bytes of messages, and of requests, about; None for
        all. After the answer to a suspended run, call it again. Raises TimeoutError (the run goes on), RunNotFoundError, and
        ResultExpiredError for a fork job whose result is kept no longer.
        """
        async with asyncio.timeout(timeout or None):
            run = await self.run()
            while not stopped(run):
                if timeout == 0:
                    raise TimeoutError
                run = await self._next_stop(run)
            return await self._client.result_of(run, most)

    async def _next_stop(self, run: Run) -> Run:
        backend = self._client.backend
        async with aclosing(follow_run(backend, self.thread_id, self.id, run.event_id)) as events:
            async for event in events:
                if event.type in STREAM_ENDS:
                    run = await self.run()
                    if stopped(run):
                        return run
        return await self.run()
