"""examples/cubeloop: A worker and the program execute agents of cubeloop on one thread."""

from __future__ import annotations

from pathlib import Path

from tests.examples.programs import example


async def test_cubeloop_example_is_approved_and_goes_on(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """H1, H9, F1: The worker's run and the program's run belong to one conversation."""
    async with example("cubeloop/talk.py", tmp_path, postgres_url, redis_url) as program:
        said = await program.ended()
    assert "Allow refund? {'order': 'A-7'}" in said and "Done: order A-7 is paid back (key " in said
    assert "We have 5 messages so far." in said and "-branch has 4 messages" in said
