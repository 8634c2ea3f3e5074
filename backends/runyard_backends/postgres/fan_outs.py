"""Fan-outs on Postgres: the messages and the records of candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.fan_outs import MAX_CANDIDATES, Candidate, CandidateRecord, FanOutProgress, FanOutState, progress_of
from runyard.domain.size_limits import check_value
from runyard.errors import BackendUnavailableError, ResultExpiredError
from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Page

from ..fan_outs import numbers_of, page_of_candidates
from . import codec
from .database import Database

BATCH_TRIES: Final = 3
"""Maximum number of times that a call stores the messages of a large fan-out. The leader can remove messages before their fork
job is accepted."""


async def accept_batch(db: Database, tenant: str, request: AcceptRequest, batch: codec.CandidateBatch) -> codec.Row:
    """Accept a large fan-out and return the row of the accept. The messages are stored first, page by page, and
    the thread is not locked meanwhile.

    A repetition uses the pages that an earlier call has stored. The leader deletes pages that no accept has taken within an
    hour after the last page was stored. If the leader deletes the pages of a call that is still running, the call stores its
    pages again. A call stores its pages at most BATCH_TRIES times.
    """
    encoded = codec.run_request(request, batch)
    tries = BATCH_TRIES
    while True:
        tries -= 1
        if await db.value("begin_batch", tenant, encoded):
            for first, messages in batch.pages:
                await db.row("store_candidates", batch.id, first, messages)
        try:
            return await db.one("accept", tenant, [encoded], None)
        except BackendUnavailableError as error:
            if tries == 0 or "batch" not in error.details:
                raise


class PostgresFanOutStore:
    """Fan-outs of one tenant. The verbs of an attempt cover all tenants."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

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
        """Return the number of a fan-out's candidates in total and in each state, and their usage."""
        row = await self.db.one("fan_out", self.tenant, thread_id, run_id, 0, MAX_CANDIDATES - 1)
        job, started = _job(thread_id, run_id, row), codec.started_runs(row)
        runs = {n: started[of] for n in range(job.total) if (of := candidate_id(thread_id, run_id, n)) in started}
        return progress_of(job, await self._with_outcomes(job, codec.candidate_records(row)), runs)

    async def candidates(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[Candidate]:
        """Return a page of the candidates."""
        numbers = numbers_of(page)
        threads = [candidate_id(thread_id, run_id, n) for n in numbers]
        row = await self._page(thread_id, run_id, numbers, threads)
        job, found = _job(thread_id, run_id, row), codec.candidate_runs(row, threads)
        runs = {n: found[of] for n, of in zip(numbers, threads, strict=True) if of in found}
        return page_of_candidates(job, numbers, codec.candidate_records(row), runs, self.db.page_bytes)

    async def _page(self, thread_id: str, run_id: str, numbers: range, threads: Sequence[str]) -> codec.Row:
        place = (self.tenant, thread_id, run_id, numbers.start, numbers.stop - 1)
        return await self.db.one("candidates", *place, self.db.page_bytes, threads, [first_prompt_id(of) for of in threads])

    async def _with_outcomes(self, job: FanOutState, records: list[CandidateRecord]) -> list[CandidateRecord]:
        """Return ``records`` with the outcomes of the probes that a worker of the previous release recorded. Such an outcome is
        in the value of its record, and values are read page by page."""
        known = {record.number: record for record in records}
        while not job.threads and (unread := [n for n, record in known.items() if _hides_outcome(record)]):
            row = await self._page(job.thread_id, job.run_id, range(min(unread), max(unread) + 1), [])
            _job(job.thread_id, job.run_id, row)
            known |= {record.number: record for record in codec.candidate_records(row) if record.value is not None}
        return list(known.values())


def _hides_outcome(record: CandidateRecord) -> bool:
    """Return True if the outcome of a record can only be in its value, which was not read."""
    return bool(record.size) and record.outcome is None and record.value is None


def _job(thread_id: str, run_id: str, row: codec.Row) -> FanOutState:
    """Decode a fan-out from the row of its run. Raises ResultExpiredError."""
    if row["expired"]:
        message = f"the result of fan-out {run_id!r} has expired or was deleted; ask again under another run id"
        raise ResultExpiredError(message, thread_id=thread_id, run_id=run_id)
    return codec.fan_out(thread_id, run_id, row)
