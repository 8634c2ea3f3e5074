"""HITL requests: the questions and approvals for which a run waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from ..errors import HitlInvalidAnswerError, InvalidInputError
from .base_models import StrictModel
from .size_limits import JsonObject, JsonValue, check_value
from .validation import check_id, new_id

ANSWERED_AT_DEADLINE: Final = "deadline"
"""Value of ``answered_by`` in a request that got its default answer at the deadline."""

MAX_PERSON_CHARACTERS: Final = 1000
"""Maximum number of characters of ``answered_by``, ``on_behalf_of`` and ``sent_by``."""


class HitlRequest(StrictModel):
    """A request to a human: a question, an approval, or the question whether a step was done.

    ``answer_schema``: JSON schema of the answers. ``deadline_at``: the time at which the wait ends. ``on_deadline``: the
    outcome at the deadline, ``{"fail": true}`` or ``{"answer": …}``. ``timeout``: seconds to wait. The store adds these seconds
    to the time of its own clock to compute ``deadline_at``. The store sets ``thread_id``, ``run_id``, ``agent`` (the agent of
    the run, or None) and ``created_at``. ``answered_by``: the name of the responder. Over HTTP, this is the name of the API
    key. ``on_behalf_of``: the name of the person for whom the responder answered. This name is not verified. ``damaged``: the
    names of the fields that a list leaves empty because their stored value cannot be decoded.
    """

    request_id: str = Field(default_factory=new_id)
    kind: Literal["question", "approval", "step"] = "question"
    payload: JsonObject = Field(default_factory=dict)
    answer_schema: JsonObject | None = None
    deadline_at: datetime | None = None
    timeout: float | None = Field(None, ge=0, allow_inf_nan=False)
    on_deadline: JsonObject | None = None
    thread_id: str | None = None
    run_id: str | None = None
    agent: str | None = None
    created_at: datetime | None = None
    answer: JsonValue = None
    response_id: str | None = None
    answered_by: str | None = None
    on_behalf_of: str | None = None
    answered_at: datetime | None = None
    damaged: list[str] = Field(default_factory=list)


def check_requests(*requests: HitlRequest) -> None:
    """Raise :class:`InvalidInputError` if a request has an invalid id, or has a value that exceeds its bounds."""
    for request in requests:
        check_id(request.request_id, "request_id")
        for name in ("payload", "answer_schema", "on_deadline"):
            check_value(getattr(request, name), name)


def check_names(**names: str | None) -> None:
    """Raise :class:`InvalidInputError` if a name is too long. ``names``: the names, by field."""
    for field, name in names.items():
        if name is not None and len(name) > MAX_PERSON_CHARACTERS:
            message = f"{field} has at most {MAX_PERSON_CHARACTERS} characters, got {len(name)}"
            raise InvalidInputError(message, field=field)


def check_answer(request: HitlRequest, answer: Any) -> None:
    """Raise HitlInvalidAnswerError if the answer does not fit the request's JSON schema (H3).

    No answer fits a schema that refers to another schema by a URL, because runyard fetches no URL (M5).
    """
    if request.answer_schema is not None and (found := misfit(request.answer_schema, answer, "answer")) is not None:
        message, faults = found
        raise HitlInvalidAnswerError(message, request_id=request.request_id, errors=faults)


def misfit(schema: JsonObject, value: Any, what: str) -> tuple[str, list[JsonObject]] | None:
    """Return the reason why ``value`` does not fit the JSON schema, and a list of the faults. Return None if the value fits.

    ``what``: the word for the value in the text of the reason. No value fits a schema that refers to another schema by a URL.
    """
    from jsonschema import Draft202012Validator
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    validator = Draft202012Validator(schema, registry=EMPTY_REGISTRY)  # the default registry fetches URLs
    try:
        errors = sorted(validator.iter_errors(value), key=lambda e: e.json_path)
    except Unresolvable as error:
        return f"no {what} can fit: the schema refers to {error.ref}, which is not fetched; copy its text into the schema", []
    if not errors:
        return None
    faults: list[JsonObject] = [{"path": e.json_path, "message": e.message} for e in errors]
    return f"the {what} does not fit: {errors[0].json_path}: {errors[0].message}", faults
