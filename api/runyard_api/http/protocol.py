"""The protocol of one connection (A2). The class limits the bytes that an ASGI application does not see: bytes before, between
and around requests.

A timer limits the time until the request line and the headers of a request are complete. Only the last byte of the headers
stops this timer. After the response, another timer limits the time until the next request. Bytes that are not an HTTP/1.1
request are refused with one problem document. The server sends this document after the responses to earlier requests. The
server then ignores all further bytes of the connection.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import Any, Final

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from runyard.errors import HeadersTooLargeError, RequestError, RequestTimeoutError, RunyardError, ServerBusyError
from runyard.models import new_id

from . import problems
from .settings import ApiSettings

MAX_PIPELINED: Final = 16
"""Maximum number of requests that wait on a connection for the response to an earlier request."""
LINGER_SECONDS = 2.0
"""If a response begins before the end of its request, the server continues to read for this number of seconds after the
response. If the server closed the connection at once, the client could lose the response (RFC 9112, 9.6)."""
SPARE_CONNECTIONS: Final = 64
"""Number of connections beyond ``max_connections`` that are refused with a response. Further connections are closed without a
response."""
LINE_END_BYTES: Final = 2
"""Bytes of a line end. Each chunk has two line ends: one after its size, and one after its content."""
HOST: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+;=%-]+)(:[0-9]{0,5})?")
"""Pattern of a host with an optional port. A host with a user name does not match, because RFC 9110 (4.2.4) demands its
refusal."""


class Protocol(HttpToolsProtocol):
    """Limits the time, the bytes and the pipelined requests of a connection. Refuses ambiguous requests.

    When the client disconnects, the request in progress gets the disconnect at once, even if other requests wait on the
    connection.
    """

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        settings: ApiSettings = config.app.state.service.settings  # type: ignore[union-attr]
        self._most_bytes, self._most_headers = settings.max_header_bytes, settings.max_headers
        self._most_connections = settings.max_connections
        self._patience = {"first": settings.body_timeout, "head": settings.body_timeout, "idle": settings.idle_timeout}
        self._answering: RequestResponseCycle | None = None
        self._in_head = False
        self._progress = False  # True if the last bytes advanced a request
        self._fruitless = 0  # bytes since the last bytes that advanced a request
        self._trailing = 0  # bytes of trailers
        self._in_body = False
        self._within = False  # True if the last bytes belong to one body
        self._carried = 0  # number of the last bytes that belong to the body or frame its chunks
        self._chunk = 0  # bytes of the last chunk
        self._around = 0  # bytes around the chunks of the body, for example extensions
        self._state = ""
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: RunyardError | None = None  # sent after the responses in progress; no more bytes are read
        self._last = False  # True if the present response began before its request was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        beyond = len(self.connections) - self._most_connections
        if beyond > SPARE_CONNECTIONS:
            transport.abort()
        elif beyond > 0:
            self._refuse(ServerBusyError("this server has its maximum number of connections; try again later", sent=False))
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch("gone")
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._refusal is not None or self._state == "lingering":
            return
        self._progress, self._within, self._carried = False, self._in_body, 0
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:  # from a check of this class, or from the parser of the URL
            found = error.__context__
            self._refuse(found if isinstance(found, RunyardError) else RequestError("the target of the request is not a path"))
        except httptools.HttpParserError as error:
            self._refuse(RequestError(f"this is not an HTTP/1.1 request: {error}"))
        self._fruitless = 0 if self._progress else self._fruitless + len(data)
        if self._fruitless > self._most_bytes:
            self._refuse(self._too_large())
        if self._within:
            self._around = max(self._around + len(data) - self._carried, 0)
            if self._around > self._most_bytes:
                most = self._most_bytes
                self._refuse(
                    HeadersTooLargeError(f"the chunk sizes and trailers of the body have more than {most} bytes", most=most)
                )
        self._watch()

    def _feed(self, data: bytes) -> None:
        """Parse ``data``. Raises HttpParserError.

        If a request offers another protocol, it is parsed again without the offer (RFC 9110, 7.8). With the offer, the parser
        would treat the bytes after the headers as the other protocol, and the body would be lost.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                version = self.parser.get_http_version().encode()
                head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
                head += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
                data = b"\r\n".join([*head, b"", data[offer.args[0] :]])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            else:
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._trailing = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
        else:  # trailers do not change their request
            self._trailing += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        self._in_head, self._progress = False, True
        self._check_head()
        if not self.parser.should_upgrade():
            self._in_body, self._around = True, 0
            super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._carried += LINE_END_BYTES
        self._chunk = 0

    def on_chunk_complete(self) -> None:
        self._carried += len(f"{self._chunk:x}") + LINE_END_BYTES

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._carried += len(body)
        self._chunk += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress, self._in_body, self._within = True, False, False
        if self._trailing > self._most_bytes:
            raise self._too_large()
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            if self._last:
                self._linger()
            elif self._refusal is not None and not self._is_answering():
                self._tell(self._refusal)
        self._watch()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, self._announcing(cycle, app))

    def _announcing(self, cycle: RequestResponseCycle, app: ASGIApp) -> Any:
        """Wrap ``app``. A response that begins before its request is complete gets the header ``Connection: close``."""

        async def announcing(scope: Scope, receive: Receive, send: Send) -> None:
            async def answer(message: Message) -> None:
                if message["type"] == "http.response.start" and cycle.more_body:
                    self._last = True
                    await send({**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]})
                    cycle.keep_alive = True  # not yet, because this class closes the connection after LINGER_SECONDS
                else:
                    await send(message)

            await app(scope, receive, answer)

        return announcing

    def _check_head(self) -> None:
        """Check the request line and the headers of a request. Raises RunyardError."""
        if len(self.headers) > self._most_headers:
            raise HeadersTooLargeError(f"there are more than {self._most_headers} headers", most=self._most_headers)
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._most_bytes:
            raise self._too_large()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise RequestError(f"more than {MAX_PIPELINED} requests on this connection have no answer yet; read answers first")
        if self.parser.get_method() == b"CONNECT":
            raise RequestError("this server does not support CONNECT, because it is not a proxy")
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise RequestError("this server supports HTTP/1.1 and HTTP/1.0 only")
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and (hosts or version == "1.1"):
            raise RequestError(f"a request needs exactly one Host header; this request has {len(hosts)}")
        if hosts and not HOST.fullmatch(hosts[0]):
            raise RequestError("Host must be a name or an address, with an optional port after a colon")
        for name, value in self.headers:
            if name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
                raise RequestError("the only Transfer-Encoding that this server supports is chunked, in HTTP/1.1")

    def _too_large(self) -> HeadersTooLargeError:
        most = self._most_bytes
        return HeadersTooLargeError(f"the request's path and headers are larger than {most} bytes", most=most)

    def _is_answering(self) -> bool:
        answering = self._answering
        return bool(self.pipeline) or not (answering is None or answering.response_complete or answering.disconnected)

    def _watch(self, state: str | None = None) -> None:
        """Start the timer of the connection's state if the state has changed."""
        if state is None:
            if self._state == "lingering" or self.transport.is_closing():
                return
            state = "answering" if self._is_answering() else "head" if self._in_head else "idle" if self._answering else "first"
        if state == self._state:
            return
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
        seconds = LINGER_SECONDS if state == "lingering" else self._patience.get(state)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._state == "head":
            self._refuse(RequestTimeoutError(f"the headers did not arrive within {self._patience['head']:g} s"))
        else:
            self.transport.close()

    def _refuse(self, error: RunyardError) -> None:
        if self._refusal is None and not self.transport.is_closing():
            self._refusal = error
            self._abandon()
            if not self._is_answering():
                self._tell(error)

    def _abandon(self) -> None:
        """Drop an incomplete request. If its handler has begun but has sent no response, signal a disconnect to the handler."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        elif (waiting := self._answering) is not None and waiting.more_body and not waiting.response_started:
            waiting.disconnected = True
            waiting.message_event.set()

    def _tell(self, error: RunyardError) -> None:
        answer = problems.response(error, new_id(), {"Connection": "close"})
        lines = [f"HTTP/1.1 {answer.status_code} {HTTPStatus(answer.status_code).phrase}".encode()]
        lines += [name + b": " + value for name, value in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self._linger()

    def _linger(self) -> None:
        """Discard the client's bytes for LINGER_SECONDS, then close the connection."""
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._watch("lingering")
