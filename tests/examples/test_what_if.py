"""examples/what_if: probes beside each other, and a fork that goes on with the best."""

from __future__ import annotations

from pathlib import Path

from tests.examples.programs import example


async def test_what_if_example_leaves_its_source_unchanged(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """F9, F11: the source keeps its two messages."""
    async with example("what_if/ask.py", tmp_path, postgres_url, redis_url) as program:
        said = await program.ended()
    assert "→ What if we had half the money?" in said
    assert said.count("What if") == 3
    assert "-chosen has 4 messages" in said and " has 2 messages" in said
