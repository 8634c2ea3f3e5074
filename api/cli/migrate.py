"""migrate: bring the database's schema up to this version."""

from __future__ import annotations

import typer

from runner.errors import InvalidInputError

from . import output, session


def migrate(context: typer.Context) -> None:
    """Create or upgrade the schema. Safe to repeat, and safe while workers of the version before still run."""
    url = session.target(context).url or session.target(context).resolve()[0]
    if not url.startswith(("postgresql:", "postgres:")):
        raise InvalidInputError(f"only a Postgres database has a schema to migrate; got {url.partition(':')[0]}://")
    run(url)
    output.console().print("[green]●[/] the schema is up to date")


def run(url: str) -> None:
    """Migrate the database at ``url``."""
    from backends.postgres.migrate import migrate as apply

    session.wait(apply(url))
