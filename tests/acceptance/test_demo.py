"""The demo is its own test: it checks what it shows, and its exit code tells."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_holds(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")}
    picture = tmp_path / "demo.svg"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "api.cli", "demo", "--picture", str(picture)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗ " not in done.stdout.replace("✗ worker", "")
    for shown in ("Three prompts at once", "A fork", "An approval", "A probe", "A crash", "The family", "Figures"):
        assert shown in done.stdout
    assert picture.read_text(encoding="utf-8").startswith("<svg")
