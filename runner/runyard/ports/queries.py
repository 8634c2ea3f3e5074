"""What lists are asked for: which entries, and which page of them. Each value is checked once, when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import datetime
from typing import Final

from ..domain.states import RunStatus
from ..domain.validation import check_aware, check_limit


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One page of a list: ``limit`` entries at most, after the place that ``cursor`` names, or from the list's beginning.

    ``most``: the largest ``limit`` of this list, if it has one. Raises InvalidInputError for a limit out of range.
    """

    limit: int = 100
    cursor: str | None = None
    most: InitVar[int | None] = None

    def __post_init__(self, most: int | None) -> None:
        check_limit(self.limit, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs: those of a thread, with a status, of an agent, accepted at ``since`` or later, and before ``before``.

    None leaves a field open. An id that nothing can have matches nothing. Raises InvalidInputError for a time without zone, or
    in a year that stores do not take.
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
    """Which threads: the forks of one, those of an agent, those that carry all of ``tags``. None leaves a field open."""

    parent_thread_id: str | None = None
    agent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRequest:
    """Which part of a path of a thread's message tree (B2).

    ``leaf_id``: the message at which the path ends; None: the newest leaf. ``limit``: messages at most; None: the whole path.
    ``newest_first``: from the leaf on. Raises InvalidInputError for a limit out of range.
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
