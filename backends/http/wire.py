"""Requests to the HTTP API and their answers: typed errors, repetition where that is safe, streams.

A request is repeated when nobody can have acted on it, because no server took it or one refused it for its rate, and, where a
repetition has the same effect, also when its answer was lost or a server says that it could not reach its own servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import httpx

from runner.errors import (
    BY_CODE,
    BackendUnavailableError,
    InvalidInputError,
    RateLimitedError,
    RequestTooLargeError,
    RunyardError,
    from_dict,
)
from runner.models import JsonObject, check_id
from runner.patience import jittered

T = TypeVar("T")

SILENCE: Final = 60.0
"""Seconds without a byte after which a stream counts as broken; a server sends a comment every 15."""
UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures before any server saw the request."""
AWAY: Final = frozenset({502, 503, 504, *range(520, 528)})
"""What proxies answer for a server that is away."""
OURS: Final = "urn:runyard:problem:"
WAIT: Final = 10.0
"""Seconds for which a server is asked to wait before it answers."""


class Answer(NamedTuple):
    """``status``, and ``data`` as the JSON that came with it, None without any."""

    status: int
    data: Any


class Frame(NamedTuple):
    """One event of a stream, as JSON, and the id to come back with; ``data`` is empty where such an id comes by itself."""

    id: str | None
    data: bytes


class Wire:
    """Connections to one API. ``patience``: seconds for which a request is repeated."""

    def __init__(self, http: httpx.AsyncClient, patience: float) -> None:
        self._http, self._patience = http, patience

    @property
    def wait(self) -> float:
        """Seconds for which a request may ask the server to wait, and still have its answer in time."""
        return min(WAIT, (self._http.timeout.read or WAIT) / 2)

    async def ask(
        self,
        method: str,
        *path: str,
        repeat: bool = True,
        query: Mapping[str, Any] | None = None,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer to one request. ``path``: its segments below ``/v1``. ``query``: None values are left out. ``repeat``:
        False if a repetition may have another effect.

        Raises the error that the server answers, InvalidInputError, and BackendUnavailableError, with ``sent`` False in its
        details if no server saw the request.
        """
        request = self._request(method, _path(path), query, body, headers)
        return await self._patiently(lambda: self._answer(request), repeat)

    async def check(self) -> None:
        """Ask once whether the server is ready. Raises BackendUnavailableError."""
        await self._answer(self._request("GET", "/readyz"))

    @asynccontextmanager
    async def stream(self, *path: str, last: str | None) -> AsyncIterator[AsyncGenerator[Frame] | None]:
        """The frames of a stream after the id ``last``, None if there is nothing more. They stop where the connection does."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": _header(last)} if last is not None else {})}
        request = self._request("GET", _path(path), None, None, headers)
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": SILENCE}
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
        named = dict(headers or {})
        content = None
        if body is not None:
            named["Content-Type"] = "application/json"
            try:
                content = json.dumps(body, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise InvalidInputError(f"this is no JSON that can be sent: {error}") from None
        params = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            return self._http.build_request(method, path, params=params, content=content, headers=named)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise InvalidInputError(f"this cannot be sent: {error}") from None

    async def _answer(self, request: httpx.Request) -> Answer:
        response = await self._send(request)
        if not response.content:
            return Answer(response.status_code, None)
        try:
            return Answer(response.status_code, json.loads(response.content))
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
            raise InvalidInputError(f"this cannot be sent: {_words(error)}") from error
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
    """Ids may hold any printable text."""
    return "/v1/" + "/".join(quote(check_id(segment, "id"), safe="") for segment in segments)


def _header(event_id: str) -> str:
    """An id that no header can carry is none that a server issued."""
    return event_id if event_id.isascii() and event_id.isprintable() else "unknown"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _error(response: httpx.Response) -> RunyardError:
    """What a server, or a proxy before it, refused with."""
    try:
        found = json.loads(response.content)
    except ValueError:
        found = None
    problem = found if isinstance(found, dict) else {}
    after = response.headers.get("Retry-After", "")
    wait = {"retry_after": int(after)} if after.isdigit() else {}
    if _is_ours(problem):
        details = dict(problem.get("details") or {})
        if problem.get("errors"):
            details["errors"] = problem["errors"]
        error = from_dict({"code": problem["code"], "message": str(problem.get("detail", "")), "details": details})
        error.details = {**wait, **error.details}
        return error
    says = f"{response.url.host} answers {response.status_code}"
    if response.status_code in AWAY:
        why = "; ".join(map(str, problem.get("reasons") or ())) or f"it answers {response.status_code}"
        return BackendUnavailableError(f"{response.url.host} does not serve: {why}", **wait)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return RateLimitedError(f"{says}: something before the API finds these requests too many; wait", **wait)
    if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        return RequestTooLargeError(f"{says}: something before the API takes only smaller requests; raise its limit")
    return _strange(response)


def _is_ours(problem: dict[str, Any]) -> bool:
    """Proxies have JSON of their own."""
    known = problem.get("code") in BY_CODE or str(problem.get("type", "")).startswith(OURS)
    return known and isinstance(problem.get("code"), str) and isinstance(problem.get("details") or {}, dict)


def _strange(response: httpx.Response) -> RunyardError:
    return RunyardError(
        f"{response.url} answered {response.status_code} and nothing of runyard; is the URL that of an API?",
        status=response.status_code,
    )


async def _frames(response: httpx.Response) -> AsyncGenerator[Frame]:
    """What a stream carries, until it ends or its connection breaks. Split at newlines only, which JSON never holds: other
    separators of lines stand in texts as they are."""
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
