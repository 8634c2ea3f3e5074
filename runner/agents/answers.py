"""Does a human's answer fit what was asked?"""

from __future__ import annotations

from typing import Any

from ..errors import HitlInvalidAnswerError
from ..models import HitlRequest


def check_answer(request: HitlRequest, answer: Any) -> None:
    """Raises HitlInvalidAnswerError if the answer does not fit the request's JSON schema (semantics: H3), or if that refers to
    another one, by a URL: nothing is fetched (semantics: M5)."""
    if request.answer_schema is None:
        return
    from jsonschema import Draft202012Validator
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    validator = Draft202012Validator(request.answer_schema, registry=EMPTY_REGISTRY)  # its own default asks the network
    try:
        errors = sorted(validator.iter_errors(answer), key=lambda e: e.json_path)
    except Unresolvable as error:
        raise HitlInvalidAnswerError(
            f"no answer can fit: the question's schema refers to {error.ref}, and nothing is fetched",
            request_id=request.request_id,
        ) from None
    if errors:
        faults = [{"path": e.json_path, "message": e.message} for e in errors]
        raise HitlInvalidAnswerError(
            f"the answer does not fit: {errors[0].json_path}: {errors[0].message}", request_id=request.request_id, errors=faults
        )
