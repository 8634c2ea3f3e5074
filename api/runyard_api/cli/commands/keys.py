"""The commands ``keys create``, ``list`` and ``revoke``: API keys of the HTTP API."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from runyard.domain.api_keys import SCOPES, ApiKey, Scope
from runyard.errors import InvalidInputError

from ... import quantities
from .. import deployment, exit_codes, options
from ..view import output
from ..view.output import escape

app = typer.Typer(help="Manage API keys of the HTTP API, for the tenant of --tenant.", no_args_is_help=True)

DAY_SECONDS = 86400.0


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the key, for people.", show_default=False)],
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"Scope: {', '.join(SCOPES)}; may be repeated. Default: read, write, respond."),
    ] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Days until the key expires. Default: never.")] = None,
    as_json: options.Json = False,
) -> None:
    """Create an API key and print it. The key cannot be shown later, because the database has only a digest of it."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            wanted = _known(scope or ["read", "write", "respond"])
            key, text = await client.create_key(name, scopes=wanted, lifetime=days * DAY_SECONDS if days is not None else None)
        if as_json:
            output.print_json({**key.model_dump(mode="json"), "key": text})
        else:
            output.print_line(text)

    deployment.wait(go())


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List the API keys of the tenant."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            found = await client.keys()
        if as_json:
            output.print_json(found)
            return
        rows = (
            (key.key_id, ", ".join(key.scopes), quantities.clock(key.created_at), _end(key), escape(key.name)) for key in found
        )
        output.table(("KEY", "SCOPES", "CREATED", "EXPIRES", "NAME"), rows, empty="no keys")

    deployment.wait(go())


@app.command()
def revoke(
    context: typer.Context, key_id: Annotated[str, typer.Argument(metavar="KEY", help="Id of the key.", show_default=False)]
) -> None:
    """Revoke an API key. Every API process refuses the key within seconds."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            if not await client.revoke_key(key_id):
                raise exit_codes.MissingError(
                    f"the key {key_id} does not exist or is not valid any more; `runyard keys list` shows the valid keys"
                )
        output.print_line(f"revoked {key_id}")

    deployment.wait(go())


def _known(given: list[str]) -> list[Scope]:
    if unknown := [name for name in given if name not in SCOPES]:
        raise InvalidInputError(f"scopes are {', '.join(SCOPES)}; got {unknown[0]!r}")
    return [cast(Scope, name) for name in given]


def _end(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return f"[red]revoked {quantities.clock(key.revoked_at)}[/]"
    return quantities.clock(key.expires_at) if key.expires_at else "never"
