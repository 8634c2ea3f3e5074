"""The protocol of a store's timelines of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ..domain.timeline import Timeline
from .queries import FIRST_PAGE, PageRequest

FOUND_RUNS: Final = 10
"""Most runs that a search by the beginning of an id returns."""


class TimelineStore(Protocol):
    """Timelines of the tenant's runs, and the search of a run by the beginning of its id.

    ``timeline``: return a page of the timeline of a run, which the thread may have inherited whole. Raises RunNotFoundError,
    ThreadNotFoundError, InvalidCursorError.
    ``find``: return the thread ids and run ids of the runs whose ids begin with ``prefix``, at most :data:`FOUND_RUNS`. If
    runs have exactly this id, return only these. Runs whose content was deleted are not found.
    """

    async def timeline(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Timeline: ...
    async def find(self, prefix: str) -> Sequence[tuple[str, str]]: ...
