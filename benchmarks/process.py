"""Start, watch and stop the contestants' worker processes."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.board import ENVIRONMENT, Board

STOP_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class WorkerExited(RuntimeError):
    """A worker ended while it was being measured."""


@asynccontextmanager
async def worker_process(command: list[str], board: Board, *, environment: dict[str, str] | None = None) -> AsyncIterator[None]:
    """Run ``python -m *command`` until the block ends.

    An environment variable contains the path of the board. ``environment``: further variables of the process. If the process
    exits early, the block is cancelled. WorkerExited is then raised with the end of the process's output.
    """
    log = board.path.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *command,
            env={**os.environ, **(environment or {}), ENVIRONMENT: str(board.path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_fail_on_exit(process, command, log))
            yield
            watcher.cancel()
    finally:
        await _stop(process)


async def _fail_on_exit(process: asyncio.subprocess.Process, command: list[str], log: Path) -> None:
    status = await process.wait()
    raise WorkerExited(f"{' '.join(command)} exited with status {status}:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_GRACE):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def exit_with_parent() -> None:
    """End this process when the benchmark has ended, even after a kill -9."""

    def watch() -> None:
        # The benchmark holds the other end of this pipe and never writes to it.
        os.read(sys.stdin.fileno(), 1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
