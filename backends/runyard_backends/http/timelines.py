"""Timelines of runs over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from runyard.domain.threads import ChildRuns, Lineage
from runyard.domain.timeline import Timeline
from runyard.errors import RunAmbiguousError, RunNotFoundError
from runyard.models import Run
from runyard.ports.queries import FIRST_PAGE, PageRequest

from . import codec
from .codec import read
from .transport import Transport
from .unsupported import DirectOnly


class HttpTimelineStore(DirectOnly):
    """The client's part of :class:`runyard.ports.timelines.TimelineStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("timelines")
        self._transport = transport

    async def timeline(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Timeline:
        """Return a page of the run's timeline."""
        path = ("threads", thread_id, "runs", run_id, "timeline")
        return read(Timeline, (await self._transport.ask("GET", *path, query=codec.paging(page))).data)

    async def children(self, thread_id: str, limit: int) -> ChildRuns:
        """Return at most ``limit`` descendants of the thread's runs, level by level: first the children, then their
        children."""
        query = {"limit": limit}
        return read(Lineage, (await self._transport.ask("GET", "threads", thread_id, "lineage", query=query)).data).child_runs

    async def find(self, prefix: str) -> Sequence[tuple[str, str]]:
        """Return the ids of the runs whose ids begin with ``prefix``."""
        with suppress(RunNotFoundError):
            try:
                run = read(Run, (await self._transport.ask("GET", "runs", prefix)).data)
            except RunAmbiguousError as error:
                return [(found["thread_id"], found["run_id"]) for found in error.details["runs"]]
            return [(run.thread_id, run.run_id)]
        return []
