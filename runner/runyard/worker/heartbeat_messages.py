"""The messages between a worker and its heartbeat process.

This module imports little, because the heartbeat process must take little memory.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

MAX_PACKET_BYTES: Final = 65536
"""Maximum number of bytes of a message."""


class Order(NamedTuple):
    """The first message to the process.

    ``url``: the URL of Postgres. ``worker_pid``: the id of the worker's process. ``watchdog``: seconds of silence of the
    worker's main loop after which the process sends no heartbeats.
    """

    url: str
    worker_pid: int
    watchdog: float


class Sign(NamedTuple):
    """A sign of life of the worker's heartbeat thread.

    ``worker_id``: the worker's id, or None while it is not registered. ``turned``: when the main loop last turned, in seconds
    of the monotonic clock, which all processes of a machine share.
    """

    worker_id: str | None
    turned: float


class Report(NamedTuple):
    """What the process did while it had no sign of the heartbeat thread.

    ``seconds``: how long it had none. ``sent``: the number of heartbeats that Postgres accepted. ``error``: the last failure.
    """

    seconds: float
    sent: int
    error: str | None


def pack(message: Order | Sign | Report) -> bytes:
    """Return ``message`` as a packet. The reader knows its type."""
    return json.dumps(message).encode()
