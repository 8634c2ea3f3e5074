"""What a program logs that embeds runyard and never configured logging."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


LEVEL_ONLY = """
import logging, structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
"""

MOUNTED = """
import asyncio, httpx
from runyard_api.http.app import asgi_app
from runyard_backends.memory import MemoryBackend, MemoryWorld

class Broken(MemoryBackend):
    async def check(self):
        said = "in confidence"
        raise ValueError("no luck")

async def main():
    app = asgi_app(Broken(MemoryWorld(), ""), auth="off")
    served = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=served, base_url="http://localhost") as http:
        assert (await http.get("/readyz")).status_code == 500

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "program", [EMBEDDING, LEVEL_ONLY + EMBEDDING, MOUNTED], ids=["worker", "worker-with-a-level", "mounted-api"]
)
def test_a_traceback_shows_no_variables(program: str) -> None:
    """The variables contain the text of conversations."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "ValueError: no luck" in done.stdout
    assert "in confidence" not in done.stdout


def test_another_format_of_tracebacks_stays() -> None:
    program = """
import structlog
from runyard.support.logging import plain_tracebacks
mine = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[mine])
plain_tracebacks()
assert structlog.get_config()["processors"] == [mine]
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
