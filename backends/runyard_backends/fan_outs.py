"""Pages of candidates of fan-outs, for all stores. If a candidate has its own thread, the candidate's messages are on this
thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import TypeAdapter

from runyard.domain.derived_ids import candidate_id
from runyard.domain.fan_outs import (
    ENDED_CANDIDATE,
    MAX_CANDIDATES,
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
from runyard.errors import InvalidCursorError
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page

from . import cursors

CANDIDATE_BYTES = 512
"""Estimated bytes of a candidate in a page, without its messages or its record."""

_ANSWERS = TypeAdapter(ForkOnceResult)


def numbers_of(page: PageRequest) -> range:
    """Return the numbers of the candidates that a page asks for. The last numbers can be too high for the fan-out, because its
    number of candidates is not known here. Raises InvalidCursorError."""
    first = 0 if page.cursor is None else cursors.number(page.cursor)
    if first >= MAX_CANDIDATES:
        raise InvalidCursorError("not a cursor of this list", field="cursor")
    return range(first, min(first + page.limit, MAX_CANDIDATES))


def page_of_candidates(
    job: FanOutState,
    numbers: range,
    records: Sequence[CandidateRecord],
    runs: Mapping[int, CandidateRun],
    budget: int,
) -> Page[Candidate]:
    """Return a page with the candidates ``numbers``. When the page has about ``budget`` bytes, the remaining candidates are
    left out. Raises InvalidCursorError.

    ``records``: the records of the candidates ``numbers``. A value that does not fit in the page is None in its record.
    ``runs``: the runs of the candidates, by number. The messages of an ended run are None if they do not fit in the page.
    """
    if numbers.start >= job.total:
        raise InvalidCursorError("not a cursor of this list", field="cursor")
    known = {record.number: record for record in records}
    items: list[Candidate] = []
    left = budget
    for number in range(numbers.start, min(numbers.stop, job.total)):
        record, run = known.get(number), runs.get(number)
        if record is not None and record.size and record.value is None:
            break
        if run is not None and run.status in ENDED and run.messages is None:
            break
        candidate, size = _candidate(job, number, record, run)
        left -= size
        if items and left < 0:
            break
        items.append(candidate)
    after = numbers.start + len(items)
    return Page(items, cursors.encode(after) if after < job.total else None)


def _candidate(
    job: FanOutState, number: int, record: CandidateRecord | None, run: CandidateRun | None
) -> tuple[Candidate, int]:
    """Return a candidate and its size in bytes."""
    began = record is not None or run is not None
    thread_id = candidate_id(job.thread_id, job.run_id, number) if job.threads and began else None
    status = status_of(job, record, run)
    found = Candidate(number=number, status=status, thread_id=thread_id, usage=usage_of(record, run))
    size = CANDIDATE_BYTES
    if record is not None and record.outcome is not None and record.value is not None:
        answer = _ANSWERS.validate_python({"text": "", "messages": [], **record.value}, extra="ignore")
        said = {"text": answer.text, "messages": answer.messages, "stop_reason": answer.stop_reason, "error": answer.error}
        found, size = found.model_copy(update=said), size + record.size
    if run is not None and run.status in ENDED:
        written = run.messages or []
        last = next((message.text for message in reversed(written) if message.role == "assistant"), "")
        outcome = {
            "text": last,
            "messages": list(written),
            "stop_reason": stop_reason_of(run.status, written),
            "error": run.error,
            "omitted": ["messages"] if run.cut else [],
        }
        found, size = found.model_copy(update=outcome), size + sum(map(message_bytes, written))
    elif status in ENDED_CANDIDATE and found.stop_reason is None:
        found = found.model_copy(update={"stop_reason": "cancelled"})
    return found, size
