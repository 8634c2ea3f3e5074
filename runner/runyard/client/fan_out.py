"""Fan-out: try several messages on the same snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, get_args

from pydantic import TypeAdapter

from ..domain.agent_names import wanted
from ..domain.messages import Message, check_message
from ..domain.quoting import brief
from ..domain.runs import ForkManyResult, StopAt
from ..domain.validation import check_id, new_id
from ..errors import InvalidInputError, TooManyCandidatesError
from ..ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from .arguments import check_webhook_url, options
from .run_handle import RunHandle
from .runs import RunCalls, accept_request

MAX_CANDIDATES: Final = 100
"""Maximum number of messages in one fan-out."""
MAX_PARALLEL: Final = 8
"""Default number of candidates that run at once."""


class FanOutCalls(RunCalls):
    """Start fan-outs and wait for their results."""

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
        """Try each of ``messages`` on the same snapshot of ``src``, as one job (F11).

        ``threads``: True makes each candidate a run on a fork of its own. The fork stays, and the run may ask humans. False
        makes each candidate a probe. A probe writes to no thread (F9). ``stop``: ``"first"`` takes the first candidate that
        succeeds and cancels the others. ``judge``: the name of an agent of the App that chooses among the candidates that
        succeeded. The judge reads the snapshot and a message with the candidates. The judge sets ``ctx.result`` to the number
        of a candidate (from 0), or answers with this number. ``max_parallel``: the number of candidates that run at once.
        ``run_id``: the job's id. A repetition with the same id gets the same result. ``timeout``: seconds for each candidate,
        and for the judge. ``wait``: seconds until the call raises TimeoutError. The job continues after this error.

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
        return _result().validate_python(result.value, extra="ignore")

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
        """Enqueue the job of :meth:`fork_many` without waiting for it.

        A call of :meth:`fork_many` with the same arguments returns the job's result. A cancel of the job stops its probes, but
        not the runs on its threads. ``webhook``: a URL that receives the job's end.

        Raises ThreadNotFoundError, RunNotCompletedError, RunConflictError, TooManyCandidatesError, InvalidInputError.
        """
        job = check_id(run_id, "run_id") if run_id is not None else new_id()
        fan = FanOut(
            messages=_checked(messages),
            max_parallel=max_parallel,
            stop=stop,
            judge=self._agent(judge),
            threads=threads,
        )
        _check(fan)
        return await accept_request(
            self,
            AcceptRequest(
                thread_id=src,
                run_id=job,
                kind="fork_many",
                agent=wanted(self.namespace, agent),
                options=options(timeout=timeout, webhook=check_webhook_url(webhook)),
                fork=ForkRequest(src=src, new=job, cut=Cut(after_run_id=after_run_id), agent=self._agent(agent), fan=fan),
            ),
        )


def _checked(messages: Sequence[str | Message]) -> list[Message]:
    if isinstance(messages, str) or not messages:
        raise InvalidInputError("messages is a list with one message for each candidate", field="messages")
    if len(messages) > MAX_CANDIDATES:
        raise TooManyCandidatesError(
            f"one fan-out takes at most {MAX_CANDIDATES} messages, got {len(messages)}; split them into several fan-outs",
            most=MAX_CANDIDATES,
            given=len(messages),
        )
    return [Message.user(message) if isinstance(message, str) else check_message(message) for message in messages]


def _check(fan: FanOut) -> None:
    if fan.stop not in get_args(StopAt):
        raise InvalidInputError(f"stop is one of {', '.join(get_args(StopAt))}, got {brief(fan.stop)}", field="stop")
    if fan.stop == "first" and fan.judge is not None:
        raise InvalidInputError('stop="first" takes the first that succeeds; a judge needs stop="all"', field="judge")
    if not 1 <= fan.max_parallel <= MAX_CANDIDATES:
        raise InvalidInputError(f"max_parallel is 1 to {MAX_CANDIDATES}, got {fan.max_parallel}", field="max_parallel")


@cache
def _result() -> TypeAdapter[ForkManyResult]:
    return TypeAdapter(ForkManyResult)
