"""Bounds on what comes in (semantics: A2): headers, bodies and how long they take."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.errors import HeadersTooLargeError, RequestTimeoutError, RequestTooLargeError, RunyardError

from . import problems
from .settings import ApiSettings


class Bounds:
    """Refuses requests that are too large or too slow, and hands bodies over whole."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            self._check_headers(scope)
            body = await self._body(scope, receive)
        except RunyardError as error:
            await problems.send(error, scope, receive, send)
            return
        if body is not None:
            await self.app(scope, _again(body, receive), send)

    def _check_headers(self, scope: Scope) -> None:
        headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers)
        if len(headers) > self.settings.max_headers or size > self.settings.max_header_bytes:
            most = f"{self.settings.max_headers} of {self.settings.max_header_bytes} bytes"
            raise HeadersTooLargeError(f"{len(headers)} headers of {size} bytes in all; at most {most}")
        declared = dict(headers).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > self.settings.max_body:
            raise self._too_large()

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None if the client left. Nothing is waited for where no body is to be expected."""
        named = {name for name, _ in scope["headers"]}
        if scope["method"] in ("GET", "HEAD", "OPTIONS") and not named & {b"content-length", b"transfer-encoding"}:
            return b""
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
                    size += len(parts[-1])
                    if size > self.settings.max_body:
                        raise self._too_large()
        except TimeoutError:
            raise RequestTimeoutError(f"the body did not arrive within {self.settings.body_timeout:g} s") from None
        return b"".join(parts)

    def _too_large(self) -> RequestTooLargeError:
        most = self.settings.max_body
        return RequestTooLargeError(
            f"the body is larger than {most} bytes; keep large content elsewhere and send a reference", most=most
        )


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that begins with ``body``."""
    told = False

    async def next_message() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return next_message
