"""Poison (R21): a run that takes its process down ends dead, and none of its neighbours with it."""

import asyncio

from runyard.domain.states import RunStatus
from tests.support.fleet import Fleet

INNOCENT = 200


async def test_a_poison_run_beside_200_innocent_ones(fleet: Fleet) -> None:
    """All of them share a process with it twice; it is dead, they complete, and one worker of three is left unharmed."""
    app = "tests.support.agents.odd:app"
    first = await fleet.start(app=app)
    innocent = [await fleet.client.enqueue(f"t{n}", "hi", agent="innocent") for n in range(INNOCENT)]
    poison = await fleet.client.enqueue("poison", str(INNOCENT), agent="poison")
    second = await fleet.start(app=app)
    for victim in (first, second):
        await asyncio.wait_for(fleet.processes[victim].wait(), 30)
    last = await fleet.start(app=app)
    result = await poison.result(60)
    assert result.status is RunStatus.DEAD and result.run.crash_count == 3
    assert result.error is not None and result.error.code == "poison"
    results = await asyncio.gather(*(handle.result(90) for handle in innocent))
    assert {result.status for result in results} == {RunStatus.COMPLETED}
    assert {result.run.crash_count for result in results} == {2}
    assert fleet.processes[last].returncode is None
    page = await fleet.client.runs(status=RunStatus.DEAD)
    assert [run.run_id for run in page.items] == [poison.id]
