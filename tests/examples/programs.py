"""The examples as people run them: the command of the docstring, in a copy of the folder, on the servers of a test."""

from __future__ import annotations

import ast
import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.fleet import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BOUND = 60.0
"""Seconds for an example to start, or to end."""
OF_THE_CALLER = ("RUNYARD_", "OPENAI_", "ANTHROPIC_")


@dataclass
class Program:
    """A running example. ``url``: where its web server listens, if it has one."""

    process: asyncio.subprocess.Process
    url: str

    async def ended(self) -> str:
        """What it said until it ended by itself, without an error."""
        async with asyncio.timeout(BOUND):
            said, _ = await self.process.communicate()
        assert self.process.returncode == 0, said.decode()
        return said.decode()

    async def said(self, words: str) -> None:
        """Wait until it says ``words``."""
        assert self.process.stdout is not None
        heard = ""
        async with asyncio.timeout(BOUND):
            while words not in heard:
                line = (await self.process.stdout.readline()).decode()
                heard += line
                assert line, heard


def command_of(source: Path) -> list[str]:
    """The command with which the docstring of ``source`` starts the example."""
    words = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    [line] = [line.strip() for line in words.splitlines() if line.strip().startswith("runyard dev")]
    return shlex.split(line)


@asynccontextmanager
async def example(
    source: str, tmp_path: Path, postgres_url: str, redis_url: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """The example whose command is in the docstring of ``source`` (``folder/file.py``), on a port of its own."""
    folder = shutil.copytree(EXAMPLES / Path(source).parent, tmp_path / "example", ignore=shutil.ignore_patterns(".*", "__*"))
    async with started(command_of(EXAMPLES / source), folder, postgres_url, redis_url, environment) as program:
        yield program


@asynccontextmanager
async def started(
    command: Sequence[str], folder: Path, postgres_url: str, redis_url: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Program]:
    """A ``runyard`` command as people type it in ``folder``. A port 8080 in it becomes a free one."""
    port = str(free_port())
    _, *arguments = [port if word == "8080" else word for word in command]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "runyard_api.cli", *arguments),
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CALLER)},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "PYTHONUNBUFFERED": "1",
            "RUNYARD_POSTGRES_URL": postgres_url,
            "RUNYARD_REDIS_URL": redis_url,
            **(environment or {}),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield Program(process, f"http://127.0.0.1:{port}")
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(BOUND):
                await process.communicate()
