"""Filters and pages of lists. The constructors check the values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from typing import Final

from ..domain.states import RunStatus
from ..domain.validation import check_aware, check_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request for one page of a list.

    ``limit``: the maximum number of entries of the page. ``cursor``: the ``next`` of the previous page, or None for the first
    page. ``most``: the largest ``limit`` of this list, or None. Raises InvalidInputError for a limit out of range.
    """

    limit: int = 100
    cursor: str | None = None
    most: InitVar[int | None] = None

    def __post_init__(self, most: int | None) -> None:
        check_limit(self.limit, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter of runs by thread, status, agent and time of acceptance.

    ``since``: the earliest time of acceptance. ``before``: the latest time of acceptance (exclusive). A field that is None
    matches every run. An invalid id matches no run. Raises InvalidInputError for a time without a zone, or in a year outside
    ALLOWED_YEARS.
    """

    thread_id: str | None = None
    status: RunStatus | None = None
    agent: str | None = None
    since: datetime | None = None
    before: datetime | None = None

    def __post_init__(self) -> None:
        check_aware(self.since, "since")
        check_aware(self.before, "before")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadFilter:
    """A filter of threads by parent thread, agent and tags.

    ``tags``: tags that a thread must have to match. A field that is None matches every thread. ``newest_first``: begin at the
    newest thread, not at the oldest.
    """

    parent_thread_id: str | None = None
    agent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    newest_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRequest:
    """A request for a path of a thread's message tree, or for a page of such a path (B2).

    ``leaf_id``: the id of the message at which the path ends, or None for the newest leaf. ``limit``: the maximum number of
    messages, or None for the whole path. ``newest_first``: begin at the leaf. Raises InvalidInputError for a limit out of
    range.
    """

    leaf_id: str | None = None
    limit: int | None = None
    cursor: str | None = None
    newest_first: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_limit(self.limit)


FIRST_PAGE: Final = PageRequest()
ALL_RUNS: Final = RunFilter()
ALL_THREADS: Final = ThreadFilter()
WHOLE_PATH: Final = PathRequest()
