"""What a program logs that embeds runyard and never configured logging."""

from __future__ import annotations

import subprocess
import sys

EMBEDDING = """
import asyncio
from runyard.testing import Harness

async def agent(ctx):
    said = "in confidence"
    raise ValueError("no luck")

async def main():
    async with Harness(agent) as harness:
        await harness.prompt("t", "hello")

asyncio.run(main())
"""


def test_a_traceback_tells_no_variables() -> None:
    """What people said is in them."""
    done = subprocess.run([sys.executable, "-c", EMBEDDING], capture_output=True, text=True, timeout=60, check=True)
    assert "ValueError: no luck" in done.stdout
    assert "in confidence" not in done.stdout
