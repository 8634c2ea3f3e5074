"""Bounds of requests (A2): the sizes of headers and bodies, and the times within which they must be complete.

``settings.py`` has the numbers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runyard.domain.json_text import Shape
from runyard.errors import HeadersTooLargeError, RateLimitedError, RequestTimeoutError, RequestTooLargeError, RunyardError

from . import problems
from .reading import MAX_BODY_VALUES, OUT_OF_BOUNDS, is_form
from .request_state import state_of
from .settings import ApiSettings


class Hold:
    """The bytes of a request's body, counted until the response begins."""

    def __init__(self, held: Counter[str], key: str, most: int) -> None:
        self._held, self._key, self._most = held, key, most
        self._own = 0

    def grow(self, size: int) -> None:
        """Add ``size`` bytes. Raises RateLimitedError if the bodies of the caller's unanswered requests would then exceed the
        caller's limit."""
        if self._held[self._key] + size > self._most:
            words = f"the bodies of this key's unanswered requests already have {self._most} bytes"
            raise RateLimitedError(f"{words}; wait for some answers", retry_after=1)
        self._own += size
        self._held[self._key] += size

    def release(self) -> None:
        self._held[self._key] -= self._own
        self._own = 0
        if not self._held[self._key]:
            del self._held[self._key]

    def until_answered(self, send: Send) -> Send:
        """Wrap ``send``: when the response begins, stop counting the bytes of the request's body. The count does not continue
        until the end of the response, because a stream can last long."""

        async def told(message: Message) -> None:
            self.release()
            await send(message)

        return told


class Bounds:
    """Refuses requests that are too large or too slow. The application receives the whole body of a request in one message."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self.app, self.settings = app, settings
        self._held: Counter[str] = Counter()
        self._most_held = max(settings.bodies_per_key, settings.max_body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self._hold(scope) as held:
            try:
                self._check_head(scope)
                body = await self._body(scope, receive, held)
            except RunyardError as error:
                await problems.send(error, scope, receive, send)
                return
            if body is not None:
                await self.app(scope, _again(body, receive), held.until_answered(send))

    @contextmanager
    def _hold(self, scope: Scope) -> Iterator[Hold]:
        principal = state_of(scope).get("principal")
        held = Hold(self._held, principal.id if principal is not None else "", self._most_held)
        try:
            yield held
        finally:
            held.release()

    def _check_head(self, scope: Scope) -> None:
        headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers) + len(scope["query_string"])
        if len(headers) > self.settings.max_headers or size > self.settings.max_header_bytes:
            most = f"at most {self.settings.max_headers} headers and {self.settings.max_header_bytes} bytes are allowed"
            raise HeadersTooLargeError(f"the request has {len(headers)} headers; with the query they have {size} bytes; {most}")
        declared = dict(headers).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self.settings.max_body:
            raise self._too_large()

    async def _body(self, scope: Scope, receive: Receive, held: Hold) -> bytes | None:
        """Return the whole body, or None if the client has left. If the request announces no body, do not wait.

        If the JSON of the body has too many values or a number with too many digits, return ``b""`` and put the reason into
        ``scope``. The route that reads the JSON raises the error. A form is not checked here. The route that accepts forms
        checks the JSON inside.
        """
        named = {name for name, _ in scope["headers"]}
        if scope["method"] in ("GET", "HEAD", "OPTIONS") and not named & {b"content-length", b"transfer-encoding"}:
            return b""
        parts: list[bytes] = []
        shape: Shape | None = Shape(MAX_BODY_VALUES)
        count = not is_form(scope["headers"])
        size, more = 0, True
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part: bytes = message.get("body", b"")
                    more = message.get("more_body", False)
                    size += len(part)
                    if size > self.settings.max_body:
                        raise self._too_large()
                    if shape is None:
                        continue
                    held.grow(len(part))
                    try:
                        if count:
                            shape.feed(part)
                        parts.append(part)
                    except ValueError as error:
                        state_of(scope)[OUT_OF_BOUNDS] = str(error)  # the error itself would keep the body in memory
                        shape = None
                        parts.clear()
                        held.release()
        except TimeoutError:
            raise RequestTimeoutError(f"the body did not arrive within {self.settings.body_timeout:g} s") from None
        return b"".join(parts)

    def _too_large(self) -> RequestTooLargeError:
        most = self.settings.max_body
        return RequestTooLargeError(
            f"the body is larger than {most} bytes; keep large content elsewhere and send a reference", most=most
        )


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that begins with ``body``."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
