"""The first program of the README, by the command that stands below it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.examples.programs import ROOT, started


async def test_the_first_program_prints_what_its_comments_say(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """R1, R2, F1: once more in the same deployment, it finds the same runs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    [command] = re.findall(r"^runyard dev .*$", text, re.MULTILINE)
    (tmp_path / "app.py").write_text(first, encoding="utf-8")
    expected = re.findall(r"print\(\(await run\.result\(\)\)\.text\)  # (.*)", first)
    assert len(expected) == 2
    for _ in range(2):
        async with started(shlex.split(command), tmp_path, postgres_url, redis_url) as program:
            said = (await program.ended()).splitlines()
        assert [line for line in said if line.startswith("This is turn")] == expected
        assert "run.completed" in said
