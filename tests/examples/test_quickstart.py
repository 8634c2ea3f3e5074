"""The quickstart as a reader follows it: its commands and programs, word for word and in order."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from runyard import Client
from runyard_api.cli.main import main
from tests.examples.pages import blocks
from tests.examples.programs import ROOT, started

PAGE: Final = ROOT / "docs" / "quickstart.md"
BLOCKS: Final = list(blocks(PAGE))
STARTS: Final = "runyard dev app:app"
MODEL: Final = "pydantic_ai"
"""In the block that needs a provider."""


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in block.splitlines()]


async def typed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a ``runyard`` command prints. It runs in this process: starting Python takes most of a command's time."""
    assert words[0] == "runyard"
    code = await asyncio.to_thread(main, words[1:])
    out, err = capsys.readouterr()
    assert code == 0 or (words[1] == "prompt" and code == 6), f"{words}: {code}\n{out}{err}"
    return str(out)


async def ran(program: str, folder: Path) -> str:
    """What a program of the page prints."""
    (folder / "ask.py").write_text(program, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "ask.py"), cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(60):
        said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


async def test_the_quickstart_works_word_for_word(
    tmp_path: Path, postgres_url: str, redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1, F1, H1. ``dev`` uses the servers of the test: the environment wins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("RUNYARD_REDIS_URL", redis_url)
    (install, make, enter, start), *rest = [commands(block) for language, block in BLOCKS if language == "sh"]
    assert install[:2] == ["pip", "install"] and enter == ["cd", "app"] and " ".join(start).startswith(STARTS)
    await typed(make, capsys)
    monkeypatch.chdir(folder := tmp_path / "app")
    program, blocking, transaction, asking, model, alone = [block for language, block in BLOCKS if language == "python"]
    assert MODEL in model and '"openai:' in alone
    # The reader adds this agent while `dev` runs; `--reload` has its own test.
    (folder / "app.py").write_text((folder / "app.py").read_text("utf-8") + "\n\n" + asking, "utf-8")
    async with started([*start, "--port", "8080"], folder, postgres_url, redis_url) as dev:
        await dev.said("http://127.0.0.1")
        said = [await typed(words, capsys) for words in rest[0]]
        assert "This is turn 1 of thread t1" in said[0] and "This is turn 2 of thread t1" in said[1]
        forked = [await typed(words, capsys) for words in rest[1]]
        assert "first" in forked[0] and "This is turn 2 of thread t2" in forked[2] and "t2" in forked[3]
        assert "completed You said “hello”." in await ran(program, folder)
        assert "You said “hello again”." in await ran(blocking, folder)
        await order(transaction, postgres_url)
        answered = [await typed(words, capsys) for words in rest[2]]
        assert "Refund 40 €?" in answered[1] and "Done." in answered[2]
    assert await ran(re.sub('"openai:[^"]*"', '"test"', alone), folder) == "success (no tool calls)\n"
    assert (folder / "runyard.db").is_file()


async def order(block: str, postgres_url: str) -> None:
    """The function of the page, in a database with a table of its orders."""
    names: dict[str, object] = {}
    exec(block, names)
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("CREATE TABLE orders (item text)")
        async with Client.connect(postgres_url) as client:
            await names["place_order"](connection, client, "a cup")  # type: ignore[operator]
            [run] = (await client.runs("t1", limit=1)).items
            assert run.input is not None and run.input.text == "Thank the customer for ordering a cup."
    finally:
        await connection.close()
