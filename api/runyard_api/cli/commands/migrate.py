"""The command ``migrate``: bring the database's schema up to this version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runyard.errors import InvalidInputError

from .. import deployment
from ..view import output

if TYPE_CHECKING:
    from runyard_backends.postgres.migrate import Migrated
    from runyard_backends.sql.migrate import Migrated as MigratedTables


def migrate(
    context: typer.Context,
    grant_to: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="Role of the workers and API processes. It gets the rights that they need, and loses other grants.",
        ),
    ] = None,
) -> None:
    """Create or upgrade the schema. Safe to repeat, and safe while workers of the previous version run."""
    url = deployment.target(context).url or deployment.target(context).locate().url
    scheme = url.partition(":")[0]
    if grant_to is not None and scheme not in ("postgresql", "postgres"):
        raise InvalidInputError(f"only roles of Postgres get rights; got {scheme}://", field="grant_to")
    if scheme in ("postgresql", "postgres"):
        line = summary(run(url))
        if grant_to is not None:
            line = f"{line}; {grant(url, grant_to)}"
    elif scheme in ("sqlite", "mysql", "mariadb"):
        line = summary_of_tables(run_tables(url))
    else:
        raise InvalidInputError(f"only a database has a schema to migrate; got {scheme}://", field="url")
    output.console().print(f"[green]●[/] {line}")


def run(url: str) -> Migrated:
    """Migrate the database at ``url``."""
    from runyard_backends.postgres.migrate import migrate as apply

    return deployment.wait(apply(url))


def grant(url: str, role: str) -> str:
    """Give ``role`` its rights in the schema at ``url``. Return a phrase about it."""
    from runyard_backends.postgres.rights import grant as apply

    deployment.wait(apply(url, role))
    return f"{role} has the rights of workers and API processes"


def run_tables(url: str) -> MigratedTables:
    """Migrate the SQLite, MySQL or MariaDB database at ``url``. Raises ExtraMissingError if its driver is not installed."""
    from runyard.support import optional_imports

    module = "sqlite" if url.startswith("sqlite:") else "mysql"
    done: MigratedTables = deployment.wait(optional_imports.load(f"runyard_backends.sql.{module}").migrate(url))
    return done


def summary_of_tables(done: MigratedTables) -> str:
    """Return one line about the changes of a migration that has no functions."""
    if not done.migrations:
        return f"the schema is up to date, at version {done.after}"
    return f"the schema went from version {done.before} to {done.after}"


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
