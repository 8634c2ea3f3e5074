"""The command ``import cubepi``."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import deployment, options
from ..view import import_report

app = typer.Typer(help="Import threads of other programs.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Import threads of other programs."""


@app.command()
def cubepi(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="URL", help="Database of cubepi or cubeloop: sqlite:///file.db or postgresql://…")
    ],
    thread: Annotated[list[str] | None, typer.Option(help="Import this thread and its ancestors; may be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only read the database and print the report.")] = False,
    as_json: options.Json = False,
) -> int:
    """Import the threads of a database of cubepi or cubeloop. You can repeat the command, also after an interruption."""
    from runyard_backends.cubepi import ALWAYS, Report, import_threads

    async def go() -> Report:
        async with deployment.connect(context) as client:
            return await import_threads(source, client.backend, threads=thread or (), dry_run=dry_run)

    report = deployment.wait(go())
    return import_report.show(report, f"schema {report.version}", ALWAYS, as_json=as_json)
