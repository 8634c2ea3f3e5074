"""The id, log line, metrics and trace of each request, and the security headers of its response."""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runyard.errors import RunyardError
from runyard.models import new_id
from runyard.support import metrics

from . import problems
from .request_state import state_of
from .request_trace import METHODS, RequestSpan, request_span

CAREFUL: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}

log = structlog.get_logger("runyard.http")


class Telemetry:
    """The outermost middleware of the API. ``trust_traceparent``: the setting with this name (``settings.py``)."""

    def __init__(self, app: ASGIApp, trust_traceparent: bool = False) -> None:
        self.app = app
        self._trust_traceparent = trust_traceparent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        state_of(scope)["request_id"] = request_id
        with request_span(scope, headers, trusted=self._trust_traceparent) as span:
            await self._answer(scope, receive, send, request_id, _Record(scope, span))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str, record: _Record) -> None:
        """Call the application. If the application raises an error before its response begins, answer the request with status
        500."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = request_id
                out.update(state_of(scope).get("headers", {}))
                for name, value in CAREFUL.items():
                    out.setdefault(name, value)
                if scope.get("scheme") == "https":
                    out.setdefault("Strict-Transport-Security", "max-age=31536000")
                record.starts(message["status"], out.get("content-type", ""))
            await send(message)

        try:
            await self.app(scope, receive, answer)
        except Exception as error:
            names = {"request_id": request_id, "method": scope["method"], "path": scope["path"]}
            log.exception("http_request_failed", **names, error=str(error))
            if record.status is not None:
                # The server closes the connection. The client sees that the response is incomplete.
                raise
            await problems.send(
                RunyardError("the request failed because of an error in the server; see its log"), scope, receive, answer
            )
        finally:
            record.ends(request_id)


class _Record:
    """The outcome of one request."""

    def __init__(self, scope: Scope, span: RequestSpan) -> None:
        self.scope = scope
        self.span = span
        self.began = time.monotonic()
        self.status: int | None = None
        self.measured = False

    @property
    def route(self) -> str:
        """The template of the path, or empty if no route matched. Metrics have the template as a label, because there are too
        many different paths."""
        return str(getattr(self.scope.get("route"), "path", ""))

    def starts(self, status: int, content_type: str) -> None:
        self.status = status
        if content_type.startswith("text/event-stream"):
            self._measure()

    def ends(self, request_id: str) -> None:
        if not self.measured:
            self._measure()
        state = state_of(self.scope)
        self.span.answered(self.status, self.route, state.get("code"))
        if code := state.get("code"):
            metrics.count_rejected(code)
        principal = state.get("principal")
        log.info(
            "http_request_ended",
            request_id=request_id,
            method=self.scope["method"],
            path=self.scope["path"],  # without the query, which may contain a token
            http_status=self.status,  # None if no response began
            error_code=code,
            duration_seconds=round(time.monotonic() - self.began, 6),
            tenant=principal.tenant if principal else None,
            key_id=principal.id if principal else None,
        )

    def _measure(self) -> None:
        self.measured = True
        method = self.scope["method"] if self.scope["method"] in METHODS else "other"
        status = str(self.status or "left")
        metrics.observe(metrics.child(metrics.HTTP, method, self.route, status), time.monotonic() - self.began)


def _request_id(given: str | None) -> str:
    """Return the caller's id of the request if it is a UUID, else a new id."""
    try:
        return str(UUID(given or ""))
    except ValueError:
        return new_id()
