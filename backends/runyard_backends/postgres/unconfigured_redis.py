"""The scheduler and the event log of a connection without Redis (``redis=`` is not given).

This module does not handle a failure of a configured Redis. ``worker/claim_loop.py`` and ``worker/lost_jobs.py`` do.

The stores work without Redis. Runs start later, because the reconciler submits their jobs. Cancels take effect later, because a
worker's heartbeat reads them. Streams have only the events that follow from the rows in Postgres.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence

from runyard.errors import BackendUnavailableError
from runyard.models import Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Delivery, Job, StreamUsage


def _missing() -> BackendUnavailableError:
    return BackendUnavailableError(
        "connected without Redis: runs start later, and streams have only stored events; pass redis= to connect"
    )


class NoScheduler:
    """Implements :class:`runyard.ports.scheduling.Scheduler`. ``end_wait`` and ``hint_cancel`` do nothing. The other methods
    raise BackendUnavailableError."""

    async def submit(self, jobs: Sequence[Job]) -> None:
        """Raise BackendUnavailableError. The caller logs the error, and the reconciler submits the jobs."""
        raise _missing()

    async def claim(
        self, worker_id: str, queues: Sequence[str], limit: int, wait: float = 0.0, *, has: Sequence[str] = ()
    ) -> list[Delivery]:
        raise _missing()

    async def end_wait(self, worker_id: str) -> None:
        """Do nothing, because no claim waits."""

    async def renew(self, worker_id: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
        raise _missing()

    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None:
        raise _missing()

    async def missing_jobs(self, jobs: Sequence[Job], dead: Collection[str] = ()) -> list[Job]:
        raise _missing()

    async def ping(self) -> None:
        raise _missing()

    async def hint_cancel(self, refs: Sequence[RunRef]) -> None:
        """Do nothing, because the run's worker reads the cancel in Postgres."""

    async def cancel_hints(self) -> AsyncIterator[RunRef]:
        raise _missing()
        yield  # makes this function an async generator


class NoEventLog:
    """Implements :class:`runyard.ports.scheduling.EventLog`. The log drops all events. Its reads raise BackendUnavailableError.
    Readers then get the events that follow from the rows in Postgres."""

    async def append(self, thread_key: int, events: Sequence[Event]) -> None:
        """Do nothing, because readers find the committed data in Postgres."""

    async def append_many(self, batch: Sequence[tuple[RunRef, Sequence[Event]]]) -> None:
        """Do nothing, for the same reason as :meth:`append`."""

    async def read(self, ref: RunRef, after: str | None = None, *, page: bool = False) -> list[Event]:
        raise _missing()

    async def holds(self, ref: RunRef, event_id: str) -> bool:
        raise _missing()

    async def follow(
        self, ref: RunRef, after: str | None = None, *, silence: float | None = None
    ) -> AsyncGenerator[Event | None]:
        raise _missing()
        yield  # makes this function an async generator

    async def begins(self, thread_key: int) -> AsyncIterator[bool]:
        raise _missing()
        yield  # makes this function an async generator

    async def forget(self, thread_keys: Sequence[int]) -> None:
        """Do nothing, because the streams expire."""

    async def trim(self) -> StreamUsage:
        raise _missing()
