"""The process that sends a worker's heartbeats while code of the worker holds the interpreter.

Native code that keeps the interpreter's lock stops every thread of the worker, including the heartbeat thread. The heartbeat
process has a separate interpreter. The heartbeat thread sends this process a sign of life twice a second, over a socket pair to
which no other process can connect. While the signs are missing, the process sends the heartbeats to Postgres. The process sends
no heartbeats if the main loop has been blocked for longer than the watchdog allows. The process does not renew the locks in
Redis, because a running run needs no lock.

The program of the process is ``runyard_api.worker.heartbeat_sender``.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from ..support import metrics
from .heartbeat_messages import MAX_PACKET_BYTES, Order, Report, Sign, pack

if TYPE_CHECKING:
    from .heartbeat import HeartbeatState

SIGN_SECONDS: Final = 0.5
"""Seconds between two signs of life of the heartbeat thread."""
RESTART_SECONDS: Final = 5.0
"""Minimum time between two starts of the heartbeat process, in seconds."""
EXIT_SECONDS: Final = 1.0
"""Seconds to wait for the exit of a killed process."""

log = structlog.get_logger("runyard.heartbeat")


class HeartbeatProcess:
    """The heartbeat process of one worker. The worker starts the process with the first sign of life.

    If the process ends, the worker starts it again with a later sign of life.

    ``command``: the words of the command line. The number of the process's socket is added as the last word. ``url``: the URL
    of Postgres, which the process gets over the socket. The URL can contain a password, and every user of the machine can read
    the words of a command line.
    """

    def __init__(self, command: Sequence[str], url: str) -> None:
        self._command = command
        self._url = url
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._start_at = float("-inf")

    async def run(self, heartbeat_state: HeartbeatState) -> None:
        """Send signs of life until cancelled. Then end the process. Raises no error."""
        try:
            while True:
                try:
                    self._sign(heartbeat_state)
                except OSError as error:
                    status = self._end()
                    names = {"worker_id": heartbeat_state.worker_id, "exit_status": status, "error": str(error)}
                    log.warning("heartbeat_process_failed", **names, effect="the process is started again")
                await asyncio.sleep(SIGN_SECONDS)
        finally:
            self._end()

    def _sign(self, heartbeat_state: HeartbeatState) -> None:
        """Send one sign of life, and log a report. Raise OSError if the process has ended, does not read, or cannot start."""
        if self._link is None:
            if time.monotonic() < self._start_at:
                return
            self._link = self._start(heartbeat_state.watchdog)
        self._link.send(pack(Sign(heartbeat_state.worker_id, heartbeat_state.turned)))
        with suppress(BlockingIOError):
            packet = self._link.recv(MAX_PACKET_BYTES)
            if not packet:
                raise ConnectionResetError("the process has closed its socket")
            self._reported(Report(*json.loads(packet)), heartbeat_state.worker_id)

    def _start(self, watchdog: float) -> socket.socket:
        self._start_at = time.monotonic() + RESTART_SECONDS
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                ours.send(pack(Order(self._url, os.getpid(), watchdog)))
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C goes to the worker only
                )
        except OSError:
            ours.close()
            raise
        return ours

    def _reported(self, report: Report, worker_id: str | None) -> None:
        metrics.STAND_IN_HEARTBEATS.inc(report.sent)
        log.warning(
            "heartbeat_thread_stalled",
            worker_id=worker_id,
            seconds=round(report.seconds, 1),
            heartbeats_sent=report.sent,
            error=report.error,
            reason="native code held the interpreter, or the machine had no CPU time for the worker",
        )

    def _end(self) -> int | None:
        """End the process. Return its exit status, or None if it was not started."""
        if self._link is not None:
            with suppress(OSError):  # user code may have closed the socket by its number
                self._link.close()
        process, self._process, self._link = self._process, None, None
        if process is None:
            return None
        status = process.poll()
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        return process.returncode if status is None else status
