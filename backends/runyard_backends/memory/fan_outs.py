"""Fan-outs in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runyard.domain.derived_ids import candidate_id
from runyard.domain.fan_outs import (
    Candidate,
    CandidateRecord,
    CandidateRun,
    FanOutProgress,
    FanOutState,
    key_of,
    number_of,
    progress_of,
    recorded_outcome,
)
from runyard.domain.list_entries import json_bytes
from runyard.domain.size_limits import message_size
from runyard.domain.states import RunStatus
from runyard.errors import InvalidInputError, ResultExpiredError, StaleFenceError
from runyard.models import Message, check_usage
from runyard.ports.commands import FanOut
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Page

from ..fan_outs import numbers_of, page_of_candidates
from . import execution, steps
from .state import Database, RunState
from .values import check_json


class MemoryFanOutStore:
    """Fan-outs of one tenant. The verbs of an attempt cover all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def messages(self, attempt: AttemptToken, numbers: Sequence[int]) -> dict[int, Message]:
        """Return the messages of candidates, by number. Raises StaleFenceError."""
        fan = _fan(execution.reader(self.db, attempt)[1])
        return {n: fan.messages[n].model_copy(deep=True) for n in numbers}

    async def begin(self, attempt: AttemptToken, numbers: Sequence[int]) -> None:
        """Record that the attempt has begun candidates. Raises StaleFenceError, CancelRequestedError."""
        _, run = execution.writer(self.db, attempt)
        for number in numbers:
            steps.start(run, attempt, key_of(number), self.db.now())

    async def end(self, attempt: AttemptToken, ends: Sequence[ProbeEnd]) -> None:
        """Record the ends of candidates and of the judge. Raises StaleFenceError, CancelRequestedError."""
        for end in ends:
            check_usage(end.usage)
            check_json(end.value, "result")
        _, run = execution.writer(self.db, attempt)
        for end in ends:
            if not steps.finish(run, attempt, end.key, end.value, self.db.now(), end.outcome):
                continue
            run.step_usages[end.key] = end.usage
            if not _fan(run).threads or number_of(end.key) is None:
                run.run.usage += end.usage

    async def progress(self, thread_id: str, run_id: str) -> FanOutProgress:
        """Count the candidates."""
        job, run = self._job(thread_id, run_id)
        return progress_of(job, self._records(run, range(job.total)), self._runs(job, run))

    async def candidates(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[Candidate]:
        """Return a page of the candidates."""
        numbers = numbers_of(page)
        job, run = self._job(thread_id, run_id)
        return page_of_candidates(job, numbers, self._records(run, numbers), self._runs(job, run), self.db.page_bytes)

    def _job(self, thread_id: str, run_id: str) -> tuple[FanOutState, RunState]:
        _, run = self.db.run(RunRef(self.db.get(self.tenant, thread_id).key, run_id))
        if run.run.kind != "fork_many":
            raise InvalidInputError(f"run {run_id!r} is no fan-out; its kind is {run.run.kind}", field="run_id")
        if expired(run):
            message = f"the result of fan-out {run_id!r} has expired or was deleted; ask again under another run id"
            raise ResultExpiredError(message, thread_id=thread_id, run_id=run_id)
        fan, r = _fan(run), run.run
        return FanOutState(thread_id, run_id, fan.total, fan.threads, r.status, r.fence, r.usage), run

    def _records(self, run: RunState, numbers: range) -> list[CandidateRecord]:
        found = []
        for number in numbers:
            step = run.steps.get(key_of(number))
            if step is not None:
                size = json_bytes(step.result) if step.done else 0
                usage = run.step_usages.get(step.key)
                outcome = recorded_outcome(step.outcome, step.result)
                found.append(CandidateRecord(number, step.fence, outcome, usage, size, step.result))
        return found

    def _runs(self, job: FanOutState, run: RunState) -> Mapping[int, CandidateRun]:
        if not job.threads:
            return {}
        ref = RunRef(self.db.get(self.tenant, job.thread_id).key, run.id)
        threads = [thread for thread in self.db.threads.values() if not thread.deleted]
        found = {t.id: r for t in threads for r in t.runs.values() if r.job == ref and r.run.deleted_at is None}
        by_number = ((n, found.get(candidate_id(job.thread_id, job.run_id, n))) for n in range(job.total))
        return {n: self._outcome(started) for n, started in by_number if started is not None}

    def _outcome(self, run: RunState) -> CandidateRun:
        """Return the run of a candidate, with as many of its last messages as fit in a page."""
        left, shown = self.db.page_bytes, list[Message]()
        for entry in reversed(run.own()):
            left -= message_size(entry.message)
            if shown and left < 0:
                break
            shown.insert(0, entry.message.model_copy(update={"run_status": run.run.status}, deep=True))
        return CandidateRun(run.run.status, run.run.usage, run.run.error, shown, len(shown) < len(run.own()))


def expired(run: RunState) -> bool:
    """Return True if the messages and answers of a fan-out were deleted. Messages and answers are deleted after their
    retention, or together with the content of the run."""
    if run.run.deleted_at is not None or (run.run.status is RunStatus.COMPLETED and run.run.result is None):
        return True
    return not _fan(run).messages


def expire(run: RunState) -> None:
    """Delete the messages and answers of a fan-out."""
    assert run.fork is not None and run.fork.fan is not None
    run.fork = replace(run.fork, fan=replace(run.fork.fan, messages=(), total=run.fork.fan.total))
    run.steps.clear()
    run.step_usages.clear()


def _fan(run: RunState) -> FanOut:
    if run.fork is None or run.fork.fan is None:
        raise StaleFenceError(f"run {run.id!r} is no fan-out", run_id=run.id)
    return run.fork.fan
