"""The protocol of a store for timelines of runs and for their children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ..domain.threads import ChildRuns
from ..domain.timeline import Timeline
from .queries import FIRST_PAGE, PageRequest

FOUND_RUNS: Final = 10
"""Maximum number of runs in the result of a search by the beginning of an id."""


class TimelineStore(Protocol):
    """Timelines of the tenant's runs, their children, and the search for runs by the beginning of their ids.

    ``timeline``: return a page of the timeline of a run. The thread can also be a fork that inherited the whole run. Raises
    RunNotFoundError, ThreadNotFoundError, InvalidCursorError. ``find``: return the thread ids and run ids of the runs whose ids
    begin with ``prefix``, at most :data:`FOUND_RUNS`. If runs have exactly this id, return only these runs. Runs whose content
    was deleted are not found. ``children``: return at most ``limit`` children of the thread's runs, and children of these
    children, in the order of :class:`ChildRuns`. A child whose content was deleted is left out together with its children.
    Raises ThreadNotFoundError.
    """

    async def timeline(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Timeline: ...
    async def find(self, prefix: str) -> Sequence[tuple[str, str]]: ...
    async def children(self, thread_id: str, limit: int) -> ChildRuns: ...
