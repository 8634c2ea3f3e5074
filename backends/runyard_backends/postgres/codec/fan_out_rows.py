"""Encode the messages of fan-outs in pages, and decode their candidates from rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runyard.domain.derived_ids import derived_id
from runyard.domain.fan_outs import CandidateRecord
from runyard.domain.size_limits import check_content
from runyard.models import Message, Usage, check_fields, check_uuid, stored_messages
from runyard.ports.commands import AcceptRequest

from ...codec.damaged_rows import named
from ...codec.values import Row, from_json, pack, unpack

PAGE_CANDIDATES: Final = 100
"""Most candidates whose messages one statement stores."""
PAGE_BYTES: Final = 2**20
"""Approximate most bytes of messages that one statement stores. Postgres takes about 50 ms for them."""


@dataclass(frozen=True, slots=True)
class CandidateBatch:
    """The messages of a large fan-out. ``id``: is derived from the request, so that a repetition finds the stored pages.
    ``pages``: the number of the first candidate of each page, and the encoded messages."""

    id: str
    total: int
    pages: list[tuple[int, list[bytes]]]


def candidate_batch(tenant: str, request: AcceptRequest) -> CandidateBatch | None:
    """Return the messages of the fan-out of ``request`` in pages, or None if they fit in one page."""
    fan = request.fork.fan if request.fork is not None else None
    if fan is None:
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
    if len(pages) < 2:
        return None
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


@named("record of a candidate")
def candidate_record(row: Row) -> CandidateRecord:
    """Decode the record of a candidate."""
    value = unpack(row["value"]) if row["value"] is not None else None
    return CandidateRecord(row["number"], row["fence"], row["outcome"], usage(row), row["size"], value)


@named("usage")
def usage(row: Row) -> Usage:
    """Decode the usage in a row."""
    return Usage.model_validate(from_json(row["usage"]), extra="ignore") if row["usage"] else Usage()
