"""The messages between a worker and its heartbeat process.

This module imports few modules, because the heartbeat process must use little memory.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

MAX_PACKET_BYTES: Final = 65536
"""Maximum number of bytes of a message."""


class Order(NamedTuple):
    """The first message to the process.

    ``url``: the URL of Postgres. ``worker_pid``: the id of the worker's process. ``watchdog``: seconds for which the worker's
    main loop may be blocked. After this time the process sends no heartbeats.
    """

    url: str
    worker_pid: int
    watchdog: float


class Sign(NamedTuple):
    """A sign of life from the worker's heartbeat thread.

    ``worker_id``: the worker's id, or None while the worker is not registered. ``turned``: the time at which the main loop last
    ran, in seconds of the monotonic clock. All processes of a machine share this clock.
    """

    worker_id: str | None
    turned: float


class Report(NamedTuple):
    """A report of the process about a time without signs of the heartbeat thread.

    ``seconds``: the length of this time. ``sent``: the number of heartbeats that Postgres accepted in this time. ``error``: the
    last error of a heartbeat, or None.
    """

    seconds: float
    sent: int
    error: str | None


def pack(message: Order | Sign | Report) -> bytes:
    """Return ``message`` as a packet. The packet does not name the type of the message, because the reader knows the type."""
    return json.dumps(message).encode()
