"""Which line blocks a worker's main loop, as explain, the list of workers, the attempt and the log tell it (W1, R12)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from runyard.domain.states import RunStatus
from tests.support.agents import odd
from tests.support.fleet import Fleet, until

ODD = "tests.support.agents.odd:app"
LINE = next(
    n for n, line in enumerate(Path(odd.__file__).read_text().splitlines(), 1) if "the line that a blocked loop names" in line
)
PLACE = f"{odd.__file__}:{LINE}"


async def test_a_blocked_loop_names_its_line_while_it_lasts_and_in_the_attempt_that_it_cost(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The watchdog ends the worker's heartbeats after four seconds. A second worker takes the run over."""
    client, log = fleet.client, tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = await fleet.spawn(ODD, output.fileno(), watchdog=4.0, heartbeat_process=False)
    run = await client.enqueue("t", "600", agent="sleeper")

    async def explained() -> bool:
        sentence = await run.explain()
        return bool(re.search(rf"main loop of the worker has been blocked for \d+ s at {re.escape(PLACE)}$", sentence))

    await until(explained, 60)
    [row] = await fleet.backend.workers.workers()
    assert row.blocked is not None and row.blocked.place == PLACE and row.blocked.seconds >= 1
    assert f'odd.py", line {LINE}, in sleeper' in row.blocked.stack
    await fleet.start(app=ODD)
    assert (await run.result(60)).status is RunStatus.COMPLETED
    lost = (await client.attempts("t", run.id)).items[0]
    assert lost.outcome == "lost" and lost.error is not None
    assert (lost.error.code, lost.error.message) == (
        "main_loop_blocked",
        f"the main loop of its worker was blocked at {PLACE}",
    )
    assert lost.error.traceback is not None and f'odd.py", line {LINE}, in sleeper' in lost.error.traceback
    worker.kill()
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    blocked = [line for line in lines if line["event"] == "main_loop_blocked"]
    assert [line["code_line"] for line in blocked] == [PLACE] * 2, "once when it is blocked, and once before the heartbeats end"


async def test_a_loop_that_turns_again_is_blocked_no_longer(fleet: Fleet) -> None:
    await fleet.start(app=ODD)
    run = await fleet.client.enqueue("t", "3", agent="sleeper")
    seen = False

    async def turned() -> bool:
        nonlocal seen
        [row] = await fleet.backend.workers.workers()
        seen = seen or row.blocked is not None
        return seen and row.blocked is None

    await until(turned, 60)
    assert (await run.result(60)).ok
    assert [attempt.outcome for attempt in (await fleet.client.attempts("t", run.id)).items] == ["completed"]
