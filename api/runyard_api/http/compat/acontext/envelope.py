"""The envelope of every answer: ``code``, ``data`` and ``msg``. ``code`` is 0, or the HTTP status of an error.

Acontext has no status 422. An invalid request gets 400 instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from fastapi import Response
from pydantic import BaseModel, Field

from runyard.errors import RunyardError

from ...problems import EVERYWHERE, document_header, headers_of

D = TypeVar("D")


class Answer(BaseModel, Generic[D]):
    """A success."""

    code: int = 0
    data: D
    msg: str = ""

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        return f"{params[0].__name__}Answer"


class Done(BaseModel):
    """A success without data. ``msg``: ``pong`` in the answer of a ping."""

    code: int = 0
    data: None = None
    msg: str = ""


class Failure(BaseModel):
    """An error. ``error``: the stable code of the error in runyard, for programs."""

    code: int = Field(description="HTTP status.", examples=[404])
    data: None = None
    msg: str = Field(description="Sentence about the error and its remedy.")
    error: str = Field(examples=["thread_not_found"])


def _status(cls: type[RunyardError]) -> int:
    return 400 if cls.http_status == HTTPStatus.UNPROCESSABLE_ENTITY else cls.http_status


def failure(error: RunyardError, request_id: str) -> Response:
    """Return ``error`` as a response in the envelope. The header X-Request-Id has the ``request_id``."""
    status = _status(type(error))
    content = {"code": status, "data": None, "msg": error.message, "error": error.code}
    # A message may quote a lone surrogate. json.dumps escapes it.
    return Response(json.dumps(content), status, headers_of(error), media_type="application/json")


_LATER: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def operation(*refusals: type[RunyardError], **answers: tuple[Any, str]) -> Mapping[str, Any]:
    """Return the arguments of a route's decorator that document its responses.

    ``refusals``: the errors of the route, without the errors that every route has. ``answers``: the responses by status, as
    ``s201=(Model, words)``.
    """
    codes: dict[int, list[str]] = {}
    for cls in dict.fromkeys((*refusals, *EVERYWHERE)):
        codes.setdefault(_status(cls), []).append(cls.code)
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": Failure, "description": ", ".join(f"`{code}`" for code in found)}
        for status, found in sorted(codes.items())
    }
    for status in _LATER:
        responses[status]["headers"] = {"Retry-After": document_header("Retry-After")}
    for name, (model, words) in answers.items():
        responses[int(name.removeprefix("s"))] = {"model": model, "description": words}
    return {"responses": {**responses, "default": {"model": Failure, "description": "Any other error."}}}
