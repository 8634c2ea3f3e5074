"""Send all errors of :mod:`runyard.errors` as problem documents (RFC 9457).

The status of a response is the ``http_status`` of the error's class (``runyard/errors/*.py``). A problem has the error's stable
``code`` and its ``details``. ``detail`` is a sentence about the error and its remedy. ``errors`` lists the fields of a request
that do not fit the schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from runyard import errors
from runyard.domain.validation import words_of
from runyard.errors import RunyardError
from runyard.models import JsonValue

from .request_state import route_path, state_of

MAX_FIELDS: Final = 50
"""Maximum number of fields that one problem names."""
MAX_QUOTED_CHARACTERS: Final = 500
"""Maximum number of characters of a pointer, and of its message. A pointer and a message may quote the request."""
MEDIA_TYPE: Final = "application/problem+json"
ErrorShape: TypeAlias = Callable[[RunyardError, str], Response]
"""A function that returns the response for an error of the request with this id."""
ERROR_SHAPE: Final = "error_shape"
"""Key in the state of a request. If the request's errors are not problem documents, the value is their :data:`ErrorShape`."""
EVERYWHERE: Final[tuple[type[RunyardError], ...]] = (
    errors.InvalidInputError,
    errors.RequestError,
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    errors.RequestTimeoutError,
    errors.RequestTooLargeError,
    errors.HeadersTooLargeError,
    errors.InvalidRequestError,
    errors.RateLimitedError,
    errors.BackendUnavailableError,
    errors.SchemaError,
)
"""Errors that every route may return."""


class FieldError(BaseModel):
    """A field of a request that does not fit its schema. ``pointer``: a JSON pointer into the body, or the name of a
    parameter."""

    location: str = Field(description="body, path, query or header", examples=["body"])
    pointer: str = Field(examples=["/message/content/0/text"])
    message: str = Field(examples=["Input should be a valid string"])


class Problem(BaseModel):
    """A problem (RFC 9457)."""

    type: str = Field(description="URN of the kind of problem.", examples=["urn:runyard:problem:run_conflict"])
    title: str = Field(description="Name of the HTTP status.", examples=["Conflict"])
    status: int = Field(description="HTTP status.", examples=[409])
    code: str = Field(description="Stable code of the error, for programs.", examples=["run_conflict"])
    detail: str = Field(description="Sentence about the error and its remedy.")
    instance: str = Field(description="URN of the request's id. The access log has the same id.", examples=["urn:uuid:0198…"])
    details: dict[str, JsonValue] = Field(
        default_factory=dict, description="Facts about the error. Their names depend on the code."
    )
    errors: list[FieldError] | None = Field(None, description="The parts of the request that do not fit the schema.")


class ProblemResponse(Response):
    """A response with a problem."""

    media_type = MEDIA_TYPE


def problem_of(error: RunyardError, request_id: str) -> Problem:
    """Return the problem document of ``error``, as a part of the response to the request."""
    details = dict(error.details)
    found = details.pop("errors", None) if isinstance(error, errors.InvalidRequestError) else None
    return Problem.model_construct(
        type=f"urn:runyard:problem:{error.code}",
        title=HTTPStatus(error.http_status).phrase,
        status=error.http_status,
        code=error.code,
        detail=error.message,
        instance=f"urn:uuid:{request_id}",
        details=details,
        errors=found and [FieldError.model_construct(**each) for each in found],
    )


def response(error: RunyardError, request_id: str, headers: Mapping[str, str] | None = None) -> ProblemResponse:
    """Return ``error`` as the response to the request."""
    body = {name: value for name, value in problem_of(error, request_id).__dict__.items() if value is not None}
    # A message may quote a lone surrogate. json.dumps escapes the surrogate. Pydantic's JSON would fail.
    content = json.dumps(to_jsonable_python(body, fallback=str))
    return ProblemResponse(content, error.http_status, {**headers_of(error), **(headers or {})})


def headers_of(error: RunyardError) -> dict[str, str]:
    """Return the headers of the response for ``error``."""
    match error:
        case errors.UnauthenticatedError():
            return {"WWW-Authenticate": 'Bearer realm="runyard"'}
        case errors.MethodNotAllowedError():
            return {"Allow": str(error.details.get("allow", ""))}
        case errors.BackendUnavailableError() | errors.SchemaError():
            return {"Retry-After": "1"}
        case _ if "retry_after" in error.details:
            return {"Retry-After": str(max(1, math.ceil(float(error.details["retry_after"]))))}
    return {}


async def send(error: RunyardError, scope: Scope, receive: Receive, send: Send) -> None:
    """Send ``error`` as the response of a middleware."""
    await _shaped(error, scope)(scope, receive, send)


def _shaped(error: RunyardError, scope: Scope) -> Response:
    state = state_of(scope)
    state["code"] = error.code
    shape: ErrorShape = state.get(ERROR_SHAPE, response)
    return shape(error, request_id_of(scope))


def request_id_of(scope: Scope) -> str:
    """Return the id of the request."""
    return str(state_of(scope).get("request_id", "00000000-0000-0000-0000-000000000000"))


def install(app: FastAPI) -> None:
    """Make ``app`` answer every error of its routes with a problem document, or with the request's :data:`ErrorShape`."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RunyardError)
        return _shaped(error, request.scope)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await refused(request, invalid_request(error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return await refused(request, _of_http(request, error))

    app.add_exception_handler(RunyardError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)


def wrong_entry(error: ValidationError, body: BaseModel, name: str, place: int) -> RequestValidationError:
    """Return the ``error`` of one list entry as an error of the request. The entries of the list are checked one by one.
    ``name``: the field of ``body`` that has the list. ``place``: the index of the wrong entry."""
    fields = error.errors(include_url=False, include_context=False, include_input=False)
    found = [{**field, "loc": ("body", name, place, *field["loc"])} for field in fields]
    return RequestValidationError(found, body=body.__dict__)


def invalid_request(error: RequestValidationError) -> errors.InvalidRequestError:
    """Convert ``error``. The returned error names the fields that do not fit the schema of the request."""
    listed: dict[tuple[str, str], str] = {}
    for one in error.errors()[:MAX_FIELDS]:
        where, *path = one["loc"] or ("body",)
        pointer = _pointer(error.body, path, one["type"] == "missing") if where == "body" else str(path[0]) if path else ""
        listed.setdefault((str(where), pointer[:MAX_QUOTED_CHARACTERS]), words_of(one)[:MAX_QUOTED_CHARACTERS])
    # Of a union, take the error of the alternative that fits best. This is the error at the deepest place.
    best = {at: words for at, words in listed.items() if not any(_is_inside(other, at) for other in listed)}
    found = [{"location": where, "pointer": pointer, "message": words} for (where, pointer), words in best.items()]
    first = found[0]
    return errors.InvalidRequestError(f"{first['pointer'] or first['location']}: {first['message']}", errors=found)


def _pointer(body: Any, path: Sequence[str | int], missing: bool) -> str:
    """Return the JSON pointer of ``path`` in ``body``. ``missing``: True if the last part of the path is not in the body.

    The pointer omits parts of the path that name an alternative of a union, because such parts are not in the body.
    """
    pointer = ""
    for n, part in enumerate(path):
        there = (
            part in body if isinstance(body, dict) else isinstance(part, int) and isinstance(body, list) and part < len(body)
        )
        if there:
            body = body[part]
        if there or (missing and n == len(path) - 1):
            pointer += f"/{_escaped(part)}"
    return pointer


def _is_inside(inner: tuple[str, str], outer: tuple[str, str]) -> bool:
    return inner[0] == outer[0] and inner[1].startswith(f"{outer[1]}/")


def _escaped(part: object) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


def _of_http(request: Request, error: HTTPException) -> RunyardError:
    """Return the runyard error for an error of the framework."""
    if isinstance(error, Refusal):
        return error.error
    if error.status_code == HTTPStatus.NOT_FOUND:
        return errors.RouteNotFoundError("there is no such path; /openapi.json lists the paths")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allow = ", ".join(sorted(_methods(request) or _undocumented(error)))
        method = "HEAD" if state_of(request.scope).get("head", False) else request.method
        return errors.MethodNotAllowedError(f"this path allows {allow}, not {method}", allow=allow)
    return errors.RequestError(str(error.detail))


def _undocumented(error: HTTPException) -> set[str]:
    """Return the methods of a path that is not in the OpenAPI document. The header ``Allow`` of the framework's error names
    these methods."""
    found = set(filter(None, (error.headers or {}).get("Allow", "").split(", ")))
    return found | {"HEAD"} if "GET" in found else found


def _methods(request: Request) -> set[str]:
    """Return the methods that the path allows. If several templates match, use the template with the fewest ids."""
    path = route_path(request.scope)
    fitting = {
        template: methods
        for template, methods in request.app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), path)
    }
    nearest = min(fitting, key=lambda template: template.count("{"), default=None)
    found = {method.upper() for method in fitting[nearest]} if nearest is not None else set()
    return found | {"HEAD"} if "GET" in found else found


class Refusal(HTTPException):
    """Carries an error of runyard through code of the framework. This code passes on only the framework's own exceptions."""

    def __init__(self, error: RunyardError) -> None:
        super().__init__(error.http_status)
        self.error = error


def document_header(name: str) -> dict[str, str]:
    """Return a reference to a header of a response, for the OpenAPI document."""
    return {"$ref": f"#/components/headers/{name}"}


def documented(*classes: type[RunyardError]) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route for the OpenAPI document: the errors of ``classes`` and of EVERYWHERE."""
    by_status: dict[int, list[type[RunyardError]]] = {}
    for cls in dict.fromkeys((*classes, *EVERYWHERE)):
        by_status.setdefault(cls.http_status, []).append(cls)
    return {status: _documented(status, found) for status, found in sorted(by_status.items())}


def _documented(status: int, found: Sequence[type[RunyardError]]) -> dict[str, Any]:
    says = {cls.code: (cls.__doc__ or "").splitlines()[0].replace("``", "`") for cls in found}
    content: dict[str, Any] = {
        "schema": {"$ref": "#/components/schemas/Problem"},
        "examples": {code: {"summary": words, "value": _example(status, code, words)} for code, words in says.items()},
    }
    described: dict[str, Any] = {
        "description": " ".join(f"`{code}`: {words}" for code, words in says.items()),
        "content": {MEDIA_TYPE: content},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        described["headers"] = {"Retry-After": document_header("Retry-After")}
    return described


def _example(status: int, code: str, words: str) -> dict[str, Any]:
    return {
        "type": f"urn:runyard:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": words,
        "instance": "urn:uuid:01980000-0000-7000-8000-000000000000",
        "details": {},
    }
