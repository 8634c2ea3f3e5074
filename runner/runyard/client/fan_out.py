"""Calls that try several messages on the same snapshot, follow the progress of such a fan-out, and read its answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from time import monotonic
from typing import Final, get_args

from pydantic import TypeAdapter

from ..domain.agent_names import wanted
from ..domain.derived_ids import first_prompt_id
from ..domain.fan_outs import MAX_CANDIDATES, MAX_PARALLEL_CANDIDATES, Candidate, FanOutProgress, ForkManyResult
from ..domain.messages import Message, check_message
from ..domain.quoting import brief
from ..domain.runs import ForkOnceResult, StopAt
from ..domain.validation import check_id, new_id
from ..errors import InvalidInputError, TooManyCandidatesError
from ..ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from ..ports.queries import PageRequest
from ..ports.results import Page
from ..support.turns import turn
from .accepting import accept_request
from .arguments import check_webhook_url, options
from .run_handle import RunHandle, RunResult
from .runs import RunCalls

MAX_PARALLEL: Final = 8
"""Default number of candidates that run at once."""


class FanOutCalls(RunCalls):
    """Start fan-outs, follow them, and read their candidates."""

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
        """Try each of ``messages``, at most 1,000, on the same snapshot of ``src``, in one fork job (F11).

        The result has every answer. :meth:`candidates` reads the answers of a large fan-out in pages. ``threads``: if True,
        each candidate is a run on its own fork of ``src``. The fork is kept, and the run may ask humans. If False, each
        candidate is a probe, which writes to no thread (F9). ``stop``: ``"first"`` takes the first candidate that succeeds and
        cancels the others. ``judge``: the name of an agent of the App. This agent chooses among the candidates that succeeded.
        The judge reads the snapshot and a message with the candidates. The judge chooses a candidate by its number, counted
        from 0. The judge sets this number as ``ctx.result``, or answers with the number. ``max_parallel``: the number of
        candidates that run at once, at most 100. ``run_id``: the run id of the fork job. A repetition with the same id gets
        the same result. ``timeout``: maximum seconds for each candidate, and for the judge. ``wait``: seconds until the call
        raises TimeoutError. The fork job continues after this error.

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
        winner, verdict = choice_of(await job.result(wait))
        results: list[Candidate] = []
        cursor: str | None = None
        while True:
            page = await self.candidates(src, job.run_id, cursor=cursor)
            results += [await self._whole(candidate) for candidate in page.items]
            if (cursor := page.next) is None:
                break
        return ForkManyResult(results, winner, verdict, (await self.fan_out_progress(src, job.run_id)).usage)

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
        """Enqueue the fork job of :meth:`fork_many` without waiting for its end.

        :meth:`~RunHandle.progress` and :meth:`~RunHandle.candidates` of the returned handle follow the fork job. A later call
        of :meth:`fork_many` with the same arguments returns the result of the fork job. A cancel of the fork job stops its
        probes, but not the runs of candidates on their threads. ``webhook``: a URL that receives the end of the fork job.

        Raises ThreadNotFoundError, RunNotCompletedError, RunConflictError, TooManyCandidatesError, InvalidInputError.
        """
        job = check_id(run_id, "run_id") if run_id is not None else new_id()
        fan = FanOut(
            messages=await _checked(messages),
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

    async def fan_out_progress(self, thread_id: str, run_id: str) -> FanOutProgress:
        """Return the number of a fan-out's candidates in each status, and the usage so far (F14).

        ``thread_id``: the id of the source. ``run_id``: the id of the fork job, live or ended.

        Raises RunNotFoundError, ThreadNotFoundError, ResultExpiredError. Raises InvalidInputError for a run that is no
        fan-out.
        """
        return await self.backend.fan_outs.progress(thread_id, run_id)

    async def candidates(self, thread_id: str, run_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Candidate]:
        """Return a page of the candidates of a fan-out, in the order of the messages (F15).

        ``limit``: at most 1,000. A page ends at about 8 MiB, and can therefore have fewer candidates than ``limit``. The last
        page is the page whose ``next`` is None. The answer of a probe is always complete. If the messages of a candidate with
        a thread do not fit into a page, only the last messages are returned, and :attr:`Candidate.omitted` says so.

        Raises RunNotFoundError, ThreadNotFoundError, InvalidCursorError, ResultExpiredError. Raises InvalidInputError for a
        run that is no fan-out, and for a ``limit`` out of range.
        """
        page = PageRequest(limit=limit, cursor=cursor, most=MAX_CANDIDATES)
        return await self.backend.fan_outs.candidates(thread_id, run_id, page)

    async def _whole(self, candidate: Candidate) -> Candidate:
        """Return the candidate with all its messages, including the messages that its page omits."""
        if "messages" not in candidate.omitted or candidate.thread_id is None:
            return candidate
        run = await self.run(candidate.thread_id, first_prompt_id(candidate.thread_id))
        result = await self.result_of(run)
        return candidate.model_copy(update={"messages": result.messages, "omitted": []})


def choice_of(result: RunResult) -> tuple[int | None, ForkOnceResult | None]:
    """Return the winner and the verdict of a fan-out that has ended.

    If the fork job did not complete, raise the error of the fork job.
    """
    value = result.raise_for_status().value
    assert isinstance(value, dict)
    winner, verdict = value.get("winner"), value.get("verdict")
    said = _verdict().validate_python(verdict, extra="ignore") if verdict is not None else None
    return (winner if isinstance(winner, int) else None), said


async def _checked(messages: Sequence[str | Message]) -> list[Message]:
    if isinstance(messages, str) or not messages:
        raise InvalidInputError("messages is a list with one message for each candidate", field="messages")
    if len(messages) > MAX_CANDIDATES:
        raise TooManyCandidatesError(
            f"one fan-out takes at most {MAX_CANDIDATES} messages, got {len(messages)}; split them into several fan-outs",
            most=MAX_CANDIDATES,
            given=len(messages),
        )
    checked: list[Message] = []
    since = monotonic()
    for message in messages:
        checked.append(Message.user(message) if isinstance(message, str) else check_message(message))
        since = await turn(since)
    return checked


def _check(fan: FanOut) -> None:
    if fan.stop not in get_args(StopAt):
        raise InvalidInputError(f"stop is one of {', '.join(get_args(StopAt))}, got {brief(fan.stop)}", field="stop")
    if fan.stop == "first" and fan.judge is not None:
        raise InvalidInputError('stop="first" takes the first candidate that succeeds; a judge needs stop="all"', field="judge")
    if not 1 <= fan.max_parallel <= MAX_PARALLEL_CANDIDATES:
        raise InvalidInputError(f"max_parallel is 1 to {MAX_PARALLEL_CANDIDATES}, got {fan.max_parallel}", field="max_parallel")


@cache
def _verdict() -> TypeAdapter[ForkOnceResult]:
    return TypeAdapter(ForkOnceResult)
