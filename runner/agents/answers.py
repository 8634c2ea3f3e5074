"""Does a human's answer fit what was asked?"""

from __future__ import annotations

from typing import Any

from ..errors import HitlInvalidAnswerError
from ..models import HitlRequest


def check_answer(request: HitlRequest, answer: Any) -> None:
    """Raises HitlInvalidAnswerError if the answer does not fit the request's JSON schema (semantics: H3)."""
    if request.answer_schema is None:
        return
    from jsonschema import Draft202012Validator

    errors = sorted(Draft202012Validator(request.answer_schema).iter_errors(answer), key=lambda e: e.json_path)
    if errors:
        faults = [{"path": e.json_path, "message": e.message} for e in errors]
        raise HitlInvalidAnswerError(
            f"the answer does not fit: {errors[0].json_path}: {errors[0].message}", request_id=request.request_id, errors=faults
        )
