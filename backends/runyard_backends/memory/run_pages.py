"""Pages of the list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from runyard.domain.list_entries import entry, entry_bytes
from runyard.models import Run
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page

from .. import cursors
from ..paging import within
from .state import RunState


def page_of_runs(found: Sequence[RunState], page: PageRequest, budget: int) -> Page[Run]:
    """Return the page ``page`` of ``found``, the newest run first. The page has at most ``budget`` bytes.

    The cursor is a place in the order of all runs. The run at this place may be missing in ``found``. Raises
    InvalidCursorError.
    """
    last = cursors.run(page.cursor) if page.cursor is not None else None
    left = sorted((run for run in found if last is None or _place(run) < last), key=_place, reverse=True)
    part = within(left[: page.limit], lambda run: entry_bytes(run.run), budget)
    return Page([entry(run.run) for run in part], cursors.of_run(*_place(part[-1])) if len(part) < len(left) else None)


def _place(run: RunState) -> tuple[datetime, int]:
    return run.run.accepted_at, run.accept_no
