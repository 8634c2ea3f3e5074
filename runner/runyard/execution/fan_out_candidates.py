"""Candidates of a fan-out with threads. Each candidate is a fork of the source, with one run (F11).

The fork job holds no slot while these runs are executed. An attempt of the fork job records the candidates that have ended,
starts some of the unstarted candidates, and then releases the fork job. The fork job continues when fewer than ``until_fewer``
of these runs are unfinished. ``must_wait`` in ``postgres/functions/startable.sql`` checks this condition. This function also
makes a fork job wait for the run at its cut (F5). The ids of the candidates are derived from the ids of the fork job, so that
a later attempt finds the candidates. Each candidate is started in separate transactions, so that no transaction holds row
locks for long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..client.accepting import accept_request
from ..client.client import Client
from ..domain.derived_ids import candidate_id, first_prompt_id
from ..domain.fan_outs import CandidateStatus, key_of, number_of, outcome_of, recorded_outcome, stop_reason_of
from ..domain.messages import Message, Usage
from ..domain.runs import Run
from ..domain.size_limits import JsonObject
from ..domain.states import ENDED
from ..errors import QueueFullError, ResultExpiredError, RunEndedError, RunNotFoundError, ThreadNotFoundError
from ..ports.commands import AcceptRequest
from ..ports.fan_outs import ProbeEnd
from ..ports.results import Claim, Ledger
from ..ports.stores import Backend
from ..support import metrics
from ..support.store_retries import patiently
from . import fork_runs


@dataclass(frozen=True, slots=True)
class Later:
    """The fork job continues in ``delay`` seconds, or when fewer than ``until_fewer`` of the runs that it started are
    unfinished."""

    delay: float = 0.0
    until_fewer: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of all candidates.

    ``good``: the numbers of the candidates that succeeded. ``winner``: the winner of ``stop="first"``, or None.
    """

    good: list[int]
    winner: int | None


def ended_in(ledger: Ledger) -> dict[int, CandidateStatus]:
    """Return the candidates that earlier attempts recorded as ended, by number."""
    found = {number_of(key): recorded_outcome(step.outcome, step.result) for key, step in ledger.steps.items()}
    return {n: outcome for n, outcome in found.items() if n is not None and outcome is not None}


class ThreadCandidates:
    """The candidates of a fan-out, in one attempt of its fork job.

    ``announce``: a function that is called for each end, with number, status and count.
    """

    def __init__(
        self, backend: Backend, claim: Claim, ledger: Ledger, announce: Callable[[int, CandidateStatus, int], None]
    ) -> None:
        assert claim.run is not None and claim.attempt is not None
        self._client = Client(backend.for_tenant(claim.tenant), app_version=claim.run.app_version, namespace="")
        self._backend = self._client.backend
        self._job, self._attempt, self._ledger, self._announce = claim.run, claim.attempt, ledger, announce
        self._request = fork_runs.request_of(claim)
        assert self._request.fan is not None
        self._fan = self._request.fan
        self._ids = [candidate_id(self._job.thread_id, self._job.run_id, n) for n in range(self._fan.total)]

    async def advance(self) -> Settled | Later:
        """Record the candidates that have ended, and start further candidates until ``max_parallel`` are unfinished.

        Return :class:`Later` if the result needs runs that are unfinished.
        """
        ended = ended_in(self._ledger)
        begun = {n for key in self._ledger.steps if (n := number_of(key)) is not None}
        waiting = [n for n in range(self._fan.total) if n not in begun]
        live = await self._settle(sorted(begun - ended.keys()), waiting[: self._fan.max_parallel], ended)
        winner = await self._first(ended) if self._fan.stop == "first" else None
        if winner is None:
            later = await self._start([n for n in waiting if n not in live and n not in ended], live)
            if later is not None:
                return later
        await self._record(live, [await self._cancelled(n) for n in live], ended)
        return Settled(sorted(n for n, outcome in ended.items() if outcome == "completed"), winner)

    async def _settle(self, begun: Sequence[int], next_ones: Sequence[int], ended: dict[int, CandidateStatus]) -> list[int]:
        """Record the candidates that have ended, and add them to ``ended``. Return the unfinished candidates.

        ``next_ones``: the candidates that an attempt starts next. An earlier attempt may have started these candidates and
        crashed before it recorded them.
        """
        open_ones = [*begun, *next_ones]
        found = await self._backend.runs.statuses([(self._ids[n], first_prompt_id(self._ids[n])) for n in open_ones])
        statuses = dict(zip(open_ones, found, strict=True))
        started = [n for n in next_ones if statuses[n] is not None]
        if started:
            await patiently(lambda: self._backend.fan_outs.begin(self._attempt, started))
        over = [n for n in (*begun, *started) if statuses[n] is None or statuses[n] in ENDED]
        await self._record(over, await asyncio.gather(*map(self._end_of, over)), ended)
        return [n for n in (*begun, *started) if n not in ended]

    async def _record(self, over: Sequence[int], ends: Sequence[ProbeEnd], ended: dict[int, CandidateStatus]) -> None:
        """Record the ends of the candidates ``over`` in one transaction, and add them to ``ended``."""
        if over:
            await patiently(lambda: self._backend.fan_outs.end(self._attempt, ends))
        for n, end in zip(over, ends, strict=True):
            assert end.outcome is not None
            ended[n] = end.outcome
            self._announce(n, end.outcome, len(ended))

    async def _cancelled(self, n: int) -> ProbeEnd:
        """Cancel the run of a candidate that did not win. Return the end of the candidate after this call."""
        try:
            run = await self._client.cancel(self._ids[n], first_prompt_id(self._ids[n]))
        except RunEndedError:
            return await self._end_of(n)
        except (RunNotFoundError, ThreadNotFoundError):
            return _deleted(n)
        return ProbeEnd(key_of(n), "cancelled", run.usage, {"stop_reason": "cancelled"})

    async def _start(self, waiting: Sequence[int], live: Sequence[int]) -> Later | None:
        """Start some of the ``waiting`` candidates. Return :class:`Later`, or None if no candidate is unfinished.

        ``waiting``: numbers of the candidates that have not been started. ``live``: numbers of the started, unfinished
        candidates.
        """
        starting = waiting[: max(0, self._fan.max_parallel - len(live))]
        messages = await patiently(lambda: self._backend.fan_outs.messages(self._attempt, starting)) if starting else {}
        begun: list[int] = []
        refused: QueueFullError | None = None
        for n in starting:
            try:
                await self._begin(n, messages[n])
            except QueueFullError as error:
                refused = error
                break
            begun.append(n)
        if begun:
            await patiently(lambda: self._backend.fan_outs.begin(self._attempt, begun))
        many = len(live) + len(begun)
        if not many:
            return Later(delay=float(refused.details.get("retry_after", 1))) if refused is not None else None
        left = len(waiting) > len(begun)
        return Later(until_fewer=many if left or self._fan.stop == "first" else 1)

    async def _begin(self, n: int, message: Message) -> None:
        """Make the candidate's thread and enqueue its run. A repeated call finds the existing thread and run."""
        new = self._ids[n]
        with metrics.FORK.time():
            await self._backend.threads.fork(replace(self._request, new=new, fan=None))
        await accept_request(
            self._client,
            AcceptRequest(
                thread_id=new,
                run_id=first_prompt_id(new),
                agent=self._job.agent,
                input=message,
                priority=self._job.priority,
                options=self._job.options,
                job=self._attempt.ref,
            ),
        )

    async def _run_of(self, n: int) -> Run | None:
        """Return the candidate's run, or None if the candidate's thread was deleted."""
        return await self._backend.runs.run(self._ids[n], first_prompt_id(self._ids[n]))

    async def _end_of(self, n: int) -> ProbeEnd:
        """Return the end of a candidate whose run has ended or was deleted. The messages of the run stay on its thread. A run
        that was deleted after its end keeps its status."""
        run = await self._run_of(n)
        if run is None or not run.ended:
            return _deleted(n)
        written: list[Message] = []
        with suppress(ResultExpiredError, ThreadNotFoundError):  # the run or its thread is deleted meanwhile
            written = (await self._client.result_of(run, most=1)).messages
        reason = stop_reason_of(run.status, written)
        value: JsonObject = {"stop_reason": reason}
        if run.error is not None:
            value["error"] = run.error.without_traceback().model_dump(mode="json")
        return ProbeEnd(key_of(n), outcome_of(reason), run.usage, value)

    async def _first(self, ended: dict[int, CandidateStatus]) -> int | None:
        """Return the number of the candidate that completed first by the store's clock, or None."""
        good = [n for n, outcome in ended.items() if outcome == "completed"]
        runs = await asyncio.gather(*map(self._run_of, good))
        times = [(run.finished_at, n) for n, run in zip(good, runs, strict=True) if run is not None and run.finished_at]
        return min(times)[1] if times else min(good, default=None)


def _deleted(n: int) -> ProbeEnd:
    """Return the end of a candidate whose thread or run was deleted."""
    return ProbeEnd(key_of(n), "cancelled", Usage(), {"stop_reason": "cancelled"})
