"""The candidates of a fan-out that have threads of their own: forks of the source, each with a run (semantics: F11).

The job holds no slot while they run: it starts some and gives itself back until fewer of them are unfinished, as a fork job
waits for the run of its cut (semantics: F5). Their ids are derived, so a later attempt finds them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from . import forkjobs, metrics
from .calls.fanout import candidate_id
from .calls.forks import ForkCalls, first_prompt_id
from .errors import QueueFullError, RunEndedError, RunNotFoundError, ThreadNotFoundError
from .exchange import AcceptRequest, Claim, Ledger
from .models import Candidate, Run, StopReason
from .patience import patiently
from .ports import Backend
from .states import RunStatus


@dataclass(frozen=True, slots=True)
class Later:
    """The job goes on in ``delay`` seconds, or when fewer than ``until_fewer`` of the runs that it started are unfinished."""

    delay: float = 0.0
    until_fewer: int | None = None


def key_of(n: int) -> str:
    """The step under which a candidate is recorded."""
    return f"candidate:{n}"


class ThreadCandidates(ForkCalls):
    """Those of one job, as one of its attempts sees them."""

    def __init__(self, backend: Backend, claim: Claim, ledger: Ledger) -> None:
        assert claim.run is not None and claim.attempt is not None
        self.backend = backend.for_tenant(claim.tenant)
        self.app_version = claim.run.app_version
        self._job, self._attempt, self._ledger = claim.run, claim.attempt, ledger
        self._request = forkjobs.request_of(claim)
        assert self._request.fan is not None
        self._fan = self._request.fan
        self._ids = [candidate_id(self._job.thread_id, self._job.run_id, n) for n in range(len(self._fan.messages))]

    async def advance(self) -> tuple[list[Candidate], int | None] | Later:
        """Start what there is room for. Returns what became of all, and who came first if that decides; or when to go on."""
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
                await self.cancel(self._ids[n], first_prompt_id(self._ids[n]))
        return [await self._candidate(n, runs.get(n), started=n in runs) for n in range(len(self._ids))], winner

    async def _start(self, waiting: Sequence[int], live: Sequence[int]) -> Later | None:
        """Start some of those that wait. None if nothing is under way any more."""
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
        """Make the thread and enqueue its run; made before, they are the same ones."""
        new = self._ids[n]
        with metrics.FORK.time():
            await self.backend.threads.fork(replace(self._request, new=new, fan=None))
        await self._accept(
            AcceptRequest(
                thread_id=new,
                run_id=first_prompt_id(new),
                agent=self._job.agent,
                input=self._fan.messages[n],
                priority=self._job.priority,
                options=self._job.options,
                job=self._attempt.ref,
            )
        )
        await patiently(lambda: self.backend.runs.finish_step(self._attempt, key_of(n), {"thread_id": new}))

    async def _run_of(self, n: int) -> Run | None:
        """None if its thread was deleted."""
        return await self.backend.runs.run(self._ids[n], first_prompt_id(self._ids[n]))

    async def _candidate(self, n: int, run: Run | None, *, started: bool) -> Candidate:
        thread_id = self._ids[n] if started else None
        if run is None or not run.ended:
            return Candidate("", [], "cancelled", thread_id)
        result = await self.result_of(run)
        said = next((message.stop_reason for message in reversed(result.messages) if message.role == "assistant"), None)
        reason: StopReason = "error"
        if run.status is RunStatus.COMPLETED:
            reason = said or "stop"
        elif run.status is RunStatus.CANCELLED:
            reason = "aborted" if said == "aborted" else "cancelled"
        return Candidate(result.text, result.messages, reason, thread_id, run.error)


def _first(runs: dict[int, Run | None]) -> int | None:
    """Who completed first, by the clock of the store."""
    ended = [(run.finished_at, n) for n, run in runs.items() if run is not None and run.status is RunStatus.COMPLETED]
    return min(((at, n) for at, n in ended if at is not None), default=(None, None))[1]
