"""examples/arq_producer: arq's own client enqueues runs and reads the results."""

from __future__ import annotations

from pathlib import Path

from tests.examples.programs import example


async def test_arq_producer_example_reads_results(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    async with example("arq_producer/produce.py", tmp_path, postgres_url, redis_url) as program:
        said = await program.ended()
    assert "prompt: Rain until noon, then sun." in said and "probe: Rain until noon" in said
    assert "-b'}" in said and "JobStatus.deferred" in said and "JobStatus.complete" in said
    assert "refused: priority is one of high, normal, low" in said
