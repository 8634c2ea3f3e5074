"""Encode HITL requests for storage, and decode them from rows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from runyard.models import HitlRequest, check_requests

from .damaged_rows import entry, named
from .values import Row, pack, unpack, without_none


class NewRequest(NamedTuple):
    """The attributes of a ``runyard.new_request``, in their order. ``otherwise``: the encoded answer at the deadline, or
    None."""

    request_id: str
    kind: str
    body: bytes
    deadline_at: datetime | None
    timeout: float | None
    otherwise: bytes | None


def new_request(request: HitlRequest) -> NewRequest:
    """Encode a HITL request as a ``runyard.new_request``. Raises InvalidInputError if the request is invalid."""
    check_requests(request)
    body = {"payload": request.payload, "answer_schema": request.answer_schema, "on_deadline": request.on_deadline}
    choice = request.on_deadline or {}
    otherwise = pack(choice["answer"]) if "answer" in choice else None
    stored = pack(without_none(body))
    return NewRequest(request.request_id, request.kind, stored, request.deadline_at, request.timeout, otherwise)


@named("HITL request")
def request(row: Row) -> HitlRequest:
    """Decode a HITL request from its row. The row also has the ``thread_id`` of the thread and the ``agent`` of the run."""
    return HitlRequest(
        request_id=row["request_id"],
        kind=row["kind"],
        **unpack(row["body"]),
        deadline_at=row["deadline_at"],
        thread_id=row["thread_id"],
        run_id=row["run_id"],
        agent=row["agent"],
        created_at=row["created_at"],
        answer=unpack(row["answer"]) if row["answer"] is not None else None,
        response_id=row["response_id"],
        answered_by=row["answered_by"],
        on_behalf_of=row["on_behalf_of"],
        answered_at=row["answered_at"],
    )


request_entry = entry(request, kind="question", body=pack({}), answer=None)
