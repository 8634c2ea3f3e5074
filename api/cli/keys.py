"""keys create | list | revoke: who may ask the HTTP API."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from runner.errors import InvalidInputError
from runner.keys import SCOPES, ApiKey, Scope

from . import exits, options, output, session
from .output import escape

app = typer.Typer(help="Keys of the HTTP API, for the tenant of --tenant.", no_args_is_help=True)

DAY = 86400.0


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is for; for people.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(envvar="RUNYARD_KEY_SCOPE", help=f"{', '.join(SCOPES)}; repeat it. Default: all but admin."),
    ] = None,
    days: Annotated[float | None, typer.Option(envvar="RUNYARD_KEY_DAYS", min=0, help="Until it expires.")] = None,
    as_json: options.Json = False,
) -> None:
    """Make a key and print it. It is shown this once: only a digest of it is kept."""

    async def go() -> None:
        async with session.connect(context) as client:
            wanted = _known(scope or ["read", "write", "respond"])
            key, text = await client.create_key(name, scopes=wanted, lifetime=days * DAY if days is not None else None)
        if as_json:
            output.print_json({**key.model_dump(mode="json"), "key": text})
        else:
            output.print_line(text)

    session.wait(go())


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List the tenant's keys."""

    async def go() -> None:
        async with session.connect(context) as client:
            found = await client.keys()
        if as_json:
            output.print_json(found)
            return
        rows = ((key.key_id, ", ".join(key.scopes), output.clock(key.created_at), _end(key), escape(key.name)) for key in found)
        output.table(("KEY", "SCOPES", "MADE", "END", "NAME"), rows, empty="no keys")

    session.wait(go())


@app.command()
def revoke(
    context: typer.Context, key_id: Annotated[str, typer.Argument(metavar="KEY", help="Its id.", show_default=False)]
) -> None:
    """Let no request with a key pass any more; servers notice within seconds."""

    async def go() -> None:
        async with session.connect(context) as client:
            if not await client.revoke_key(key_id):
                raise exits.MissingError(f"no key with the id {key_id} can be revoked, see `runyard keys list`")

    session.wait(go())


def _known(given: list[str]) -> list[Scope]:
    if unknown := [name for name in given if name not in SCOPES]:
        raise InvalidInputError(f"scopes are {', '.join(SCOPES)}; got {unknown[0]!r}")
    return [cast(Scope, name) for name in given]


def _end(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"[red]revoked {output.clock(key.revoked_at)}[/]"
    return f"expires {output.clock(key.expires_at)}" if key.expires_at else "never"
