"""The input of a run is stored once: in its row until the first claim, then as a message of the run."""

from __future__ import annotations

import asyncpg

from runyard.models import ErrorInfo
from runyard.ports.commands import Write
from runyard.ports.queries import RunFilter
from runyard_backends.conformance.world import World, said
from runyard_backends.postgres.backend import connect

KEPT = "SELECT run_id FROM runyard.runs WHERE input IS NOT NULL"


async def test_a_claimed_run_has_its_input_as_a_message_only(postgres_url: str) -> None:
    """Q2, A2: Every reader shows the input all the same, and a later claim gets it."""
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    try:
        await world.accept("waits", "one", thread="a")
        assert [row["run_id"] for row in await connection.fetch(KEPT)] == ["waits"]
        retried = await world.start("retried", "two", thread="b")
        await world.runs.release(retried, error=ErrorInfo(code="x", message="x"))
        failed = await world.start("failed", "three", thread="c")
        await world.runs.fail(Write(attempt=failed), ErrorInfo(code="x", message="x"))
        await world.finish(await world.start("completed", "four", thread="d"), said("yes"))
        assert [row["run_id"] for row in await connection.fetch(KEPT)] == ["waits"]

        asked = {"waits": ("a", "one"), "retried": ("b", "two"), "failed": ("c", "three"), "completed": ("d", "four")}
        listed = {run.run_id: run for run in (await world.runs.runs(RunFilter())).items}
        for run_id, (thread, text) in asked.items():
            run = await world.run(run_id, thread)
            assert run.input is not None and run.input.text == text
            assert run == listed[run_id]
        again = await world.claim("retried", thread="b")
        assert again.run is not None and again.run.input is not None and again.run.input.text == "two"
        redriven = (await world.runs.redrive("c", "failed")).run
        cancelled = (await world.runs.cancel("c", "failed")).run
        assert redriven.input is not None and redriven.input == cancelled.input == listed["failed"].input
    finally:
        await connection.close()
        await backend.close()
