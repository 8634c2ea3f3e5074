"""Answers HEAD on every path that has GET (RFC 9110, 9.3.2)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .request_state import state_of


class Head:
    """Calls the route of GET, and sends only the status and the headers of its response. While the route runs,
    ``state["head"]`` of the request is True."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        state_of(scope)["head"] = True
        asked = {**scope, "method": "GET"}

        async def answer(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        try:
            await self.app(asked, receive, answer)
        finally:
            scope["route"] = asked.get("route")  # the metrics of the request have this method
