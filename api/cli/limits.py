"""limits list | set | clear: how much may wait and run at once."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from runner.errors import InvalidInputError
from runner.models import LIMITS, LimitName

from . import options, output, session
from .output import escape

app = typer.Typer(help="Limits of the whole deployment.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help=f"One of {', '.join(LIMITS)}.", show_default=False)]
Subject = Annotated[
    str | None, typer.Option("--for", envvar="RUNYARD_LIMIT_FOR", help="For one tenant or agent; default: for each.")
]


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List the limits that are set."""

    async def go() -> None:
        async with session.connect(context) as client:
            found = await client.limits()
        if as_json:
            output.print_json(found)
            return
        rows = (
            (limit.name, "each" if limit.subject is None else escape(f'"{limit.subject}"'), str(limit.most)) for limit in found
        )
        output.table(("LIMIT", "FOR", "MOST"), rows, empty="no limits")

    session.wait(go())


@app.command("set")
def set_(
    context: typer.Context,
    name: Name,
    most: Annotated[int, typer.Argument(min=0, help="Runs, or bytes.", show_default=False)],
    subject: Subject = None,
) -> None:
    """Set a limit. It holds from the next accept and the next claim on, in every process."""

    async def go() -> None:
        async with session.connect(context) as client:
            await client.set_limit(_known(name), most, subject=subject)

    session.wait(go())


@app.command()
def clear(context: typer.Context, name: Name, subject: Subject = None) -> None:
    """Take a limit away."""

    async def go() -> None:
        async with session.connect(context) as client:
            if not await client.clear_limit(_known(name), subject=subject):
                output.notes().print("[bright_black]it was not set[/]")

    session.wait(go())


def _known(name: str) -> LimitName:
    found = name.replace("-", "_")
    if found not in LIMITS:
        raise InvalidInputError(f"limits are {', '.join(LIMITS)}; got {name!r}")
    return cast(LimitName, found)
