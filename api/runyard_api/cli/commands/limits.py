"""The commands ``limits list``, ``set`` and ``clear``."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from runyard.errors import InvalidInputError
from runyard.models import LIMITS, Limit, LimitName

from .. import deployment, options
from ..view import output
from ..view.output import escape

app = typer.Typer(help="Manage the limits of the deployment.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help=f"Name of the limit: one of {', '.join(LIMITS)}.", show_default=False)]
Subject = Annotated[
    str | None,
    typer.Option("--for", help="Tenant or agent of the limit. Default: all tenants or agents without a limit of their own."),
]


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List the limits that are set."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            found = await client.limits()
        if as_json:
            output.print_json(found)
            return
        rows = ((limit.name, _subject(limit), str(limit.most)) for limit in found)
        output.table(("LIMIT", "FOR", "MOST"), rows, empty="no limits")

    deployment.wait(go())


@app.command("set")
def set_(
    context: typer.Context,
    name: Name,
    most: Annotated[int, typer.Argument(min=0, help="The limit, in runs, seconds or bytes.", show_default=False)],
    subject: Subject = None,
) -> None:
    """Set a limit. All processes apply it when they next accept or claim a run."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            limit = await client.set_limit(_known(name), most, subject=subject)
        of = f" for {_subject(limit)}" if _subject(limit) else ""
        output.console().print(f"{limit.name}{of} is {limit.most}")

    deployment.wait(go())


@app.command()
def clear(context: typer.Context, name: Name, subject: Subject = None) -> None:
    """Remove a limit."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            cleared = await client.clear_limit(_known(name), subject=subject)
        if cleared:
            output.console().print(f"cleared {_known(name)}")
        else:
            output.notes().print("[bright_black]the limit was not set[/]")

    deployment.wait(go())


def _subject(limit: Limit) -> str:
    """Return the tenant or the agent of a limit, or ``each`` if the limit applies to every tenant or agent. A limit of the
    deployment has no subject."""
    if limit.subject is not None:
        return escape(f'"{limit.subject}"')
    return "each" if limit.name.endswith(("_per_tenant", "_per_agent")) else ""


def _known(name: str) -> LimitName:
    found = name.replace("-", "_")
    if found not in LIMITS:
        raise InvalidInputError(f"limits are {', '.join(LIMITS)}; got {name!r}")
    return cast(LimitName, found)
