"""The child process of a worker for an attempt that is executed alone."""

import asyncio
import subprocess
import sys

import pytest

from runyard.execution.executor import Stop
from runyard.worker.isolation import Child, ChildDied, Order
from runyard_api.worker.process import loop_factory

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
