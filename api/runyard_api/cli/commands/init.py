"""The command ``init``: create a starter project with one agent."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from runyard.errors import InvalidInputError

from ..view import output
from ..view.output import escape

STARTER: Final = {
    "app.py": "app.py.txt",
    "README.md": "README.md.txt",
    "requirements.txt": "requirements.txt",
    "Dockerfile": "Dockerfile.txt",
    ".dockerignore": "dockerignore.txt",
    ".env.example": "env.example.txt",
    ".gitignore": "gitignore.txt",
}
"""For each file of the project: the file in this package that has its text. The names differ, because build tools would apply a
`.gitignore` in the package to the package itself."""


def init(
    directory: Annotated[
        Path,
        typer.Argument(
            help="Folder of the project. It is created if it does not exist. No file is overwritten.", show_default=False
        ),
    ],
) -> None:
    """Create a starter project: an agent, a README, and a Dockerfile for its image."""
    if directory.exists() and not directory.is_dir():
        raise InvalidInputError(f"{directory} is a file; name a folder", path=str(directory))
    if taken := [name for name in STARTER if (directory / name).exists()]:
        raise InvalidInputError(f"{directory} has {', '.join(taken)} already; choose another folder or remove them")
    directory.mkdir(parents=True, exist_ok=True)
    for name, source in STARTER.items():
        text = (files("runyard_api.cli") / "starter" / source).read_text(encoding="utf-8")
        text = text.replace("{project}", directory.resolve().name).replace("{version}", version("runyard"))
        (directory / name).write_text(text, encoding="utf-8")
    output.console().print(
        f"[green]●[/] {escape(str(directory))} has an agent in [bold]app.py[/]\n\n"
        f"  cd {escape(str(directory))}\n  runyard dev app:app --reload\n\n"
        f'and in a second terminal, in the same folder\n\n  runyard prompt t1 "hello" --wait'
    )
