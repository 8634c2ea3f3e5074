"""examples/openai_agents: A worker executes an agent of the OpenAI Agents SDK. A session uses the same thread."""

from __future__ import annotations

from pathlib import Path

from tests.examples.programs import example


async def test_the_openai_agents_example_approves_and_branches(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    async with example("openai_agents/chat.py", tmp_path, postgres_url, redis_url) as program:
        said = await program.ended()
    assert "Allow refund? {'order': 'A-7'}" in said
    assert "Order A-7 is refunded under the key" in said and "I am sorry about a cup." in said
    assert "The session has 6 items." in said
    assert "On the branch: Which order is it about?" in said
    assert "The main branch still has 6 items." in said
