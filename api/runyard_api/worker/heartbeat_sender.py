"""The heartbeat process of a worker, on Linux: ``python -m runyard_api.worker.heartbeat_sender <socket>``.

The process sends heartbeats while all of these conditions are true (:mod:`runyard.worker.heartbeat_process`):

- The worker is registered.
- The worker's heartbeat thread is silent.
- The worker's process runs.
- The worker's main loop has run in the last RUNYARD_WATCHDOG seconds.

The process ends with the worker.

The process imports the driver of Postgres only for its first heartbeat. Without the driver, it needs only a third of the
memory that it needs with the driver.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from runyard.worker.heartbeat_messages import MAX_PACKET_BYTES, Order, Report, Sign, pack

SILENT_SECONDS: Final = 1.0
"""Seconds without a report of the worker after which the process sends heartbeats. An unnecessary heartbeat does no harm."""
BEAT_SECONDS: Final = 1.0
"""Seconds from one heartbeat to the next, and between two checks of the worker's process."""


class HeartbeatSender:
    """Sends heartbeats for the worker of ``order``. The worker's reports arrive over ``link``."""

    def __init__(self, link: socket.socket, order: Order) -> None:
        self._link = link
        self._order = order
        self._sign = Sign(None, 0.0)
        self._heard = time.monotonic()
        self._sent = 0
        self._error: str | None = None

    def serve(self) -> None:
        """Send heartbeats when they are needed. Return when the worker has ended.

        A process that agent code forks keeps a copy of the worker's socket open. The end of the worker is therefore read from
        the id of the parent process, and not only from the socket.
        """
        self._link.settimeout(SILENT_SECONDS)
        while os.getppid() == self._order.worker_pid:
            try:
                packet = self._link.recv(MAX_PACKET_BYTES)
            except TimeoutError:
                self._link.settimeout(BEAT_SECONDS)
                self._stand_in()
            else:
                if not packet:
                    return
                self._report()
                self._sign = Sign(*json.loads(packet))
                self._link.settimeout(SILENT_SECONDS)

    def _permitted(self) -> bool:
        """Return True if a heartbeat may be sent now."""
        order, sign = self._order, self._sign
        return sign.worker_id is not None and time.monotonic() - sign.turned <= order.watchdog and runs(order.worker_pid)

    def _stand_in(self) -> None:
        worker_id = self._sign.worker_id
        if worker_id is None or not self._permitted():
            return
        import asyncio

        from runyard.errors import WorkerDeadError
        from runyard_backends.postgres.single_heartbeat import send_heartbeat

        try:
            self._sent += asyncio.run(send_heartbeat(self._order.url, worker_id, self._permitted))
        except WorkerDeadError as error:
            self._error = str(error)
            self._sign = Sign(None, 0.0)
        except Exception as error:
            self._error = str(error)

    def _report(self) -> None:
        """Send the worker the number of heartbeats since the worker's last report, and their last error. Then begin to count
        again."""
        if self._sent or self._error is not None:
            self._link.send(pack(Report(time.monotonic() - self._heard, self._sent, self._error)))
        self._heard, self._sent, self._error = time.monotonic(), 0, None


def runs(parent: int) -> bool:
    """Return True if ``parent``, the parent of this process, runs. A process does not run if it is stopped, traced or ending,
    or writes a core dump."""
    try:
        status = Path(f"/proc/{parent}/status").read_text()
    except OSError:
        return False
    # After the end of the parent, another process may get the parent's id. The check of getppid excludes this case.
    return executes(status) and os.getppid() == parent


def executes(status: str) -> bool:
    """Return True if a process executes or waits. ``status``: the text of its ``/proc/<pid>/status``. If the text has no
    ``VmRSS``, the process is ending and has released its memory."""
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields.get("State", "")[:1] in {"R", "S", "D"} and "VmRSS" in fields and fields.get("CoreDumping", "0") == "0"


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # ignored, because this process ends with the worker
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    packet = link.recv(MAX_PACKET_BYTES)
    if packet:
        with suppress(ConnectionError):  # the worker has closed its socket
            HeartbeatSender(link, Order(*json.loads(packet))).serve()


if __name__ == "__main__":
    main()
