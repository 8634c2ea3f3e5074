"""Encode the messages of fan-outs in pages, and decode fan-outs and their candidates from rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from runyard.domain.derived_ids import derived_id
from runyard.domain.fan_outs import CandidateRecord, CandidateRun, FanOutState, recorded_outcome
from runyard.domain.size_limits import check_content
from runyard.domain.states import RunStatus
from runyard.models import Message, Usage, check_fields, check_uuid, stored_messages
from runyard.ports.commands import AcceptRequest

from ...codec.damaged_rows import named
from ...codec.message_rows import messages
from ...codec.values import Row, from_json, pack, unpack
from .run_rows import error_info

INLINE_CANDIDATES: Final = 100
"""Maximum number of messages of a fan-out that are stored in the row of its job. The messages of a larger fan-out are stored
in a batch. A worker of the previous release fails a job with a batch, because its code cannot read batches."""
PAGE_CANDIDATES: Final = 100
"""Maximum number of candidates whose messages one statement stores in a batch."""
PAGE_BYTES: Final = 2**20
"""Approximate maximum number of bytes of messages that one statement stores in a batch. Postgres takes about 50 ms for such a
statement."""

_RECORD: Final = ("number", "fence", "outcome", "usage", "size", "value")
_RUN: Final = ("of_thread", "status", "usage")
_OUTCOME: Final = ("place", "status", "usage", "error", "unread", "cut")
"""The first columns of a row of candidate_outcomes. The other columns are those of a message."""


@dataclass(frozen=True, slots=True)
class CandidateBatch:
    """The messages of a large fan-out. ``id``: an id that is derived from the request, so that a repetition finds the stored
    pages. ``pages``: for each page, the number of its first candidate and its encoded messages."""

    id: str
    total: int
    pages: list[tuple[int, list[bytes]]]


def candidate_batch(tenant: str, request: AcceptRequest) -> CandidateBatch | None:
    """Return the messages of the fan-out of ``request`` in pages. Return None for a small fan-out, whose messages are in the
    row of its run."""
    fan = request.fork.fan if request.fork is not None else None
    if fan is None or fan.total <= INLINE_CANDIDATES:
        return None
    pages: list[tuple[int, list[bytes]]] = []
    left = 0
    for number, message in enumerate(fan.messages):
        encoded = encoded_candidate(message)
        left -= len(encoded)
        if not pages or left < 0 or len(pages[-1][1]) == PAGE_CANDIDATES:
            pages.append((number, []))
            left = PAGE_BYTES - len(encoded)
        pages[-1][1].append(encoded)
    id = derived_id("candidates", tenant, request.thread_id, request.run_id, request.request_hash["messages"])
    return CandidateBatch(id, fan.total, pages)


def encoded_candidate(message: Message) -> bytes:
    """Encode the message of a candidate. Raises InvalidInputError."""
    check_uuid(message.id, "message id")
    check_fields(message)
    check_content(message)
    return pack(message.model_dump(exclude={"run_id", "parent_id", "seq", "created_at", "provider_details", "run_status"}))


@named("message of a candidate")
def candidate(row: Row) -> Message:
    """Decode the message of a candidate."""
    return stored_messages([unpack(row["message"])])[0]


def fan_out(thread_id: str, run_id: str, row: Row) -> FanOutState:
    """Decode a fan-out from the row of its run."""
    return FanOutState(thread_id, run_id, row["total"], row["threads"], RunStatus(row["status"]), row["fence"], _usage(row))


def candidate_records(row: Row) -> list[CandidateRecord]:
    """Decode the records of candidates."""
    return [_record(dict(zip(_RECORD, record, strict=True))) for record in row["records"]]


@named("record of a candidate")
def _record(row: Row) -> CandidateRecord:
    value = unpack(row["value"]) if row["value"] is not None else None
    outcome = recorded_outcome(row["outcome"], value)
    return CandidateRecord(row["number"], row["fence"], outcome, _usage(row), row["size"], value)


def started_runs(row: Row) -> dict[str, CandidateRun]:
    """Decode the runs that a fork job has started, by thread id. Their messages are not read."""
    runs = (dict(zip(_RUN, record, strict=True)) for record in row["runs"])
    return {run["of_thread"]: CandidateRun(RunStatus(run["status"]), _usage(run)) for run in runs}


def candidate_runs(row: Row, threads: Sequence[str]) -> dict[str, CandidateRun]:
    """Decode the runs of candidates, by thread id. ``threads``: the thread ids for which the rows were read."""
    by_place = groupby(row["outcomes"], key=lambda record: record[0])
    return {threads[place - 1]: _run(threads[place - 1], records) for place, records in by_place}


def _run(thread_id: str, records: Iterator[Any]) -> CandidateRun:
    """Decode the rows of one run. The first row has no message. If messages of the run were omitted, the last row has no
    message either."""
    head, *rows = list(records)
    run = dict(zip(_OUTCOME, head[: len(_OUTCOME)], strict=True))
    status, made = RunStatus(run["status"]), None
    if not run["unread"]:
        newest_first = [record[len(_OUTCOME) :] for record in rows if record[len(_OUTCOME)] is not None]
        made = messages(newest_first[::-1], thread_id=thread_id)
        for message in made:
            message.run_status = status
    cut = bool(rows) and rows[-1][len(_OUTCOME) - 1]
    return CandidateRun(status, _usage(run), error_info(run["error"]), made, cut)


@named("usage")
def _usage(row: Row) -> Usage:
    return Usage.model_validate(from_json(row["usage"]), extra="ignore") if row["usage"] else Usage()
