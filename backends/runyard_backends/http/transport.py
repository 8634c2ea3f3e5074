"""Requests to the HTTP API and their replies: typed errors, repetition where it is safe, streams.

A request that had no effect is always repeated. A request had no effect if no server received it, or if a server refused it
because of a rate limit. Some requests have the same effect when they are sent twice. Such a request is also repeated when its
reply is lost, or when the server cannot reach Postgres or Redis.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import httpx

from runyard.errors import (
    BY_CODE,
    BackendUnavailableError,
    InvalidInputError,
    RateLimitedError,
    RequestTooLargeError,
    RunyardError,
    from_dict,
)
from runyard.models import JsonObject, check_id
from runyard.support import tracing
from runyard.support.store_retries import jittered

T = TypeVar("T")

MAX_SILENCE_SECONDS: Final = 60.0
"""Maximum seconds of silence in a stream. After this time, the connection counts as lost. The server's setting ``heartbeat``
must be shorter."""
UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Errors that occur before any server received the request."""
AWAY: Final = frozenset({502, 503, 504, *range(520, 528)})
"""HTTP statuses of a server that is not ready, or of a proxy that cannot reach its server."""
PROBLEM_PREFIX: Final = "urn:runyard:problem:"
SERVER_WAIT_SECONDS: Final = 10.0
"""Maximum seconds for which a request asks the server to wait for an outcome."""


class HttpReply(NamedTuple):
    """A reply of the API. ``status``: the HTTP status. ``data``: the decoded JSON of the body, None without a body."""

    status: int
    data: Any


class Frame(NamedTuple):
    """One frame of a stream. ``id``: the id to send when the stream reconnects after this frame. ``data``: an event as JSON, or
    empty if the server sent only an id."""

    id: str | None
    data: bytes


class Transport:
    """Connections to one API. ``http``: the httpx client, with the API's URL and key. ``patience``: maximum seconds for which a
    request is repeated."""

    def __init__(self, http: httpx.AsyncClient, patience: float) -> None:
        self._http, self._patience = http, patience

    @property
    def wait(self) -> float:
        """Maximum seconds for which a request asks the server to wait. The value is shorter than the request's timeout."""
        return min(SERVER_WAIT_SECONDS, (self._http.timeout.read or SERVER_WAIT_SECONDS) / 2)

    async def ask(
        self,
        method: str,
        *path: str,
        repeat: bool = True,
        query: Mapping[str, Any] | None = None,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Send one request and return its reply. ``path``: the segments below ``/v1``, not quoted. ``query``: the parameters.
        A parameter whose value is None is not sent. ``body``: the JSON object to send. ``repeat``: False if sending the
        request twice may have another effect.

        Raises the error that the server returns. Raises InvalidInputError for an invalid request. Raises
        BackendUnavailableError if the API cannot be reached or cannot serve. The details of a BackendUnavailableError have
        ``sent`` False if no server received the request.
        """
        request = self._request(method, _path(path), query, body, headers)
        return await self._patiently(lambda: self._answer(request), repeat)

    async def check(self) -> None:
        """Check once, without repetition, that the server is ready. Raises BackendUnavailableError if it is not."""
        await self._answer(self._request("GET", "/readyz"))

    @asynccontextmanager
    async def stream(self, *path: str, last: str | None) -> AsyncIterator[AsyncGenerator[Frame] | None]:
        """Open a stream after the id ``last`` (None: from the start). Return None if the stream has no more events. Otherwise
        return a generator, which yields frames until the connection ends."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": _header(last)} if last is not None else {})}
        request = self._request("GET", _path(path), None, None, headers)
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": MAX_SILENCE_SECONDS}
        response = await self._patiently(lambda: self._send(request, stream=True), repeat=True)
        try:
            if response.status_code == httpx.codes.NO_CONTENT:
                yield None
                return
            if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
                raise _strange(response)
            async with aclosing(_frames(response)) as frames:
                yield frames
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        named = {**tracing.headers(), **(headers or {})}
        content = None
        if body is not None:
            named["Content-Type"] = "application/json"
            try:
                content = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise InvalidInputError(f"the value cannot be sent as JSON: {error}") from None
        params = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            return self._http.build_request(method, path, params=params, content=content, headers=named)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise InvalidInputError(f"the request cannot be sent: {error}") from None

    async def _answer(self, request: httpx.Request) -> HttpReply:
        response = await self._send(request)
        if not response.content:
            return HttpReply(response.status_code, None)
        try:
            return HttpReply(response.status_code, json.loads(response.content))
        except ValueError:
            raise _strange(response) from None

    async def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            response = await self._http.send(request, stream=stream)
            if not response.is_success:
                await response.aread()
        except UNSENT as error:
            raise BackendUnavailableError(f"{request.url.host} cannot be reached: {_words(error)}", sent=False) from error
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise InvalidInputError(f"the request cannot be sent: {_words(error)}") from error
        except httpx.RequestError as error:
            raise BackendUnavailableError(f"{request.url.host} did not answer: {_words(error)}") from error
        if response.is_success:
            return response
        await response.aclose()
        raise _error(response)

    async def _patiently(self, call: Callable[[], Awaitable[T]], repeat: bool) -> T:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._patience
        delay = 0.05
        while True:
            try:
                return await call()
            except (BackendUnavailableError, RateLimitedError) as error:
                harmless = isinstance(error, RateLimitedError) or error.details.get("sent") is False
                pause = max(jittered(delay), float(error.details.get("retry_after", 0)))
                if not (repeat or harmless) or loop.time() + pause > give_up:
                    raise
            await asyncio.sleep(pause)
            delay = min(delay * 2, 2.0)


def _path(segments: tuple[str, ...]) -> str:
    """Join segments to a path. Each segment is quoted, because an id can contain any printable text."""
    return "/v1/" + "/".join(quote(check_id(segment, "id"), safe="") for segment in segments)


def _header(event_id: str) -> str:
    """Return the id as the value of a header. If a header cannot contain the id, return ``unknown``. No server issues such an
    id."""
    return event_id if event_id.isascii() and event_id.isprintable() else "unknown"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def from_problem(problem: Mapping[str, Any]) -> RunyardError:
    """Return the error that a problem document of runyard describes."""
    details = dict(problem.get("details") or {})
    if problem.get("errors"):
        details["errors"] = problem["errors"]
    return from_dict({"code": problem["code"], "message": str(problem.get("detail", "")), "details": details})


def _error(response: httpx.Response) -> RunyardError:
    """Return the error for a response that is not a success. The response comes from a server or from a proxy before the
    server."""
    try:
        found = json.loads(response.content)
    except ValueError:
        found = None
    problem = found if isinstance(found, dict) else {}
    after = response.headers.get("Retry-After", "")
    wait = {"retry_after": int(after)} if after.isdigit() else {}
    if _is_ours(problem):
        error = from_problem(problem)
        error.details = {**wait, **error.details}
        return error
    says = f"{response.url.host} answers {response.status_code}"
    if response.status_code in AWAY:
        why = "; ".join(map(str, problem.get("reasons") or ())) or f"it answers {response.status_code}"
        return BackendUnavailableError(f"{response.url.host} cannot serve requests: {why}", **wait)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimitedError(f"{says}: a proxy before the API limits the rate of requests; wait", **wait)
    if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return RequestTooLargeError(f"{says}: a proxy before the API limits the size of requests; raise its limit")
    return _strange(response)


def _is_ours(problem: dict[str, Any]) -> bool:
    """Return True if ``problem`` is a problem document of runyard, and not the JSON of a proxy."""
    known = problem.get("code") in BY_CODE or str(problem.get("type", "")).startswith(PROBLEM_PREFIX)
    return known and isinstance(problem.get("code"), str) and isinstance(problem.get("details") or {}, dict)


def _strange(response: httpx.Response) -> RunyardError:
    return RunyardError(
        f"{response.url} returned {response.status_code} and no answer of runyard; is it the URL of a runyard API?",
        status=response.status_code,
    )


async def _frames(response: httpx.Response) -> AsyncGenerator[Frame]:
    """Yield the frames of a stream until the stream ends or its connection is lost. Lines are split at newlines only. The JSON
    of an event contains no newline, but can contain other line separators."""
    rest = b""
    try:
        async for chunk in response.aiter_bytes():
            *blocks, rest = (rest + chunk).split(b"\n\n")
            for block in blocks:
                fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
                id, data = fields.get(b"id"), fields.get(b"data", b"")
                if id or data:
                    yield Frame(id.decode() if id is not None else None, data)
    except httpx.RequestError:
        return
