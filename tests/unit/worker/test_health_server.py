"""A worker's own port as a WSGI application, and the stacks that it shows."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast
from urllib.error import HTTPError

import pytest
from prometheus_client import REGISTRY

from runyard.errors import BackendUnavailableError
from runyard.ports.scheduling import Delivery, Job
from runyard.ports.workers import HeartbeatReply
from runyard.support.exposition import FORMATS, OPENMETRICS, content_type
from runyard.worker import health_server
from runyard.worker.health_server import Watched, application, serving, stacks
from runyard.worker.heartbeat import READY_WITHIN_SECONDS, HeartbeatState
from runyard.worker.worker import Worker


class Host:
    """What the port asks of a worker."""

    def __init__(self, *troubles: str, alive: bool = True) -> None:
        self.alive, self.loop = alive, asyncio.new_event_loop()
        self.loop.close()
        self._troubles = list(troubles)

    def troubles(self) -> list[str]:
        return self._troubles


def get(
    path: str, host: Host | None = None, *, peer: str = "127.0.0.1", method: str = "GET", **options: bool
) -> tuple[int, str]:
    """Status and body."""
    said: list[str] = []

    def respond(status: str, headers: list[tuple[str, str]]) -> None:
        said.append(status)

    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": peer}
    app = application(Watched(worker=cast(Worker, host)), **options)
    body = b"".join(app(environ, cast(Any, respond)))
    return int(said[0].split()[0]), body.decode()


def test_alive_while_it_starts_and_while_its_heartbeat_thread_lives() -> None:
    assert get("/livez")[0] == get("/livez", Host("Postgres has not answered lately"))[0] == 200
    assert get("/livez", Host(alive=False))[0] == 503


def test_ready_says_why_not() -> None:
    assert json.loads(get("/readyz", Host())[1]) == {"ready": True, "reasons": []}
    status, body = get("/readyz", Host("the worker is draining"))
    assert (status, json.loads(body)["reasons"]) == (503, ["the worker is draining"])
    assert get("/readyz")[0] == 503


def test_stacks_are_for_the_same_machine() -> None:
    assert get("/stacks", peer="127.0.0.1")[0] == get("/stacks", peer="::1")[0] == 200
    assert get("/stacks", peer="10.0.0.7")[0] == 403
    assert get("/stacks", peer="10.0.0.7", remote_stacks=True)[0] == 200


def test_health_server_refuses_other_paths_and_methods() -> None:
    assert get("/")[0] == 404
    assert get("/livez", method="POST")[0] == 405
    assert get("/livez", method="HEAD") == (200, "")
    assert "\nrunyard_rescues_total " in get("/metrics")[1]


def test_a_port_that_is_taken_is_a_typed_error() -> None:
    with serving(0, "127.0.0.1") as watched:
        assert watched.address is not None
        port = int(watched.address.rpartition(":")[2])
        with pytest.raises(BackendUnavailableError, match="cannot listen"), serving(port, "127.0.0.1"):
            pass
        with pytest.raises(HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5)
        assert refused.value.code == 503
        refused.value.close()


class TestAttacks:
    """A2: anybody who reaches the port may ask, and must not take the worker's threads, memory or time."""

    @pytest.fixture
    def port(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
        monkeypatch.setattr(health_server, "CONNECTION_SECONDS", 0.4)
        monkeypatch.setattr(health_server, "MAX_CONNECTIONS", 10)
        with serving(0, "127.0.0.1") as watched:
            assert watched.address is not None
            yield int(watched.address.rpartition(":")[2])

    def livez(self, port: int) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5) as reply:
            return int(reply.status)

    def test_bytes_that_trickle_do_not_buy_time(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=0.05) as slow:
            slow.sendall(b"GET /livez HTTP/1.1\r\nX: ")
            give_up = time.monotonic() + 10
            with pytest.raises(ConnectionError):
                while time.monotonic() < give_up:
                    slow.sendall(b"x")
                    with suppress(TimeoutError):
                        if not slow.recv(1000):
                            raise ConnectionResetError
        assert self.livez(port) == 200

    def test_connections_are_bounded(self, port: int) -> None:
        """The oldest goes first: whoever asks at once is answered."""
        before = threading.active_count()
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        assert self.livez(port) == 200
        assert threading.active_count() - before <= 30
        for connection in held:
            connection.close()

    def test_a_head_is_bounded(self, port: int) -> None:
        request = b"GET /livez HTTP/1.1\r\n" + b"X: %s\r\n" % (b"x" * 60_000) * 90 + b"\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=5) as large, suppress(ConnectionError):
            large.sendall(request)  # it may be closed before all is sent
            assert b" 200 " not in large.recv(1000)
        assert self.livez(port) == 200

    def test_metrics_are_told_once_in_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In each of the two formats, whatever version of them a caller asks for."""
        made, kinds = [], set()

        def exposed(kind: str) -> bytes:
            made.append(kind)
            return b"x 1\n"

        monkeypatch.setattr(health_server, "exposed", exposed)
        monkeypatch.setattr(health_server, "METRICS_CACHE_SECONDS", 60.0)
        app = application(Watched())
        environ = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "REMOTE_ADDR": "10.0.0.7"}
        versions = ["", *(f"application/openmetrics-text; version=1.0.{n}" for n in range(50)), *HOSTILE_ACCEPTS]
        for accept in versions:
            answer = app(environ | {"HTTP_ACCEPT": accept}, cast(Any, lambda status, headers: kinds.add(headers[0][1])))
            assert b"".join(answer) == b"x 1\n"
        assert len(made) == len(kinds) == 2 and all("version=1.0.0" in kind or "version=0.0.4" in kind for kind in kinds)


HOSTILE_ACCEPTS = (
    "application/openmetrics-text; version=x",
    "text/plain; version=1.x",
    "application/openmetrics-text; version=9.\u00e9; escaping=values",
    "application/openmetrics-text; version=1.0.0\tSet-Cookie: a=b",
)


@pytest.mark.parametrize("accept", HOSTILE_ACCEPTS)
def test_a_caller_chooses_the_format_and_not_the_content_type(accept: str) -> None:
    """A2: prometheus_client fails if the version is no number, and repeats what it is asked for."""
    kind = content_type(accept)
    assert kind in FORMATS and (OPENMETRICS in kind) == (OPENMETRICS in accept)


class TestTroubles:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr("runyard.worker.heartbeat.time.monotonic", lambda: now[0])
        return now

    @pytest.fixture
    def heartbeat_state(self, clock: list[float]) -> HeartbeatState:
        heartbeat_state = HeartbeatState(lambda worker_id: (), on_dead=lambda worker_id: None, on_reply=lambda reply: None)
        heartbeat_state.worker_id = "w"
        heartbeat_state.renewed()
        return heartbeat_state

    def test_healthy_worker_has_no_troubles(self, heartbeat_state: HeartbeatState) -> None:
        assert heartbeat_state.troubles() == []

    def test_health_names_each_trouble(self, heartbeat_state: HeartbeatState, clock: list[float]) -> None:
        clock[0] += READY_WITHIN_SECONDS + 1
        assert heartbeat_state.troubles() == ["Postgres has not answered lately", "Redis has not answered lately"]
        heartbeat_state.refused("Redis", "a replica")
        assert heartbeat_state.troubles()[1] == "Redis has taken no writes lately: a replica"
        heartbeat_state.beat(HeartbeatReply(fits=False))
        heartbeat_state.renewed()
        assert heartbeat_state.troubles() == ["the database schema requires newer code than this worker has"]
        clock[0] += 60
        assert heartbeat_state.troubles() == ["the main loop has been blocked for 66 s"]
        heartbeat_state.worker_id = None
        assert heartbeat_state.troubles() == ["the worker is not registered"]

    def test_a_standing_is_told_when_it_changes(self, clock: list[float]) -> None:
        told: list[HeartbeatReply] = []
        heartbeat_state = HeartbeatState(lambda worker_id: (), on_dead=lambda worker_id: None, on_reply=told.append)
        for reply in (
            HeartbeatReply(),
            HeartbeatReply(paused=frozenset("a")),
            HeartbeatReply(paused=frozenset("a")),
            HeartbeatReply(),
        ):
            heartbeat_state.beat(reply)
        assert told == [HeartbeatReply(paused=frozenset("a")), HeartbeatReply()]


def test_a_lock_is_lost_if_two_renewals_in_a_row_miss_it() -> None:
    """One that is being given back while the locks are renewed is missing once. Each loss counts once."""
    heartbeat_state = HeartbeatState(lambda worker_id: (), on_dead=lambda worker_id: None, on_reply=lambda reply: None)
    one, other = Delivery(Job(1, "r"), 1), Delivery(Job(2, "r"), 2)
    before = REGISTRY.get_sample_value("runyard_lock_losses_total") or 0.0
    losses = []
    for lost in ([one], [], [one, other], [one], [one], [one, other], [one, other]):
        heartbeat_state.renewed(lost)
        losses.append((REGISTRY.get_sample_value("runyard_lock_losses_total") or 0.0) - before)
    assert losses == [0, 0, 0, 1, 1, 1, 2]


async def test_stacks_show_what_each_task_waits_for() -> None:
    """The innermost await of a task, not only its outermost function; tasks at the same place are told once."""
    gate = asyncio.Event()

    async def innermost() -> None:
        await gate.wait()

    async def outermost() -> None:
        await innermost()

    waiting = [asyncio.create_task(outermost(), name=f"run {n}") for n in range(5)]
    await asyncio.sleep(0)
    text = await asyncio.to_thread(stacks, asyncio.get_running_loop())
    gate.set()
    await asyncio.gather(*waiting)
    assert "5 tasks: run 0, run 1, run 2, …" in text
    told = text[text.index("5 tasks") :]
    assert told.index("outermost") < told.index("innermost") < told.index("in wait")


def test_stacks_show_where_a_thread_is() -> None:
    gate, inside = threading.Event(), threading.Event()

    def busy_function() -> None:
        inside.set()
        gate.wait()

    thread = threading.Thread(target=busy_function, name="busy")
    thread.start()
    inside.wait(5)
    text = stacks()
    gate.set()
    thread.join()
    assert "thread busy" in text and "in busy_function" in text
