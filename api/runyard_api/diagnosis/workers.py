"""The states of workers, and their stacks."""

from __future__ import annotations

import socket
import urllib.request
from typing import Final
from urllib.error import HTTPError, URLError

from runyard.errors import BackendUnavailableError
from runyard.ports.workers import WorkerInfo

from ..quantities import clock

LATE_SECONDS: Final = 3.0
"""Seconds after which a worker without a heartbeat counts as silent."""


def state(worker: WorkerInfo) -> str:
    """Return the state of a worker: ``live``, ``draining``, ``no redis``, ``blocked``, ``silent`` or ``dead``."""
    if worker.dead_at is not None:
        return "dead"
    if worker.silent_for is not None and worker.silent_for > LATE_SECONDS:
        return "silent"
    if worker.blocked is not None:
        return "blocked"
    if worker.redis_outage is not None:
        return "no redis"
    return "draining" if worker.draining else "live"


def blocked_words(worker: WorkerInfo) -> str | None:
    """Return a phrase that says where a worker's main loop is blocked, or None.

    For a dead worker, the phrase says where the main loop was blocked when the worker was declared dead.
    """
    if (blocked := worker.blocked) is None:
        return None
    if worker.dead_at is not None:
        return f"main loop was blocked at {blocked.place} when it was declared dead"
    return f"main loop blocked for {blocked.seconds:.0f} s at {blocked.place}"


def outage_words(worker: WorkerInfo) -> str | None:
    """Return a phrase about a worker that does not reach Redis, with the start of the outage. Return None for any other worker.

    For a dead worker, the phrase says whether the worker did not reach Redis when it was declared dead.
    """
    if (outage := worker.redis_outage) is None:
        return None
    if worker.dead_at is not None:
        return f"did not reach Redis when it was declared dead: {outage.reason}"
    return f"does not reach Redis since {clock(outage.since)}: {outage.reason}"


def stacks_of(worker: WorkerInfo) -> str:
    """Ask a worker for its stacks. Blocks for up to ten seconds. Raises BackendUnavailableError."""
    if worker.address is None:
        raise BackendUnavailableError(
            f"worker {worker.worker_id} has no port: start it with RUNYARD_METRICS_PORT, or send its process SIGUSR1"
        )
    host, _, port = worker.address.rpartition(":")
    where = "localhost" if host == socket.gethostname() else host
    try:
        with urllib.request.urlopen(f"http://{where}:{port}/stacks", timeout=10) as reply:
            text: str = reply.read().decode()
            return text
    except HTTPError as error:
        with error:
            raise BackendUnavailableError(
                f"worker {worker.worker_id} refused to send its stacks: {error.read().decode()}"
            ) from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise BackendUnavailableError(
            f"worker {worker.worker_id} cannot be reached at {where}:{port} ({reason}); run this command on its machine"
        ) from None
