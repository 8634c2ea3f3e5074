"""Answers to HITL requests, applied once (H3, H4)."""

from __future__ import annotations

from typing import Any, TypeAlias

from runyard.domain.requests import check_answer, check_names
from runyard.domain.size_limits import check_value
from runyard.errors import HitlAlreadyAnsweredError
from runyard.ports.results import Responded

from . import codec
from .database import Database

Asked: TypeAlias = tuple[str, str | None, str | None, str | None]
"""The request to answer: tenant, thread id, request id, response id."""


async def respond(
    db: Database, asked: Asked, answer: Any, answered_by: str | None, on_behalf_of: str | None = None
) -> tuple[Responded, str | None]:
    """Store ``answer`` as the answer to the request ``asked``. Return the outcome, and the effects as JSON. Raises
    HitlAlreadyAnsweredError if another answer was stored before."""
    check_value(answer, "answer")
    check_names(answered_by=answered_by, on_behalf_of=on_behalf_of)
    packed = codec.pack(answer)
    codec.to_json(answer)
    while True:
        request = codec.request(await db.one("request_for", *asked))
        if request.answered_at is None:
            check_answer(request, answer)
        row = await db.one("respond", *asked, request.request_id, packed, answered_by, on_behalf_of)
        if row["created"] is not None:
            break
    request, (*_, response_id) = codec.request(row), asked
    if not row["created"] and (request.answer != answer or (response_id and request.response_id != response_id)):
        raise HitlAlreadyAnsweredError(
            f"request {request.request_id} was answered before with another answer or response_id",
            request_id=request.request_id,
            answered_by=request.answered_by,
        )
    return Responded(request, row["created"], last=row["is_last"]), row["effects"]
