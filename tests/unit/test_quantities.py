"""Times in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from runyard_api.quantities import clock


def test_a_time_of_another_day_has_its_seconds() -> None:
    """The order and the gaps of the entries of a list stay visible after midnight."""
    before = datetime.now(UTC) - timedelta(days=2)
    assert clock(before) == before.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert clock(now := datetime.now(UTC)) in (
        now.astimezone().strftime("%H:%M:%S"),
        now.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
    )
    assert clock(None) == ""
