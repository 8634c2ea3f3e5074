"""The command ``migrate``: bring the database's schema up to this version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from runyard.errors import InvalidInputError

from .. import deployment
from ..view import output

if TYPE_CHECKING:
    from runyard_backends.postgres.migrate import Migrated


def migrate(context: typer.Context) -> None:
    """Create or upgrade the schema. Safe to repeat, and safe while workers of the previous version run."""
    url = deployment.target(context).url or deployment.target(context).resolve()[0]
    if not url.startswith(("postgresql:", "postgres:")):
        raise InvalidInputError(f"only a Postgres database has a schema to migrate; got {url.partition(':')[0]}://")
    output.console().print(f"[green]●[/] {summary(run(url))}")


def run(url: str) -> Migrated:
    """Migrate the database at ``url``."""
    from runyard_backends.postgres.migrate import migrate as apply

    return deployment.wait(apply(url))


def summary(done: Migrated) -> str:
    """Return one line about the changes of a migration."""
    functions = f"{done.functions} function{'' if done.functions == 1 else 's'} made or replaced"
    if done.newer_release is not None:
        functions = f"the functions are those of release {done.newer_release}, which is newer, and stay as they are"
    elif not done.migrations and not done.functions:
        return f"the schema is up to date, at version {done.after}"
    if not done.migrations:
        return f"the schema is at version {done.after}, as before; {functions}"
    return f"the schema went from version {done.before} to {done.after}; {functions}"
