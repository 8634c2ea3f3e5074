"""Fan-outs on Postgres: the messages and the records of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runyard.domain.derived_ids import candidate_id
from runyard.domain.fan_outs import Candidate, CandidateRecord, CandidateRun, FanOutProgress, FanOutState, progress_of
from runyard.domain.size_limits import check_value
from runyard.domain.states import RunStatus
from runyard.errors import ResultExpiredError
from runyard.models import Message
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Page
from runyard.ports.stores import RunStore, ThreadStore

from ..fan_outs import numbers_of, page_of_candidates
from . import codec
from .database import Database


class PostgresFanOutStore:
    """Fan-outs of one tenant. The verbs of an attempt cover all tenants."""

    def __init__(self, db: Database, tenant: str, threads: ThreadStore, runs: RunStore) -> None:
        self.db, self.tenant, self._stores = db, tenant, (threads, runs)

    async def messages(self, attempt: AttemptToken, numbers: Sequence[int]) -> dict[int, Message]:
        """Return the messages of candidates, by number. Raises StaleFenceError."""
        rows = await self.db.rows("candidate_messages", attempt.thread_key, attempt.run_id, attempt.fence, list(numbers))
        return {row["number"]: codec.candidate(row) for row in rows}

    async def begin(self, attempt: AttemptToken, numbers: Sequence[int]) -> None:
        """Record that the attempt has begun candidates. Raises StaleFenceError, CancelRequestedError."""
        await self.db.row("begin_candidates", attempt.thread_key, attempt.run_id, attempt.fence, list(numbers))

    async def end(self, attempt: AttemptToken, ends: Sequence[ProbeEnd]) -> None:
        """Record the ends of candidates and of the judge. Raises StaleFenceError, CancelRequestedError."""
        for end in ends:
            check_value(end.value, "result")
        fields = ([end.key for end in ends], [end.outcome for end in ends])
        usages = [codec.usage_json(end.usage) for end in ends]
        values = [codec.pack(end.value) for end in ends]
        await self.db.row("end_candidates", attempt.thread_key, attempt.run_id, attempt.fence, *fields, usages, values)

    async def progress(self, thread_id: str, run_id: str) -> FanOutProgress:
        """Count the candidates."""
        job = await self._job(thread_id, run_id)
        records = await self._records(job, range(job.total), None)
        return progress_of(job, records, await self._runs(job, range(job.total)))

    async def candidates(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[Candidate]:
        """Return a page of the candidates."""
        job = await self._job(thread_id, run_id)
        numbers = numbers_of(job, page)
        records = await self._records(job, numbers, self.db.page_bytes)
        runs = await self._runs(job, numbers)
        return await page_of_candidates(job, numbers, records, runs, self._stores, self.db.page_bytes)

    async def _job(self, thread_id: str, run_id: str) -> FanOutState:
        row = await self.db.one("fan_out", self.tenant, thread_id, run_id)
        if row["expired"]:
            message = f"the result of fan-out {run_id!r} has expired or was deleted; ask again under another run id"
            raise ResultExpiredError(message, thread_id=thread_id, run_id=run_id)
        usage = codec.usage(row)
        status = RunStatus(row["status"])
        return FanOutState(thread_id, run_id, row["total"], row["threads"], status, row["fence"], usage)

    async def _records(self, job: FanOutState, numbers: range, most_bytes: int | None) -> list[CandidateRecord]:
        place = (self.tenant, job.thread_id, job.run_id, numbers.start, numbers.stop - 1)
        return [codec.candidate_record(row) for row in await self.db.rows("candidate_records", *place, most_bytes)]

    async def _runs(self, job: FanOutState, numbers: range) -> Mapping[int, CandidateRun]:
        if not job.threads:
            return {}
        rows = await self.db.rows("candidate_runs", self.tenant, job.thread_id, job.run_id)
        found = {row["of_thread"]: CandidateRun(RunStatus(row["status"]), codec.usage(row)) for row in rows}
        by_number = ((n, found.get(candidate_id(job.thread_id, job.run_id, n))) for n in numbers)
        return {n: run for n, run in by_number if run is not None}
