"""examples/trip_langgraph: A graph asks before it books a trip. A fork begins at the state at its cut."""

from __future__ import annotations

from pathlib import Path

from tests.examples.programs import example


async def test_trip_example_books_and_forks(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """F13: The fork's question is about the fork's trip. The first trip stays booked."""
    async with example("trip_langgraph/plan.py", tmp_path, postgres_url, redis_url) as program:
        said = "\n".join(line for line in (await program.ended()).splitlines() if not line.startswith("{"))  # without the log
    assert "? Book 21:34, 95 € to Lisbon?\ntrip: Booked to Lisbon: ticket LIS-6007." in said
    assert "? Book 19:10, 120 € to Rome?\nfork: Nothing is booked." in said
