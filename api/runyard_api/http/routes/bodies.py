"""Check the bodies of requests. Routes accept only JSON within the bounds of :mod:`runyard_api.http.reading` (A2)."""

from __future__ import annotations

from typing import Any

from fastapi import Request

from runyard.domain.json_text import read
from runyard.errors import InvalidRequestError, UnsupportedMediaTypeError

from ..problems import Refusal
from ..reading import OUT_OF_BOUNDS
from ..request_state import state_of


class Body(Request):
    """A request with checked JSON. The depth, the number of values and the number of digits are limited. NaN and lone
    surrogates are refused."""

    async def json(self) -> Any:
        try:
            return read(await self.body())
        except ValueError as error:
            raise _unreadable(str(error)) from None


def check_body(request: Request) -> None:
    """Check the body of ``request``. Raises UnsupportedMediaTypeError if the body is not JSON, and a Refusal if it exceeds a
    bound."""
    if not _is_json(request):
        raise UnsupportedMediaTypeError("send the body as JSON, with Content-Type: application/json")
    if OUT_OF_BOUNDS in state_of(request.scope):
        raise _unreadable(state_of(request.scope)[OUT_OF_BOUNDS])


def _unreadable(why: str) -> Refusal:
    at = {"location": "body", "pointer": "", "message": why}
    return Refusal(InvalidRequestError(f"the body cannot be read as JSON: {why}", errors=[at]))


def _is_json(request: Request) -> bool:
    if request.headers.get("content-length") == "0":
        return True
    kind = request.headers.get("content-type")
    return (kind is None and "content-length" not in request.headers) or (kind or "").partition(";")[
        0
    ].strip().lower() == "application/json"
