"""Write the end of an attempt. After the commit, send the events of that write (E2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from ..domain.runs import ErrorInfo
from ..errors import CancelRequestedError, InvalidInputError, MessageTooLargeError
from ..events.writer import EventEmitter
from ..ports.commands import Write
from ..ports.refs import AttemptToken, RunRef
from ..ports.results import Ended
from ..ports.runs import RunStore
from ..support.batching import Batcher, each_its_own
from ..support.locked_batching import SLOW_SECONDS, LockedBatcher
from ..support.store_retries import patiently
from ..support.tracebacks import TracebackFilter
from .end_records import describe, end_events
from .remainder import Remainder
from .transcript import completed_events

COMPLETIONS_IN_FLIGHT: Final = 4
"""Maximum number of simultaneous calls by which a worker completes runs."""


def completions(runs: RunStore, may_claim_next: Callable[[RunRef], bool]) -> Batcher[Write, Ended]:
    """Return a function that completes a run. Runs that end at the same time are completed in one call of the store.

    ``may_claim_next``: a function that returns whether the completion of a run may claim the next run of its lane. This
    function is called when the completion is sent.
    """

    async def complete(items: Sequence[Write], *, wait: float) -> Sequence[Ended | Exception]:
        for write in items:
            write.claim_next = may_claim_next(write.attempt.ref)
        return await each_its_own(partial(runs.complete, wait=wait), items)

    return LockedBatcher(
        complete, lambda write: write.attempt.thread_key, in_flight=COMPLETIONS_IN_FLIGHT, patience=SLOW_SECONDS
    )


class EndWriter:
    """Writes the end of one attempt. Each method returns the end that was committed.

    The argument ``complete`` commits the ends of many runs together. ``keep``: the filter of tracebacks. Each method raises
    StaleFenceError if another attempt has the run, and the errors of the store.
    """

    def __init__(
        self,
        runs: RunStore,
        complete: Batcher[Write, Ended],
        attempt: AttemptToken,
        stream: EventEmitter,
        keep: TracebackFilter | None,
    ) -> None:
        self._runs = runs
        self._complete = complete
        self._attempt = attempt
        self._stream = stream
        self._keep = keep

    async def complete(self, left: Remainder, value: object = None) -> Ended:
        """Complete the run. ``value``: the result of a fork job. ``value`` replaces the result that an agent set."""
        return await self._write(left, self._last_write(left, value), lambda w: self._complete(w))

    async def suspend(self, left: Remainder) -> Ended:
        """Suspend the run until one of its requests is answered or one of its waits ends."""
        return await self._write(left, self._last_write(left), lambda w: self._runs.suspend(w, left.requests, left.waits))

    async def fail(self, error: BaseException | ErrorInfo, left: Remainder | None = None) -> Ended:
        """End the run with ``error``."""
        left, info = left or Remainder.nothing(), error if isinstance(error, ErrorInfo) else describe(error, self._keep)
        return await self._write(left, self._last_write(left), lambda w: self._runs.fail(w, info))

    async def release(
        self,
        left: Remainder | None = None,
        delay: float = 0.0,
        error: ErrorInfo | None = None,
        until_fewer: int | None = None,
    ) -> Ended:
        """Commit the finished messages of the agent, then release the run and add the usage to the run.

        ``delay``: seconds until the next attempt. ``error``: the error that causes the retry, or None. ``until_fewer``: for a
        fork job only. The fork job continues when fewer than this number of its started runs are unfinished.
        """
        if left is not None and left.messages:
            try:
                await self._save(left)
            except (InvalidInputError, MessageTooLargeError) as refused:
                return await self.fail(refused, left.usage_only())  # every attempt would be refused
        reservation = self._stream.reserve(1)

        async def call() -> Ended:
            return await self._runs.release(
                self._attempt,
                delay=delay,
                error=error,
                first_event=reservation.first,
                until_fewer=until_fewer,
                usage=await left.usage_to_add() if left is not None else None,
            )

        try:
            ended = await patiently(call)
        except BaseException:
            reservation.drop()
            raise
        reservation.fill(end_events(ended, Remainder.nothing()))
        return ended

    async def _save(self, left: Remainder) -> None:
        reservation = self._stream.reserve(len(left.messages))
        try:
            stored = await self._runs.append(self._attempt, left.messages, first_event=reservation.first)
        except CancelRequestedError:
            reservation.drop()  # the release ends the cancelled run
        except BaseException:
            reservation.drop()
            raise
        else:
            reservation.fill(completed_events(stored))

    def _last_write(self, left: Remainder, value: object = None) -> Write:
        return Write(
            attempt=self._attempt,
            messages=left.messages,
            extra=left.extra,
            usage=left.usage,
            result=value if value is not None else left.result,
        )

    async def _write(self, left: Remainder, write: Write, call: Callable[[Write], Awaitable[Ended]]) -> Ended:
        """Make the attempt's last write. Send its events after the commit (E2)."""
        reservation = self._stream.reserve(len(left.messages) + len(left.new_requests) + 1)
        write.first_event = reservation.first

        async def last() -> Ended:
            write.usage = await left.usage_to_add()
            return await call(write)

        try:
            ended = await patiently(last)
        except (InvalidInputError, MessageTooLargeError) as error:
            reservation.drop()
            more = left.messages or left.extra or left.parked or write.result is not None
            if not (more or left.usage):
                raise
            return await self.fail(error, left.usage_only() if more else None)  # every attempt would be refused
        except BaseException:
            reservation.drop()
            raise
        reservation.fill(end_events(ended, left))
        return ended
