"""The child process of a worker for an attempt that is executed alone."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from runyard import App, Client, RunContext
from runyard.domain.states import RunStatus
from runyard.execution.executor import Stop
from runyard.ports.refs import RunRef
from runyard.ports.workers import WorkerInfo
from runyard.worker.isolation import Child, ChildDied, Order
from runyard_api.worker.isolated import Isolated
from runyard_api.worker.process import loop_factory
from runyard_backends.memory import connect

PROGRAM = """
import asyncio, os, socket
from runyard.app import App
from runyard_api.worker.isolated import Isolated
from runyard_backends.memory import connect

async def main():
    ours, theirs = socket.socketpair()
    ours.close()
    await Isolated(App({}), await connect(), theirs, os.getppid()).turn()

asyncio.run(main())
"""


def test_a_child_whose_worker_has_ended_exits() -> None:
    """R21: the child may notice the end of its worker by a message that it sends. That is no error to log."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


BRIEF = """
import socket, sys
from runyard.worker.isolation import Alive, frame
socket.socket(fileno=int(sys.argv[1])).sendall(frame(Alive()))
"""
"""A child that ends as soon as it is ready."""


def test_a_message_to_a_dead_child_is_no_error() -> None:
    """R21: a worker that was declared dead stops all its runs, also the one whose child has just died, and registers anew."""

    async def send() -> None:
        child = await Child.start([sys.executable, "-c", BRIEF], Order("app", None, 0), 30.0)
        with pytest.raises(ChildDied):
            await child.answer()
        await child.end()
        for _ in range(10):  # the event loop closes the socket in its next turns
            await asyncio.sleep(0)
        child.send(Stop.ABANDON)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(send())


async def test_a_stop_directly_after_its_claim_stops_the_attempt() -> None:
    """R21: the child reads both messages in one turn of its event loop, before the attempt begins."""
    app = App()

    @app.agent
    async def endless(ctx: RunContext) -> None:
        await asyncio.Event().wait()

    backend = await connect()
    client = Client(backend)
    await client.enqueue("t", "x", "r", agent="endless")
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    key = await backend.threads.thread_key("t")
    assert key is not None
    [claim] = await backend.runs.claim("w", [RunRef(key, "r")])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20.0)
        child = Isolated(app, backend, theirs, os.getppid())
        child.told(claim)
        child.told(Stop.HANDOVER)
        await asyncio.to_thread(ours.recv, 1)  # the reply to the worker
    assert (await client.run("t", "r")).status is RunStatus.QUEUED
