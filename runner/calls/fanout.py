"""Several messages tried on the same snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import cache
from typing import Final, get_args

from pydantic import TypeAdapter

from ..errors import InvalidInputError, TooManyCandidatesError
from ..exchange import AcceptRequest, Cut, FanOut, ForkRequest
from ..handle import RunHandle
from ..legible import brief
from ..models import ForkManyResult, Message, StopAt, check_id, check_message, new_id
from .base import options, told
from .runs import RunCalls

MAX_CANDIDATES: Final = 100
"""Messages that one fan-out takes."""
MAX_PARALLEL: Final = 8
"""How many of them run at once unless the caller says otherwise."""

_CANDIDATES: Final = uuid.UUID("5b0f3c34-9d0b-5c0e-8b8e-3d7a6a1f90c2")


def candidate_id(src: str, run_id: str, n: int) -> str:
    """The id of the ``n``-th candidate of the job ``run_id``: of its thread, or what a probe has for a run id."""
    return str(uuid.uuid5(_CANDIDATES, f"{src}/{run_id}/{n}"))


class FanOutCalls(RunCalls):
    """Fan out, and wait for what comes of it."""

    async def fork_many(
        self,
        src: str,
        after_run_id: str | None = None,
        *,
        messages: Sequence[str | Message],
        threads: bool = False,
        stop: StopAt = "all",
        judge: str | None = None,
        max_parallel: int = MAX_PARALLEL,
        agent: str | None = None,
        run_id: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> ForkManyResult:
        """Try each of ``messages`` on the same snapshot of ``src``, as one job (semantics: F11).

        ``threads``: each gets a fork with a run of its own, which stays and may ask humans; else each is a probe that writes to
        no thread (semantics: F9). ``stop``: ``"first"`` takes the first that succeeds and cancels the others. ``judge``: the
        name of an agent of the App that chooses among those that succeeded; it sees the snapshot and one more message that
        shows them, and sets ``ctx.result`` to the number of one (from 0) or answers with it. ``max_parallel``: how many run at
        once. ``run_id``: the job's own id, so that a repetition gets the same answer. ``timeout``: seconds for each candidate,
        and for the judge. ``wait``: seconds until the caller gives up with TimeoutError; the job goes on.

        Raises ThreadNotFoundError, RunNotCompletedError, HitlNotAllowedError, TooManyCandidatesError, InvalidInputError,
        ResultExpiredError.
        """
        job = await self.enqueue_fork_many(
            *(src, run_id),
            after_run_id=after_run_id,
            messages=messages,
            threads=threads,
            stop=stop,
            judge=judge,
            max_parallel=max_parallel,
            agent=agent,
            timeout=timeout,
        )
        result = (await job.result(wait)).raise_for_status()
        return _result().validate_python(result.value)

    async def enqueue_fork_many(
        self,
        src: str,
        run_id: str | None = None,
        *,
        messages: Sequence[str | Message],
        after_run_id: str | None = None,
        threads: bool = False,
        stop: StopAt = "all",
        judge: str | None = None,
        max_parallel: int = MAX_PARALLEL,
        agent: str | None = None,
        timeout: float | None = None,
        webhook: str | None = None,
    ) -> RunHandle:
        """The job of :meth:`fork_many`, not waited for. Called with the same ``run_id``, that returns its result. Cancelling
        the job stops its probes; threads that it started are cancelled by themselves. ``webhook``: a URL that is told when the
        job ends.

        Raises ThreadNotFoundError, RunNotCompletedError, RunConflictError, TooManyCandidatesError, InvalidInputError.
        """
        job = check_id(run_id, "run_id") if run_id is not None else new_id()
        fan = FanOut(
            messages=_checked(messages),
            max_parallel=max_parallel,
            stop=stop,
            judge=check_id(judge, "judge") if judge is not None else None,
            threads=threads,
        )
        _check(fan)
        return await self._accept(
            AcceptRequest(
                thread_id=check_id(src, "thread_id"),
                run_id=job,
                kind="fork_many",
                agent=agent,
                options=options(timeout=timeout, webhook=told(webhook)),
                fork=ForkRequest(src=src, new=job, cut=Cut(after_run_id=after_run_id), agent=agent, fan=fan),
            )
        )


def _checked(messages: Sequence[str | Message]) -> list[Message]:
    if isinstance(messages, str) or not messages:
        raise InvalidInputError("messages is a list with one message for each candidate", field="messages")
    if len(messages) > MAX_CANDIDATES:
        raise TooManyCandidatesError(
            f"one fan-out takes {MAX_CANDIDATES} messages, got {len(messages)}; make several of it",
            most=MAX_CANDIDATES,
            given=len(messages),
        )
    return [Message.user(message) if isinstance(message, str) else check_message(message) for message in messages]


def _check(fan: FanOut) -> None:
    if fan.stop not in get_args(StopAt):
        raise InvalidInputError(f"stop is one of {', '.join(get_args(StopAt))}, got {brief(fan.stop)}", field="stop")
    if fan.stop == "first" and fan.judge is not None:
        raise InvalidInputError('the first that succeeds wins with stop="first", so a judge has no choice', field="judge")
    if not 1 <= fan.max_parallel <= MAX_CANDIDATES:
        raise InvalidInputError(f"max_parallel is 1 to {MAX_CANDIDATES}, got {fan.max_parallel}", field="max_parallel")


@cache
def _result() -> TypeAdapter[ForkManyResult]:
    return TypeAdapter(ForkManyResult)
