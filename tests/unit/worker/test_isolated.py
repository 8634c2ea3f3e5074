"""The child process of a worker for an attempt that is executed alone."""

import subprocess
import sys

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
