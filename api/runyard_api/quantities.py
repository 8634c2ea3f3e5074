"""Times, durations and counts in words."""

from __future__ import annotations

from datetime import UTC, datetime


def clock(moment: datetime | None) -> str:
    """Return a moment in local time, to the second. A moment of today is returned without its date."""
    if moment is None:
        return ""
    local, today = moment.astimezone(), datetime.now(UTC).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def age(moment: datetime | None) -> str:
    """Return the time since ``moment`` as :func:`duration` does."""
    return "" if moment is None else duration(max((datetime.now(UTC) - moment).total_seconds(), 0.0))


def duration(seconds: float | None) -> str:
    """Return a duration in words, in the largest unit that is not longer than the duration."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def count(number: int, one: str, many: str) -> str:
    """Return ``number`` with its noun in the singular or plural."""
    return f"{number} {one if number == 1 else many}"
