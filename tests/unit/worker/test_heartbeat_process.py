"""The heartbeat process and the worker's side of it, without servers (W1, W3)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from runyard.errors import WorkerDeadError
from runyard.worker import heartbeat_process
from runyard.worker.heartbeat import HeartbeatState
from runyard.worker.heartbeat_messages import MAX_PACKET_BYTES, Order, Report, Sign, pack
from runyard.worker.heartbeat_process import HeartbeatProcess
from runyard_api.worker import heartbeat_sender
from runyard_api.worker.heartbeat_sender import HeartbeatSender, executes
from runyard_backends.postgres import single_heartbeat

URL = "postgresql://user:secret@localhost/nothing"
WATCHDOG = 30.0


def status(state: str, *, memory: bool = True, core: str | None = "0") -> str:
    lines = ["Name:\tpython:\tx", f"State:\t{state}", "Pid:\t7"]
    lines += ["VmRSS:\t    1972 kB"] * memory
    lines += [f"CoreDumping:\t{core}"] * (core is not None)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("state", ["R (running)", "S (sleeping)", "D (disk sleep)"])
def test_a_process_that_executes_or_waits_gets_heartbeats(state: str) -> None:
    """W3; some sandboxes do not say whether a process dumps its core."""
    assert executes(status(state)) and executes(status(state, core=None))


@pytest.mark.parametrize(
    "text",
    [
        status("T (stopped)"),
        status("t (tracing stop)"),
        status("Z (zombie)", memory=False),
        status("R (running)", memory=False),
        status("D (disk sleep)", core="1"),
        "",
    ],
    ids=["stopped", "traced", "ended", "ending", "dumping its core", "nothing"],
)
def test_a_process_that_is_stopped_or_ends_gets_no_heartbeats(text: str) -> None:
    """W1: neither do a kill of a large process and a long core dump delay the takeover."""
    assert not executes(text)


class Lab:
    """A heartbeat process in a thread of this process, whose parent is the worker.

    ``parent``: the id that the process sees as its parent's. ``looks``: how often it looked at that. ``beats``: the worker ids
    of its heartbeats.
    """

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.looks = 0
        self.beats: list[str] = []
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(5)
        sender = HeartbeatSender(theirs, Order(URL, self.parent, WATCHDOG))
        self.thread = threading.Thread(target=sender.serve, daemon=True)

    def getppid(self) -> int:
        self.looks += 1
        return self.parent

    async def send_heartbeat(self, url: str, worker_id: str, permitted: Callable[[], bool]) -> bool:
        assert url == URL and permitted()
        self.beats.append(worker_id)
        if worker_id == "dead":
            raise WorkerDeadError("worker dead was declared dead", worker_id=worker_id)
        return True

    def sign(self, worker_id: str | None, turned_ago: float = 0.0) -> None:
        self.link.send(pack(Sign(worker_id, time.monotonic() - turned_ago)))

    def report(self) -> Report:
        return Report(*json.loads(self.link.recv(MAX_PACKET_BYTES)))

    async def beaten(self, times: int) -> None:
        await until(lambda: len(self.beats) >= times)

    async def looked(self) -> None:
        """Return when the process has looked several times whether a heartbeat is due."""
        looks = self.looks
        await until(lambda: self.looks >= looks + 5)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - the state is in another thread or process
            await asyncio.sleep(0.005)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    lab = Lab()
    monkeypatch.setattr(heartbeat_sender, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat_sender, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat_sender.os, "getppid", lab.getppid)
    monkeypatch.setattr(single_heartbeat, "send_heartbeat", lab.send_heartbeat)
    lab.thread.start()
    yield lab
    lab.link.close()
    lab.thread.join(5)
    assert not lab.thread.is_alive()


async def test_heartbeats_begin_when_the_signs_of_life_end(lab: Lab) -> None:
    """W3: and the worker is told how many there were."""
    lab.sign("w")
    await lab.beaten(3)
    lab.sign("w")
    report = lab.report()
    assert report.sent >= 3 and report.error is None and report.seconds >= 0.15
    assert set(lab.beats) == {"w"}


async def test_a_worker_that_is_not_registered_gets_no_heartbeats(lab: Lab) -> None:
    """W1: one that was declared dead gets none until it has another id."""
    lab.sign("dead")
    await lab.beaten(1)
    await lab.looked()
    assert lab.beats == ["dead"]
    lab.sign(None)
    report = lab.report()
    assert report.sent == 0 and "declared dead" in (report.error or "")
    await lab.looked()
    lab.sign("w")
    await lab.beaten(2)
    assert lab.beats[:2] == ["dead", "w"]


async def test_heartbeats_end_at_the_limit_of_the_watchdog(lab: Lab) -> None:
    """W3: it counts from the last turn of the main loop, however long the heartbeat thread went on."""
    lab.sign("w", turned_ago=WATCHDOG + 1)
    await lab.looked()
    assert lab.beats == []
    lab.sign("w", turned_ago=WATCHDOG - 20)
    await lab.beaten(1)


async def test_the_process_ends_when_it_has_another_parent(lab: Lab) -> None:
    """W1: also while a fork of the worker keeps the socket open."""
    lab.sign("w")
    await lab.beaten(1)
    lab.parent = 1
    lab.thread.join(5)
    assert not lab.thread.is_alive()


@pytest.fixture
def heartbeat_state() -> HeartbeatState:
    def nothing(_: object) -> None: ...

    state = HeartbeatState(lambda worker_id: [], on_dead=nothing, on_reply=nothing)
    state.worker_id = "w"
    return state


@pytest.mark.parametrize("command", [["/no/such/program"], [sys.executable, "-c", "pass"]], ids=["missing", "ends at once"])
async def test_a_process_that_does_not_run_is_tried_again_with_pauses(
    command: list[str], heartbeat_state: HeartbeatState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W3: the heartbeat thread goes on without it."""
    monkeypatch.setattr(heartbeat_process, "SIGN_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat_process, "RESTART_SECONDS", 0.2)
    process = HeartbeatProcess(command, URL)
    starts: list[float] = []
    start = process._start

    def counted(watchdog: float) -> socket.socket:
        starts.append(time.monotonic())
        return start(watchdog)

    monkeypatch.setattr(process, "_start", counted)
    running = asyncio.create_task(process.run(heartbeat_state))
    await until(lambda: len(starts) >= 3)
    assert all(later - earlier >= 0.2 for earlier, later in pairwise(starts))
    running.cancel()
    await asyncio.wait((running,))
    assert process._process is None and process._link is None


async def test_a_process_that_does_not_read_is_replaced(heartbeat_state: HeartbeatState) -> None:
    """W3: it must not block the heartbeat thread."""
    process = HeartbeatProcess([sys.executable, "-c", "import time; time.sleep(60)"], URL)
    with pytest.raises(BlockingIOError):
        for _ in range(100_000):
            process._sign(heartbeat_state)
    assert process._end() == -9


def test_the_url_is_not_on_the_command_line(heartbeat_state: HeartbeatState) -> None:
    """Other users of the machine can read command lines."""
    program = "import socket, sys; link = socket.socket(fileno=int(sys.argv[1])); link.recv(9999), link.recv(9999)"
    process = HeartbeatProcess([sys.executable, "-c", program], URL)
    process._sign(heartbeat_state)
    assert process._process is not None
    assert not any("secret" in word for word in process._process.args)
    process._process.wait(20)
    process._end()
