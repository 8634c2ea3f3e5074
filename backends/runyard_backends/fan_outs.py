"""Pages of candidates of fan-outs, for all stores. If a candidate has a thread, its messages are on this thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.fan_outs import (
    ENDED_CANDIDATE,
    Candidate,
    CandidateRecord,
    CandidateRun,
    FanOutState,
    status_of,
    stop_reason_of,
    usage_of,
)
from runyard.domain.list_entries import message_bytes
from runyard.domain.runs import ForkOnceResult
from runyard.domain.states import ENDED
from runyard.errors import InvalidCursorError, ResultExpiredError
from runyard.events.run_outcome import read_outcome
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page
from runyard.ports.stores import RunStore, ThreadStore

from . import cursors

CANDIDATE_BYTES = 512
"""Estimated bytes of a candidate in a page, without its messages or its record."""

_ANSWERS = TypeAdapter(ForkOnceResult)


def numbers_of(job: FanOutState, page: PageRequest) -> range:
    """Return the numbers of the candidates of a page. Raises InvalidCursorError."""
    first = 0 if page.cursor is None else cursors.number(page.cursor)
    if first >= job.total:
        raise InvalidCursorError("not a cursor of this list", field="cursor")
    return range(first, min(first + page.limit, job.total))


async def page_of_candidates(
    job: FanOutState,
    numbers: range,
    records: Sequence[CandidateRecord],
    runs: Mapping[int, CandidateRun],
    stores: tuple[ThreadStore, RunStore],
    budget: int,
) -> Page[Candidate]:
    """Return a page of the candidates ``numbers``. The page ends early if it reaches about ``budget`` bytes.

    ``records``: the records of the candidates ``numbers``. A record that does not fit into the page is None.
    """
    known = {record.number: record for record in records}
    items: list[Candidate] = []
    left = budget
    for number in numbers:
        record, run = known.get(number), runs.get(number)
        if record is not None and record.size and record.value is None:
            break
        candidate, size = await _candidate(job, number, record, run, stores, budget)
        left -= size
        if items and left < 0:
            break
        items.append(candidate)
    after = numbers.start + len(items)
    return Page(items, cursors.encode(after) if after < job.total else None)


async def _candidate(
    job: FanOutState,
    number: int,
    record: CandidateRecord | None,
    run: CandidateRun | None,
    stores: tuple[ThreadStore, RunStore],
    budget: int,
) -> tuple[Candidate, int]:
    """Return a candidate and its size in bytes."""
    began = record is not None or run is not None
    thread_id = candidate_id(job.thread_id, job.run_id, number) if job.threads and began else None
    status = status_of(job, record, run)
    found = Candidate(number=number, status=status, thread_id=thread_id, usage=usage_of(record, run))
    size = CANDIDATE_BYTES
    if record is not None and record.value is not None:
        answer = _ANSWERS.validate_python({"text": "", "messages": [], **record.value}, extra="ignore")
        fields = {"text": answer.text, "messages": answer.messages, "stop_reason": answer.stop_reason, "error": answer.error}
        found, size = found.model_copy(update=fields), size + record.size
    if run is not None and run.status in ENDED and thread_id is not None:
        written, bytes_of_messages = await _written(thread_id, stores, budget)
        found, size = found.model_copy(update=written), size + bytes_of_messages
    elif status in ENDED_CANDIDATE and found.stop_reason is None:
        found = found.model_copy(update={"stop_reason": "cancelled"})
    return found, size


async def _written(thread_id: str, stores: tuple[ThreadStore, RunStore], budget: int) -> tuple[dict[str, object], int]:
    """Return the fields of a candidate that come from its run on a thread. Also return the size of its messages."""
    threads, runs = stores
    run = await runs.run(thread_id, first_prompt_id(thread_id))
    if run is None or not run.ended:
        return {}, 0
    try:
        outcome = await read_outcome(threads, runs, run, budget)
    except ResultExpiredError:
        return {"stop_reason": stop_reason_of(run.status, [])}, 0
    last = next((message.text for message in reversed(outcome.messages) if message.role == "assistant"), "")
    fields: dict[str, object] = {
        "text": last,
        "messages": outcome.messages,
        "stop_reason": stop_reason_of(run.status, outcome.messages),
        "error": run.error,
        "omitted": outcome.omitted,
    }
    return fields, sum(map(message_bytes, outcome.messages))
