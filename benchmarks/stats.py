"""Order statistics of samples, and a ratio of two contestants that is independent of changes of the machine's speed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that is >= ``share`` (0..1] of all values."""
    if not values:
        raise ValueError("a percentile needs at least one value")
    rank = max(1, math.ceil(share * len(values)))
    return sorted(values)[rank - 1]


@dataclass(frozen=True)
class Summary:
    """The printed summary of a contestant's samples. ``count``: the number of samples. All other fields are in the scenario's
    unit."""

    count: int
    p50: float
    p99: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(
            count=len(values),
            p50=statistics.median(values),
            p99=percentile(values, 0.99),
            minimum=min(values),
            maximum=max(values),
        )


def paired_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the median over rounds of ``median(ours) / median(theirs)``.

    Only medians of the same round are divided. The contestants of a round run within seconds of each other, so a machine that
    becomes slower affects both sides and leaves the ratio unchanged.
    """
    ratios = [
        statistics.median(mine) / statistics.median(other) for mine, other in zip(ours, theirs, strict=False) if mine and other
    ]
    if not ratios:
        raise ValueError("no round has samples of both contestants")
    return statistics.median(ratios)
