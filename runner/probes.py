"""A worker's own port: is it alive, is it ready, what does it count, what is it doing.

=============  ====================================================================================================
``/livez``     200 while the process and the thread that keeps the worker alive run, whatever the servers do
``/readyz``    200 if the worker takes runs, else 503; JSON with the reasons
``/metrics``   Prometheus
``/stacks``    the stacks of threads and tasks (:mod:`runner.stacks`); to the same machine only, unless that is lifted
=============  ====================================================================================================

It is served by threads, so it answers while user code blocks the main loop. Anybody who reaches it may ask: connections are
bounded in number, bytes and time, and what is dear to tell is told again for a second.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from .errors import BackendUnavailableError
from .stacks import stacks

if TYPE_CHECKING:
    from io import BufferedIOBase
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from .worker import Worker

PATIENCE = 5.0
"""Seconds that a connection lasts at most."""
MOST = 64
"""Connections at once; beyond that the oldest is cut, so that who asks at once is answered."""
LONGEST: Final = 16 * 2**10
"""Bytes of a request."""
FRESH = 1.0
"""Seconds for which the metrics are told as they were: making them holds up the main loop."""
PLAIN: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


log = structlog.get_logger("runyard.probes")


@dataclass
class Watched:
    """What the port tells of. ``worker``: None while it starts. ``address``: ``host:port`` of the port, for the register."""

    address: str | None = None
    worker: Worker | None = None

    def live(self) -> tuple[bool, dict[str, Any]]:
        alive = self.worker is None or self.worker.alive
        return alive, {"alive": alive}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        reasons = self.worker.troubles() if self.worker is not None else ["the worker is starting"]
        return not reasons, {"ready": not reasons, "reasons": reasons}


@contextmanager
def serving(port: int, host: str = "0.0.0.0", *, remote_stacks: bool = False) -> Iterator[Watched]:
    """Serve on ``host:port`` (0: any free port) for as long as the block lasts. ``remote_stacks``: to other machines too.

    Raises BackendUnavailableError if the port cannot be had.
    """
    watched = Watched()
    app = application(watched, remote_stacks=remote_stacks)
    try:
        server = make_server(host, port, app, server_class=_Server6 if ":" in host else _Server, handler_class=_Quiet)
    except OSError as error:
        raise BackendUnavailableError(f"cannot listen on {host}:{port}: {error.strerror}", host=host, port=port) from error
    watched.address = f"{socket.gethostname()}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="runyard-port", daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def application(watched: Watched, *, remote_stacks: bool = False) -> WSGIApplication:
    """The port as a WSGI application."""
    metrics = _Metrics()

    def tell_stacks(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        if not (remote_stacks or ip_address(environ["REMOTE_ADDR"]).is_loopback):
            return _reply(respond, "403 Forbidden", PLAIN, "only from this machine, or with RUNYARD_REMOTE_STACKS=true\n")
        return _reply(respond, "200 OK", PLAIN, stacks(watched.worker.loop if watched.worker else None))

    def tell(facts: Callable[[], tuple[bool, dict[str, Any]]]) -> WSGIApplication:
        def answer(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
            well, body = facts()
            return _reply(respond, "200 OK" if well else "503 Service Unavailable", JSON, json.dumps(body) + "\n")

        return answer

    routes: dict[str, WSGIApplication] = {
        "/livez": tell(watched.live),
        "/readyz": tell(watched.ready),
        "/metrics": metrics,
        "/stacks": tell_stacks,
    }

    def route(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        if (found := routes.get(environ["PATH_INFO"])) is None:
            return _reply(respond, "404 Not Found", PLAIN, f"{', '.join(routes)}\n")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _reply(respond, "405 Method Not Allowed", PLAIN, "GET and HEAD only\n")
        content = found(environ, respond)
        return content if environ["REQUEST_METHOD"] == "GET" else []

    return route


class _Metrics:
    """``/metrics``, made by one thread at a time and kept for a while in each format that is asked for."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._made: dict[str, tuple[float, bytes]] = {}

    def __call__(self, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        encode, kind = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        with self._making:
            made_at, content = self._made.get(kind, (-FRESH, b""))
            if time.monotonic() - made_at >= FRESH:
                content = encode(REGISTRY)
                self._made = {**self._made, kind: (time.monotonic(), content)}
        respond("200 OK", [("Content-Type", kind), ("Content-Length", str(len(content)))])
        return [content]


def _reply(respond: StartResponse, status: str, kind: str, body: str) -> list[bytes]:
    content = body.encode()
    respond(status, [("Content-Type", kind), ("Content-Length", str(len(content)))])
    return [content]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: dict[socket.socket, float] = {}  # the oldest first
        self._changing = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            for oldest in list(self._open)[: max(0, len(self._open) - MOST + 1)]:
                self._cut(oldest)
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut what lasts too long: a timeout of each read would begin anew with every byte."""
        late = time.monotonic() - PATIENCE
        with self._changing:
            for request in [request for request, since in self._open.items() if since < late]:
                self._cut(request)

    def _cut(self, request: socket.socket) -> None:
        """Its thread finds it closed, and ends."""
        del self._open[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left early is no error of ours; anything else is."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("a request failed", client=client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Head:
    """What a connection says. Raises ConnectionError after LONGEST bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, LONGEST

    def readline(self, most: int = -1) -> bytes:
        if not self._left:
            raise ConnectionAbortedError(f"the request is longer than {LONGEST} bytes")
        line = self._file.readline(min(most, self._left) if most >= 0 else self._left)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Quiet(WSGIRequestHandler):
    timeout = PATIENCE

    def setup(self) -> None:
        super().setup()
        self.rfile = cast("BufferedIOBase", _Head(cast(BinaryIO, self.rfile)))

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds; nobody wants to read of them."""
