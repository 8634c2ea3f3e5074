"""Send one heartbeat over a separate connection. This module imports little, because the heartbeat process calls it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from .connecting import Connector, session_timeouts, split_url
from .driver_errors import translated

CALL_SECONDS: Final = 2.0
"""Maximum seconds of a heartbeat, including the time for connecting."""
CONNECTION: Final = "runyard-heartbeat-process"
"""The name under which Postgres lists the connection."""


async def send_heartbeat(url: str, worker_id: str, permitted: Callable[[], bool]) -> bool:
    """Record a heartbeat of a worker. ``permitted`` is called when the connection is open. If it returns False, record nothing
    and return False.

    Raises WorkerDeadError, BackendUnavailableError.
    """
    url, options = split_url(url)
    connect = Connector(url, CONNECTION, session_timeouts(CALL_SECONDS))
    with translated():
        async with asyncio.timeout(CALL_SECONDS):
            connection = await connect(**options)
            try:
                if not permitted():
                    return False
                await connection.execute("SELECT FROM runyard.beat($1)", worker_id)
                await connection.close()
            finally:
                connection.terminate()
    return True
