"""What lists are asked for: checked once, when the value is made."""

from datetime import UTC, datetime
from typing import Any

import pytest

from runyard.errors import InvalidInputError
from runyard.ports.queries import ALL_RUNS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, RunFilter

NAIVE = datetime(2030, 1, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"limit": 0}, "limit is 1 or more, got 0"),
        ({"limit": -1}, "limit is 1 or more, got -1"),
        ({"limit": 0, "most": 10}, "limit is 1 to 10, got 0"),
        ({"limit": 11, "most": 10}, "limit is 1 to 10, got 11"),
    ],
)
def test_a_page_has_a_limit_in_range(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words) as refused:
        PageRequest(**fields)
    assert refused.value.details == {"field": "limit"}


def test_the_first_page_has_a_hundred_entries() -> None:
    assert (FIRST_PAGE.limit, FIRST_PAGE.cursor) == (100, None)
    assert PageRequest(limit=1000, most=1000).limit == 1000


def test_a_path_is_whole_or_has_a_limit_in_range() -> None:
    assert WHOLE_PATH.limit is None
    with pytest.raises(InvalidInputError, match="limit is 1 or more"):
        PathRequest(limit=0)


@pytest.mark.parametrize("field", ["since", "before"])
@pytest.mark.parametrize("moment", [NAIVE, datetime(9999, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)])
def test_runs_are_filtered_by_instants(field: str, moment: datetime) -> None:
    with pytest.raises(InvalidInputError, match=field) as refused:
        RunFilter(**{field: moment})  # type: ignore[arg-type]
    assert refused.value.details == {"field": field}


def test_a_filter_leaves_everything_open() -> None:
    assert RunFilter(since=None, before=None) == ALL_RUNS
