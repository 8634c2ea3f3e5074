"""The cost of a superstep in a long thread, of RunyardSaver and of LangGraph's own saver for Postgres, on one server."""

from __future__ import annotations

import os
import time

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from runyard.adapters.langgraph_saver import RunyardSaver
from tests.support.fleet import SLACK
from tests.support.long_graph import Cost, chat, fill, measured, turn

MESSAGES = 10_000
TURNS = int(os.environ.get("RUNYARD_TEST_LONG_TURNS", "6"))
"""Number of measured prompts. The fastest prompt counts, because other processes can only slow prompts down."""


async def test_a_turn_at_10000_messages_writes_what_is_new(postgres_url: str) -> None:
    """The bytes and the time of a prompt are at most 1/50 of those of langgraph-checkpoint-postgres, reads included."""
    costs: dict[str, Cost] = {}
    async with AsyncPostgresSaver.from_conn_string(postgres_url) as official, RunyardSaver(postgres_url) as ours:
        await official.setup()
        for name, saver in (("official", official), ("ours", ours)):
            await fill(saver, "t", MESSAGES)
            every = []
            for n in range(TURNS):
                async with measured(saver, postgres_url) as cost:
                    assert await turn(saver, "t", f"turn {n}") == MESSAGES + 2 * n + 2
                every.append(cost)
            costs[name] = Cost(min(c.saver for c in every), min(c.turn for c in every), min(c.wal for c in every))
    print(costs)
    assert costs["ours"].wal * 50 <= costs["official"].wal, costs
    assert costs["ours"].saver * 50 <= costs["official"].saver * (1 + 2 * SLACK), costs


async def test_a_copy_is_as_fast_at_any_length(postgres_url: str) -> None:
    """F8: copy_thread writes as many bytes for 10,000 messages as for ten, and takes at most twice the time."""
    async with RunyardSaver(postgres_url) as saver:
        costs: dict[int, tuple[float, int]] = {}
        for messages in (10, MESSAGES):
            await fill(saver, f"t{messages}", messages)
            for _ in range(3):
                await turn(saver, f"t{messages}", "go on")
            times = []
            for n in range(10):
                async with measured(saver, postgres_url) as cost:
                    since = time.perf_counter()
                    await saver.acopy_thread(f"t{messages}", f"copy{messages}-{n}")
                    times.append(time.perf_counter() - since)
            costs[messages] = min(times), cost.wal
        state = await chat(saver).aget_state({"configurable": {"thread_id": f"copy{MESSAGES}-0"}})
        assert len(state.values["messages"]) == MESSAGES + 6
    print(costs)
    assert costs[MESSAGES][1] <= 2 * costs[10][1], costs
    assert costs[MESSAGES][0] <= (2 + SLACK) * costs[10][0] + 0.002, costs
