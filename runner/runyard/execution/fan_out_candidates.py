"""Candidates of a fan-out with threads. Each candidate is a fork of the source, with one run (F11).

The job holds no slot while these runs are executed. An attempt of the job starts some of the runs and then releases the job.
The job continues when fewer than ``until_fewer`` of its runs are unfinished. ``must_wait`` in
``postgres/functions/startable.sql`` applies this number. A fork job waits for the run of its cut in the same way (F5). The ids
of the candidates are derived from the job's ids. A later attempt can therefore find the candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..client.client import Client
from ..client.runs import accept_request
from ..domain.derived_ids import candidate_id, first_prompt_id
from ..domain.messages import StopReason
from ..domain.runs import Candidate, Run
from ..domain.states import RunStatus
from ..errors import QueueFullError, RunEndedError, RunNotFoundError, ThreadNotFoundError
from ..ports.commands import AcceptRequest
from ..ports.results import Claim, Ledger
from ..ports.stores import Backend
from ..support import metrics
from ..support.store_retries import patiently
from . import fork_runs


@dataclass(frozen=True, slots=True)
class Later:
    """The job continues in ``delay`` seconds, or when fewer than ``until_fewer`` of its runs are unfinished."""

    delay: float = 0.0
    until_fewer: int | None = None


def key_of(n: int) -> str:
    """Return the key of the step that records candidate ``n``."""
    return f"candidate:{n}"


class ThreadCandidates:
    """The candidates of a job, in one attempt of the job."""

    def __init__(self, backend: Backend, claim: Claim, ledger: Ledger) -> None:
        assert claim.run is not None and claim.attempt is not None
        self._client = Client(backend.for_tenant(claim.tenant), app_version=claim.run.app_version, namespace="")
        self._backend = self._client.backend
        self._job, self._attempt, self._ledger = claim.run, claim.attempt, ledger
        self._request = fork_runs.request_of(claim)
        assert self._request.fan is not None
        self._fan = self._request.fan
        self._ids = [candidate_id(self._job.thread_id, self._job.run_id, n) for n in range(len(self._fan.messages))]

    async def advance(self) -> tuple[list[Candidate], int | None] | Later:
        """Start candidates until ``max_parallel`` are unfinished.

        Return :class:`Later` if the result needs unfinished runs. Otherwise return all candidates, and the number of the
        candidate that completed first. The number is None if ``stop`` is not "first" or if no candidate completed.
        """
        started = [n for n in range(len(self._ids)) if (step := self._ledger.steps.get(key_of(n))) is not None and step.done]
        runs = dict(zip(started, await asyncio.gather(*map(self._run_of, started)), strict=True))
        live = [n for n, run in runs.items() if run is not None and not run.ended]
        winner = _first(runs) if self._fan.stop == "first" else None
        if winner is None:
            waiting = [n for n in range(len(self._ids)) if n not in runs]
            later = await self._start(waiting, live)
            if later is not None:
                return later
        for n in live if winner is not None else ():
            with suppress(RunEndedError, RunNotFoundError, ThreadNotFoundError):
                await self._client.cancel(self._ids[n], first_prompt_id(self._ids[n]))
        return [await self._candidate(n, runs.get(n), started=n in runs) for n in range(len(self._ids))], winner

    async def _start(self, waiting: Sequence[int], live: Sequence[int]) -> Later | None:
        """Start some of the ``waiting`` candidates. Return :class:`Later`, or None if no candidate is unfinished.

        ``waiting``: numbers of the candidates that were not started. ``live``: numbers of the unfinished candidates.
        """
        many = len(live)
        starting = waiting[: max(0, self._fan.max_parallel - many)]
        for n in starting:
            try:
                await self._begin(n)
            except QueueFullError as error:
                if not many:
                    return Later(delay=float(error.details.get("retry_after", 1)))
                break
            many += 1
        if not many:
            return None
        left = len(waiting) > many - len(live)
        return Later(until_fewer=many if left or self._fan.stop == "first" else 1)

    async def _begin(self, n: int) -> None:
        """Make the candidate's thread, and enqueue its run. A repetition of this call changes nothing."""
        new = self._ids[n]
        with metrics.FORK.time():
            await self._backend.threads.fork(replace(self._request, new=new, fan=None))
        await accept_request(
            self._client,
            AcceptRequest(
                thread_id=new,
                run_id=first_prompt_id(new),
                agent=self._job.agent,
                input=self._fan.messages[n],
                priority=self._job.priority,
                options=self._job.options,
                job=self._attempt.ref,
            ),
        )
        await patiently(lambda: self._backend.runs.finish_step(self._attempt, key_of(n), {"thread_id": new}))

    async def _run_of(self, n: int) -> Run | None:
        """Return the candidate's run, or None if the candidate's thread was deleted."""
        return await self._backend.runs.run(self._ids[n], first_prompt_id(self._ids[n]))

    async def _candidate(self, n: int, run: Run | None, *, started: bool) -> Candidate:
        thread_id = self._ids[n] if started else None
        if run is None or not run.ended:
            return Candidate("", [], "cancelled", thread_id=thread_id)
        result = await self._client.result_of(run)
        said = next((message.stop_reason for message in reversed(result.messages) if message.role == "assistant"), None)
        reason: StopReason = "error"
        if run.status is RunStatus.COMPLETED:
            reason = said or "stop"
        elif run.status is RunStatus.CANCELLED:
            reason = "aborted" if said == "aborted" else "cancelled"
        return Candidate(result.last_text, result.messages, reason, run.error, thread_id)


def _first(runs: dict[int, Run | None]) -> int | None:
    """Return the number of the candidate that completed first by the store's clock, or None."""
    ended = [(run.finished_at, n) for n, run in runs.items() if run is not None and run.status is RunStatus.COMPLETED]
    return min(((at, n) for at, n in ended if at is not None), default=(None, None))[1]
