"""The short form of ``make growth``: a takeover and lists beside runs that wait for humans or workers, or ended (O4, W1)."""

import pytest

from tests.growth import checks
from tests.growth.load import Sizes, load
from tests.support.fleet import SLACK, Fleet

SIZES = Sizes(parked=50_000, queued=2_000, ended=10_000, threads=2_000, tenants=100)
TAKEOVER_SECONDS = 6.0
LIST_SECONDS = 0.02


@pytest.mark.slow
async def test_another_worker_takes_over_within_six_seconds_beside_parked_runs(fleet: Fleet) -> None:
    """O4, W1: neither the watch over heartbeats nor the rescue walks over the suspended runs, and no statement over a table."""
    await load(fleet.postgres, SIZES)
    before = await checks.scanned(fleet.postgres)
    lists = await checks.list_seconds(fleet.postgres, "tenant-7", "thread-7")
    assert {name: seconds for name, seconds in lists.items() if seconds > LIST_SECONDS * (1 + SLACK)} == {}
    await fleet.start(slots=20)
    waits = await checks.takeover(fleet, "taken", 0.0)
    print(f"takeover after {max(waits):.2f} s")
    assert max(waits) <= TAKEOVER_SECONDS + SLACK
    assert await checks.scanned(fleet.postgres) == before
