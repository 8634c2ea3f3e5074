"""Pages of the lists of runs, attempts and requests. A cursor is a place in the order of a list. The row at this place can be
missing in the list when the next page is read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from runyard.domain.list_entries import attempt_bytes, entry, entry_bytes, request_bytes
from runyard.models import AttemptInfo, HitlRequest, Run
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page

from .. import cursors
from ..paging import page_of
from .state import RunState


def page_of_runs(found: Sequence[RunState], page: PageRequest, budget: int) -> Page[Run]:
    """Return the page ``page`` of ``found``, the newest run first. The page has at most ``budget`` bytes. Raises
    InvalidCursorError."""
    last = cursors.run(page.cursor) if page.cursor is not None else None
    left = sorted((run for run in found if last is None or _place(run) < last), key=_place, reverse=True)
    part = page_of(left, page.limit, lambda run: cursors.of_run(*_place(run)), lambda run: entry_bytes(run.run), budget)
    return Page([entry(run.run) for run in part.items], part.next)


def page_of_attempts(made: Sequence[AttemptInfo], page: PageRequest, budget: int) -> Page[AttemptInfo]:
    """Return the page ``page`` of ``made``, the oldest attempt first. The page has at most ``budget`` bytes. Raises
    InvalidCursorError."""
    last = cursors.number(page.cursor) if page.cursor is not None else -1
    left = [attempt for attempt in made if attempt.fence > last]
    part = page_of(left, page.limit, lambda attempt: cursors.encode(attempt.fence), attempt_bytes, budget)
    return Page([attempt.model_copy(deep=True) for attempt in part.items], part.next)


def page_of_requests(found: Sequence[HitlRequest], page: PageRequest, budget: int) -> Page[HitlRequest]:
    """Return the page ``page`` of ``found``, the oldest request first. The page has at most ``budget`` bytes. Raises
    InvalidCursorError."""
    last = cursors.moment(page.cursor) if page.cursor is not None else (cursors.START[0], "")
    left = sorted((request for request in found if _asked(request) > last), key=_asked)
    part = page_of(left, page.limit, lambda request: cursors.of_moment(*_asked(request)), request_bytes, budget)
    return Page([request.model_copy(deep=True) for request in part.items], part.next)


def _asked(request: HitlRequest) -> tuple[datetime, str]:
    assert request.created_at is not None
    return request.created_at, request.request_id


def _place(run: RunState) -> tuple[datetime, int]:
    return run.run.accepted_at, run.accept_no
