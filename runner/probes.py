"""A worker's own port: is it alive, is it ready, what does it count, what is it doing.

=============  ====================================================================================================
``/livez``     200 while the process and the thread that keeps the worker alive run, whatever the servers do
``/readyz``    200 if the worker takes runs, else 503; JSON with the reasons
``/metrics``   Prometheus
``/stacks``    the stacks of threads and tasks (:mod:`runner.stacks`); to the same machine only, unless that is lifted
=============  ====================================================================================================

It is served by threads, so it answers while user code blocks the main loop.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import structlog
from prometheus_client import make_wsgi_app

from .errors import BackendUnavailableError
from .stacks import stacks

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from .worker import Worker

PATIENCE: Final = 5.0
"""Seconds that a client may take over its request."""
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
    metrics: WSGIApplication = make_wsgi_app()

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
        if environ["REQUEST_METHOD"] != "GET":
            return _reply(respond, "405 Method Not Allowed", PLAIN, "GET only\n")
        return found(environ, respond)

    return route


def _reply(respond: StartResponse, status: str, kind: str, body: str) -> list[bytes]:
    content = body.encode()
    respond(status, [("Content-Type", kind), ("Content-Length", str(len(content)))])
    return [content]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that left early is no error of ours; anything else is."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("a request failed", client=client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = PATIENCE

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds; nobody wants to read of them."""
