"""What all routes are made of: who asks, ids in paths, pages, answers, and how an operation is documented."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runner.errors import ForbiddenError, InvalidInputError, InvalidRequestError, RunyardError, UnsupportedMediaTypeError
from runner.keys import Scope
from runner.models import MAX_ID_LENGTH, check_id
from runner.webhooks.masking import HIDE_WEBHOOKS

from ..auth import Principal
from ..parameters import Known
from ..paths import decoded
from ..problems import Refusal, document_header, documented
from ..reading import OUT_OF_BOUNDS, read
from ..schemas import ID_SCHEMA
from ..service import Caller, Service

_LONGEST_CURSOR: Final = 2000


_shows_webhooks: Final = ContextVar("shows_webhooks", default=False)
"""Whether who asks may see the URLs that runs report to: whoever could have given them."""


class Body(Request):
    """A request whose JSON is bounded in depth, number of values and digits, and has no NaN and no lone surrogate."""

    async def json(self) -> Any:
        try:
            return read(await self.body())
        except ValueError as error:
            raise _unreadable(str(error)) from None


def _unreadable(why: str) -> Refusal:
    at = {"location": "body", "pointer": "", "message": why}
    return Refusal(InvalidRequestError(f"the body is no JSON that can be read: {why}", errors=[at]))


class Route(APIRoute):
    """A route that takes JSON and nothing else, of those only whose key has the route's scope."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = Known(self)
        security: list[dict[str, list[Scope]]] = (self.openapi_extra or {}).get("security", [])
        scopes = {scope for scheme in security for scopes in scheme.values() for scope in scopes}

        async def route(request: Request) -> Response:
            for scope in scopes:  # before the body is looked at
                request.scope["state"]["principal"].require(scope)
            known.check(request)
            if self.body_field is not None:
                if not _is_json(request):
                    raise UnsupportedMediaTypeError("send the body as application/json, with that Content-Type")
                if OUT_OF_BOUNDS in request.scope["state"]:
                    raise _unreadable(request.scope["state"][OUT_OF_BOUNDS])
            return await handle(Body(request.scope, request.receive))

        return route


def _is_json(request: Request) -> bool:
    if request.headers.get("content-length") == "0":
        return True
    kind = request.headers.get("content-type")
    return (kind is None and "content-length" not in request.headers) or (kind or "").partition(";")[
        0
    ].strip().lower() == "application/json"


def service_of(request: Request) -> Service:
    """What the routes share."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def _anyone(request: Request) -> Principal:
    principal = request.scope["state"]["principal"]
    assert isinstance(principal, Principal)
    return principal


def _caller(scope: Scope, *, stream: bool = False) -> Callable[[Request], Coroutine[Any, Any, Caller]]:
    async def caller(request: Request) -> Caller:
        principal = await _anyone(request)
        principal.require(scope)
        _shows_webhooks.set(not principal.scopes.isdisjoint(("write", "admin")))
        if principal.only is not None:
            if not stream:
                raise ForbiddenError("a stream token reads streams and nothing else")
            thread_id, run_id = principal.only
            asked = {name: decoded(value) for name, value in request.path_params.items()}
            if asked.get("thread_id") != thread_id or run_id not in (None, asked.get("run_id")):
                raise ForbiddenError("the stream token is for another stream")
        return await service_of(request).caller(principal, str(request.scope.get("root_path", "")))

    return caller


Anyone = Annotated[Principal, Depends(_anyone)]
Reads = Annotated[Caller, Depends(_caller("read"))]
Writes = Annotated[Caller, Depends(_caller("write"))]
Responds = Annotated[Caller, Depends(_caller("respond"))]
Administers = Annotated[Caller, Depends(_caller("admin"))]
Streams = Annotated[Caller, Depends(_caller("read", stream=True))]


def _checked(value: str) -> str:
    return check_id(value, "id")


def _id(description: str) -> Any:
    return Path(min_length=1, max_length=MAX_ID_LENGTH, description=description, json_schema_extra=ID_SCHEMA)


ThreadId = Annotated[str, BeforeValidator(decoded), AfterValidator(_checked), _id("The thread's id.")]
RunId = Annotated[str, BeforeValidator(decoded), AfterValidator(_checked), _id("The run's id.")]
MessageId = Annotated[
    str,
    BeforeValidator(decoded),
    Path(max_length=MAX_ID_LENGTH, description="The message's id.", json_schema_extra={"format": "uuid"}),
]
AgentName = Annotated[str, BeforeValidator(decoded), AfterValidator(_checked), _id("The agent's name.")]
RequestId = Annotated[str, BeforeValidator(decoded), AfterValidator(_checked), _id("The request's id.")]

Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=_LONGEST_CURSOR, description="The `next` of the page before.", json_schema_extra={"format": "cursor"}),
]


def bounded(limit: int, caller: Caller) -> int:
    """``limit`` if a page may have so many entries. Raises InvalidInputError."""
    most = caller.service.settings.max_page
    if limit > most:
        raise InvalidInputError(f"limit is 1 to {most} here, got {limit}", field="limit")
    return limit


def reply(content: BaseModel, status: int = 200, **headers: str) -> Response:
    """``content`` as JSON. Underscores in the names of ``headers`` stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(to_bytes(content), status, named, media_type="application/json")


def to_bytes(content: BaseModel) -> bytes:
    """JSON; also of text that is no valid Unicode, which agents may have stored."""
    context = {HIDE_WEBHOOKS: not _shows_webhooks.get()}
    try:
        return content.model_dump_json(context=context).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        return json.dumps(to_jsonable_python(content, context=context)).encode()


_KNOWN: Final = Header(max_length=_LONGEST_CURSOR, description="An ETag that is already known.")
_MATCH: Final = Header(max_length=_LONGEST_CURSOR, description="The ETag of what is to be changed; refused if it is another.")


def _if_none_match(request: Request, if_none_match: Annotated[str | None, _KNOWN] = None) -> list[str] | None:
    return None if if_none_match is None else _tags(request.headers.getlist("if-none-match"))


def _if_match(request: Request, if_match: Annotated[str | None, _MATCH] = None) -> list[str] | None:
    return None if if_match is None else _tags(request.headers.getlist("if-match"))


def _tags(lines: list[str]) -> list[str]:
    """Several lines of a header are one list (RFC 9110, 5.3)."""
    return [tag.strip() for tag in ",".join(lines).split(",")]


IfNoneMatch = Annotated[list[str] | None, Depends(_if_none_match)]
IfMatch = Annotated[list[str] | None, Depends(_if_match)]
ANY: Final = ["*"]
"""Of If-Match or If-None-Match: whatever the tag is. In a list with others ``*`` is no tag (RFC 9110, 13.1)."""


def reply_if_changed(content: bytes, tag: str, known: list[str] | None) -> Response:
    """``content`` as JSON under ``tag``; 304 if the caller knows it. ``known``: the request's If-None-Match."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if known is not None and (known == ANY or tag in {each.removeprefix("W/") for each in known}):
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media_type="application/json")


def operation(scope: Scope | None, *refusals: type[RunyardError], token: bool = False, **answers: Any) -> dict[str, Any]:
    """What a route's decorator says besides its path: the scope (None: any), the errors, and answers by status
    (``s201=(Model, words, "Location", …)``: with their headers; None for an answer without content). ``token``: a stream token
    will do."""
    responses = documented(*refusals)
    for name, (model, words, *headers) in answers.items():
        described = {"description": words, "headers": {header: document_header(header) for header in headers}}
        responses[int(name.removeprefix("s"))] = {**described, **({"model": model} if model is not None else {})}
    scopes = [scope] if scope is not None else []
    schemes: list[dict[str, list[Scope]]] = [{"apiKey": scopes}, {"apiKeyHeader": scopes}]
    security = [*schemes, {"streamToken": []}] if token else schemes
    return {"responses": dict(sorted(responses.items())), "openapi_extra": {"security": security}}


Wait = Annotated[float, Query(ge=0, le=3600, description="Seconds to wait at most; the server has an upper bound of its own.")]
LastEventId = Annotated[
    str | None, Header(max_length=20_000, description="The id of the last event that arrived; a browser sends it by itself.")
]
EVENTS: Final = (None, "The events, one after the other, with a comment every 15 seconds of silence.")


def patience(wait: float, caller: Caller) -> float:
    """``wait``, cut to what this server allows."""
    return min(wait, caller.service.settings.max_wait)
