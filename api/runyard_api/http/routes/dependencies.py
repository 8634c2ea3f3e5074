"""The parts that routes share: the caller, ids in paths, pages, responses, and the documentation of an operation."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Annotated, Any, Final, TypedDict

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from runyard.domain.api_keys import Scope
from runyard.domain.webhooks import HIDE_WEBHOOKS
from runyard.errors import ForbiddenError, InvalidInputError, InvalidRequestError, RunyardError, UnsupportedMediaTypeError
from runyard.models import MAX_ID_LENGTH

from ..auth import Principal
from ..field_types import ID_SCHEMA, checked_id
from ..parameters import Known
from ..paths import decoded
from ..problems import Refusal, document_header, documented
from ..reading import OUT_OF_BOUNDS, read
from ..service import Caller, Service

_LONGEST_CURSOR: Final = 2000


_shows_webhooks: Final = ContextVar("shows_webhooks", default=False)
"""True if the caller may see the webhook URLs of runs: if it has the scope write or admin."""


class Body(Request):
    """A request whose JSON is bounded in depth, number of values and digits, and has no NaN and no lone surrogate."""

    async def json(self) -> Any:
        try:
            return read(await self.body())
        except ValueError as error:
            raise _unreadable(str(error)) from None


def _unreadable(why: str) -> Refusal:
    at = {"location": "body", "pointer": "", "message": why}
    return Refusal(InvalidRequestError(f"the body is not JSON that can be read: {why}", errors=[at]))


class Route(APIRoute):
    """A route that accepts only bodies of JSON, and only callers that have the scope of the route."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = Known(self)
        security: list[dict[str, list[Scope]]] = (self.openapi_extra or {}).get("security", [])
        scopes = {scope for scheme in security for scopes in scheme.values() for scope in scopes}

        async def route(request: Request) -> Response:
            for scope in scopes:  # before the body is read
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
    """Return the service that the routes share."""
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
                raise ForbiddenError("a stream token can only read streams")
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


def _id(description: str) -> Any:
    return Path(min_length=1, max_length=MAX_ID_LENGTH, description=description, json_schema_extra=ID_SCHEMA)


ThreadId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the thread.")]
RunId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the run.")]
MessageId = Annotated[
    str,
    BeforeValidator(decoded),
    Path(max_length=MAX_ID_LENGTH, description="Id of the message.", json_schema_extra={"format": "uuid"}),
]
AgentName = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Name of the agent.")]
RequestId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the request.")]

Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries of the page.")]
Cursor = Annotated[
    str | None,
    Query(max_length=_LONGEST_CURSOR, description="The `next` of the previous page.", json_schema_extra={"format": "cursor"}),
]


def bounded(limit: int, caller: Caller) -> int:
    """Return ``limit``. Raises InvalidInputError if a page may not have so many entries."""
    most = caller.service.settings.max_page
    if limit > most:
        raise InvalidInputError(f"limit is 1 to {most} here, got {limit}", field="limit")
    return limit


class PageArguments(TypedDict):
    """The arguments with which the client's methods select the page of a list."""

    limit: int
    cursor: str | None


async def _page_arguments(caller: Reads, limit: Limit = 100, cursor: Cursor = None) -> PageArguments:
    return {"limit": bounded(limit, caller), "cursor": cursor}


Paging = Annotated[PageArguments, Depends(_page_arguments)]


def reply(content: BaseModel, status: int = 200, **headers: str) -> Response:
    """Return ``content`` as a JSON response. Underscores in the names of ``headers`` stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(to_bytes(content), status, named, media_type="application/json")


def to_bytes(content: BaseModel) -> bytes:
    """Return ``content`` as JSON. Text that is not valid Unicode is escaped; agents may have stored such text."""
    context = {HIDE_WEBHOOKS: not _shows_webhooks.get()}
    try:
        return content.model_dump_json(context=context).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        return json.dumps(to_jsonable_python(content, context=context)).encode()


_KNOWN: Final = Header(
    max_length=_LONGEST_CURSOR, description="ETag of the version that the caller has. 304 if it is still current."
)
_MATCH: Final = Header(max_length=_LONGEST_CURSOR, description="ETag of the version to change. 412 if it is not current.")


def _if_none_match(request: Request, if_none_match: Annotated[str | None, _KNOWN] = None) -> list[str] | None:
    return None if if_none_match is None else _tags(request.headers.getlist("if-none-match"))


def _if_match(request: Request, if_match: Annotated[str | None, _MATCH] = None) -> list[str] | None:
    return None if if_match is None else _tags(request.headers.getlist("if-match"))


def _tags(lines: list[str]) -> list[str]:
    """Return the tags of all lines of a header, which are one list (RFC 9110, 5.3)."""
    return [tag.strip() for tag in ",".join(lines).split(",")]


IfNoneMatch = Annotated[list[str] | None, Depends(_if_none_match)]
IfMatch = Annotated[list[str] | None, Depends(_if_match)]
ANY: Final = ["*"]
"""The value ``*`` of If-Match or If-None-Match, which matches any tag. In a longer list ``*`` matches none (RFC 9110, 13.1)."""


def reply_if_changed(content: bytes, tag: str, known: list[str] | None) -> Response:
    """Return ``content`` as JSON with the ETag ``tag``, or 304 if ``known``, the If-None-Match of the request, has the tag."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if known is not None and (known == ANY or tag in {each.removeprefix("W/") for each in known}):
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, media_type="application/json")


def operation(scope: Scope | None, *refusals: type[RunyardError], token: bool = False, **answers: Any) -> dict[str, Any]:
    """Return the arguments of a route's decorator that document it.

    ``scope``: the scope that a key needs; None for any key. ``refusals``: the errors. ``answers``: the responses by status, as
    ``s201=(Model, description, "Location", …)`` with the names of their headers. Model is None for a response without content.
    ``token``: True if a stream token is accepted.
    """
    responses = documented(*refusals)
    for name, (model, words, *headers) in answers.items():
        described = {"description": words, "headers": {header: document_header(header) for header in headers}}
        responses[int(name.removeprefix("s"))] = {**described, **({"model": model} if model is not None else {})}
    scopes = [scope] if scope is not None else []
    schemes: list[dict[str, list[Scope]]] = [{"apiKey": scopes}, {"apiKeyHeader": scopes}]
    security = [*schemes, {"streamToken": []}] if token else schemes
    return {"responses": dict(sorted(responses.items())), "openapi_extra": {"security": security}}


Wait = Annotated[float, Query(ge=0, le=3600, description="Most seconds to wait. The server has an upper bound of its own.")]
LastEventId = Annotated[
    str | None,
    Header(max_length=20_000, description="Id of the last event that arrived. Browsers send this header by themselves."),
]
EVENTS: Final = (None, "The events. While there are none, comments show that the stream is open.")


def patience(wait: float, caller: Caller) -> float:
    """Return ``wait``, or the longest wait that the settings allow if that is shorter."""
    return min(wait, caller.service.settings.max_wait)
