"""The command ``migrate``: upgrade the database's schema to this version, or list the changes without applying them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from runyard.errors import InvalidInputError, SchemaMismatch

from .. import deployment
from ..view import output
from ..view.output import escape

if TYPE_CHECKING:
    from runyard_backends.postgres.migrate import Migrated
    from runyard_backends.sql.migrate import Migrated as MigratedTables

POSTGRES: Final = ("postgresql", "postgres")
TABLES: Final = ("sqlite", "mysql", "mariadb")
"""The URL schemes of databases whose schema consists of tables only."""


def migrate(
    context: typer.Context,
    grant_to: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="Role of the workers and API processes. The role gets the rights that it needs, and loses all others.",
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="List the changes without applying them.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Like --plan, but exit with 5 if the schema lacks a part that this version needs.")
    ] = False,
) -> None:
    """Create or upgrade the schema, and list the applied files. The command can be repeated. Workers of the previous version
    may run at the same time."""
    url = deployment.target(context).url or deployment.target(context).locate().url
    scheme = url.partition(":")[0]
    if scheme not in (*POSTGRES, *TABLES):
        raise InvalidInputError(f"only a database has a schema to migrate; got {scheme}://", field="url")
    if grant_to is not None and scheme not in POSTGRES:
        raise InvalidInputError(f"--grant-to needs a database on Postgres; got {scheme}://", field="grant_to")
    if plan or check:
        if grant_to is not None:
            raise InvalidInputError("--plan and --check change nothing; leave out --grant-to", field="grant_to")
        _show_plan(url, check=check)
        return
    if scheme in POSTGRES:
        done = run(url)
        _show(summary(done), done)
        if grant_to is not None:
            output.console().print(f"[green]●[/] {escape(grant(url, grant_to))}")
    else:
        tables = deployment.wait(_module(url).migrate(url))
        _show(summary_of_tables(tables), tables)


def run(url: str) -> Migrated:
    """Migrate the Postgres database at ``url``."""
    from runyard_backends.postgres.migrate import migrate as apply

    return deployment.wait(apply(url))


def grant(url: str, role: str) -> str:
    """Give ``role`` its rights in the schema at ``url``. Return a phrase for the output."""
    from runyard_backends.postgres.rights import grant as apply

    deployment.wait(apply(url, role))
    return f"{role} has the rights of workers and API processes"


def summary_of_tables(done: MigratedTables) -> str:
    """Return one line about the changes of a migration, for a database without stored functions."""
    if not done.migrations:
        return f"the schema is up to date, at version {done.after}"
    return f"the schema went from version {done.before} to {done.after}"


def summary(done: Migrated) -> str:
    """Return one line about the changes of a migration."""
    functions = f"{_functions(done)} made or replaced"
    if done.newer_release is not None:
        functions = f"the functions are those of release {done.newer_release}, which is newer, and were not changed"
    elif not done.changed:
        return f"the schema is up to date, at version {done.after}"
    if not done.migrations:
        return f"the schema is at version {done.after}, as before; {functions}"
    return f"the schema went from version {done.before} to {done.after}; {functions}"


def _module(url: str) -> ModuleType:
    """Return the module that migrates a SQLite, MySQL or MariaDB database. Raises ExtraMissingError if the driver is not
    installed."""
    from runyard.support import optional_imports

    return optional_imports.load(f"runyard_backends.sql.{'sqlite' if url.startswith('sqlite:') else 'mysql'}")


def _show_plan(url: str, *, check: bool) -> None:
    """Print the files that :func:`migrate` would apply. With ``check``, raise SchemaMismatch if :func:`migrate` would apply a
    file."""
    if url.partition(":")[0] in POSTGRES:
        from runyard_backends.postgres.migrate import plan

        found: Migrated | MigratedTables = deployment.wait(plan(url))
    else:
        found = deployment.wait(_module(url).plan(url))
    if not list(_applied(found)):
        output.console().print(f"[green]●[/] the schema is up to date, at version {found.after}")
        return
    output.console().print(f"[yellow]●[/] the schema is at version {found.before}, and this code has {found.after}; it lacks")
    for line in _applied(found):
        output.console().print(f"  {line}")
    if check:
        raise SchemaMismatch("the schema is out of date; run `runyard migrate`", schema=found.before, newest=found.after)


def _show(line: str, done: Migrated | MigratedTables) -> None:
    output.console().print(f"[green]●[/] {escape(line)}")
    for applied in _applied(done):
        output.console().print(f"  {applied}")


def _applied(done: Migrated | MigratedTables) -> Iterator[str]:
    """Yield a line for each migration, and a line for the functions of each file."""
    yield from done.migrations
    for name in getattr(done, "files", ()):
        yield f"functions/{name}.sql"


def _functions(done: Migrated) -> str:
    return f"{done.functions} function{'' if done.functions == 1 else 's'}"
