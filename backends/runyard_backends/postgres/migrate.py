"""Versions of the schema: tables in ``migrations``, stored functions in ``functions``.

A file of ``migrations`` is a version of the schema and is applied once. A version on which older code cannot run is called a
contraction. Its file has the header ``-- oldest code: N``. The number N is recorded with the version. A file of ``functions``
is applied again if its text has changed, or if one of its functions or triggers was edited by hand. The functions of a newer
release are never replaced.

Code can run on a schema under three conditions. The schema's version is at least OLDEST_SCHEMA, no applied contraction excludes
the code, and the schema has every function that the code calls. A migration before an upgrade therefore never stops processes
of the previous release.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version as installed_version
from importlib.resources import files
from typing import Final

import asyncpg

from runyard.errors import SchemaMismatch, SchemaRightsError, SchemaUninitialized

from .connecting import Connector, split_url
from .database import Connection, Database, statements
from .driver_errors import translated
from .rights import revoke_public_rights

CODE_VERSION: Final = 1
"""The version of this code. A contraction names the lowest code version that runs after it."""
OLDEST_SCHEMA: Final = 28
"""The first schema version with all tables and columns that this code uses. A later schema version raises this number only if
this code uses a table or a column of that version."""

FROZEN_MS: Final = "60000"
"""Milliseconds after which Postgres ends a migration whose client sends nothing."""

_HEADER = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)
_FUNCTION = re.compile(r"^CREATE OR REPLACE FUNCTION runyard\.(\w+)\(", re.MULTILINE)
_TRIGGER = re.compile(r"^CREATE OR REPLACE TRIGGER (\w+) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of ``migrations``, named ``<version>_<name>.sql``."""

    version: int
    name: str
    sql: str

    @property
    def oldest_code(self) -> int:
        """The lowest CODE_VERSION that runs on the schema after this migration."""
        match = _HEADER.search(self.sql)
        return int(match[1]) if match else 1


@dataclass(frozen=True, slots=True)
class FunctionFile:
    """One file of ``functions``, named ``<name>.sql``."""

    name: str
    sql: str

    @property
    def functions(self) -> list[str]:
        """The names of the functions that the file makes, without their schema's name."""
        return _FUNCTION.findall(self.sql)

    @property
    def objects(self) -> list[str]:
        """The names of the functions and triggers that the file makes."""
        return [*self.functions, *_TRIGGER.findall(self.sql)]

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal digits."""
        return sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Release:
    """The migrations and the functions of one release. ``number``: the version of the release, such as (0, 1, 0). A pre-release
    has the number of its release."""

    number: tuple[int, ...]
    migrations: tuple[Migration, ...]
    functions: tuple[FunctionFile, ...]

    @classmethod
    def installed(cls) -> Release:
        """Return the installed release."""
        number = re.match(r"\d+(\.\d+)*", installed_version("runyard"))
        assert number is not None
        return cls(
            tuple(map(int, number[0].split("."))),
            tuple(
                Migration(int(name[:4]), name[5:], text)
                for name, text in _texts("migrations").items()
                if re.fullmatch(r"\d{4}_\w+", name)
            ),
            tuple(FunctionFile(name, text) for name, text in _texts("functions").items()),
        )


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of :func:`migrate`, or the plan of :func:`plan`.

    ``before``, ``after``: the versions of the schema before and after the call. The version is 0 without a schema.
    ``migrations``: the names of the applied migrations. ``functions``: the number of functions that were made or replaced.
    ``newer_release``: the number of a newer release whose functions the database has, or None. The functions of that release
    are not replaced. ``files``: the names of the applied files of functions.
    """

    before: int
    after: int
    migrations: tuple[str, ...]
    functions: int
    newer_release: str | None
    files: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True if any file was applied."""
        return bool(self.migrations or self.files)


def _texts(folder: str) -> dict[str, str]:
    """Return the texts of the SQL files in a folder of this package. The keys are the names of the files without their suffix,
    in order."""
    found = (file for file in files("runyard_backends.postgres").joinpath(folder).iterdir() if file.name.endswith(".sql"))
    return {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name)}


@cache
def called_functions() -> frozenset[str]:
    """Return the names of the stored functions that this code calls, and the name ``accept``. Hosts call ``accept``."""
    return frozenset(re.findall(r"runyard\.(\w+)\(", "\n".join(statements().values()))) | {"accept"}


async def migrate(url: str, *, lock_timeout: float = 5.0, release: Release | None = None) -> Migrated:
    """Apply the migrations and the functions of ``release`` to the database at ``url``. ``release``: by default the installed
    release.

    Each version is one transaction, and all functions together are another. ``lock_timeout``: seconds to wait for a lock on a
    table. Concurrent calls wait for each other. Only the owner may call the functions. Other roles need a GRANT. Raises
    BackendUnavailableError.
    """
    sql = statements()
    release = release or Release.installed()
    before: int | None = None
    applied: list[Migration] = []
    async with _connected(url) as connection:
        for migration in release.migrations:
            async with _locked(connection, lock_timeout):
                current = await connection.fetchval(sql["schema_version"]) or 0
                before = current if before is None else before
                if current < migration.version:
                    await connection.execute(migration.sql)
                    await revoke_public_rights(connection)
                    await connection.execute(sql["schema_applied"], migration.version, migration.name, migration.oldest_code)
                    applied.append(migration)
        async with _locked(connection, lock_timeout):
            newer = await connection.fetchval(sql["functions_of_newer_release"], list(release.number))
            replaced = [] if newer else await _replace_functions(connection, release)
            after = await connection.fetchval(sql["schema_version"])
    return _told(before or 0, after, applied, replaced, newer)


async def plan(url: str, *, release: Release | None = None) -> Migrated:
    """Return what :func:`migrate` with the same arguments would do now. Change nothing. Raises SchemaMismatch if the schema
    excludes this code. Raises BackendUnavailableError."""
    sql = statements()
    release = release or Release.installed()
    async with _connected(url) as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        if not await connection.fetchval(sql["schema_exists"]):
            return _told(0, release.migrations[-1].version, release.migrations, release.functions, None)
        state = await connection.fetchrow(sql["schema_state"], [])
        assert state is not None  # the aggregate always returns a row
        before = state["version"] or 0
        _check_oldest_code(state)
        missing = [migration for migration in release.migrations if migration.version > before]
        newer = await connection.fetchval(sql["functions_of_newer_release"], list(release.number))
        changed = [] if newer else await _changed_files(connection, release)
    return _told(before, missing[-1].version if missing else before, missing, changed, newer)


def _told(
    before: int, after: int, applied: Sequence[Migration], files: Sequence[FunctionFile], newer: Sequence[int] | None
) -> Migrated:
    return Migrated(
        before,
        after,
        tuple(f"{each.version:04d}_{each.name}" for each in applied),
        sum(len(file.functions) for file in files),
        ".".join(map(str, newer)) if newer else None,
        tuple(file.name for file in files),
    )


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    """Connect without a cache of statements, because the URL can lead to PgBouncer in transaction mode."""
    with translated():
        connect = Connector(split_url(url)[0], "runyard-migrate", {"idle_in_transaction_session_timeout": FROZEN_MS})
        connection = await connect(statement_cache_size=0)
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def _locked(connection: Connection, lock_timeout: float) -> AsyncIterator[None]:
    """Open a transaction that excludes all other calls of :func:`migrate`. Make the tables that record the applied files."""
    sql = statements()
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")  # an index takes long, and the role may have a timeout
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute(sql["schema_lock"])  # no timeout for this lock, because another call may take long
        await connection.execute(f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}")
        for name in ("schema_start", "schema_table", "functions_table"):
            await connection.execute(sql[name])
        yield


async def _changed_files(connection: Connection, release: Release) -> list[FunctionFile]:
    """Return the files whose text has changed. Also return each file with a function or trigger that is missing or was edited
    by hand."""
    sql = statements()
    applied = await connection.fetch(sql["functions_applied"])
    stored = await connection.fetch(sql["functions_stored"])
    digests, edited = {row["file"]: row["digest"] for row in applied}, set(edited_objects(applied, stored))
    return [file for file in release.functions if file.digest != digests.get(file.name) or edited & set(file.objects)]


async def _replace_functions(connection: Connection, release: Release) -> list[FunctionFile]:
    """Apply the changed files and return them.

    The bodies are checked after all functions were made, because a function may call a function of a later file.
    """
    sql = statements()
    changed = await _changed_files(connection, release)
    if changed:
        await connection.execute("SET LOCAL check_function_bodies = off")
        for file in changed:
            await connection.execute(file.sql)
        await connection.execute("SET LOCAL check_function_bodies = on")
        await connection.execute(sql["functions_parsed"])
    stored = await connection.fetch(sql["functions_stored"])
    await revoke_public_rights(connection)  # even if no text changed: a restored dump may lack the revocation
    made = {row["name"]: row["digest"] for row in stored}
    await connection.execute(
        sql["functions_record"],
        [file.name for file in release.functions],
        [file.digest for file in release.functions],
        [json.dumps({name: made[name] for name in file.objects}) for file in release.functions],
        list(release.number),
    )
    return changed


def edited_objects(applied: Iterable[asyncpg.Record], stored: Iterable[asyncpg.Record]) -> list[str]:
    """Return the names of the functions and triggers that are missing or differ from the migrated text.

    ``applied``: the rows of ``functions_applied``. ``stored``: the rows of ``functions_stored``.
    """
    digests = {row["name"]: row["digest"] for row in stored}
    made = {name: digest for row in applied for name, digest in json.loads(row["made"]).items()}
    return sorted(name for name, digest in made.items() if digests.get(name) != digest)


def _check_oldest_code(state: asyncpg.Record) -> None:
    if (state["oldest_code"] or 0) > CODE_VERSION:
        raise SchemaMismatch(
            f"the schema needs code of version {state['oldest_code']} or later, got {CODE_VERSION}; upgrade runyard",
            oldest_code=state["oldest_code"],
            code=CODE_VERSION,
        )


async def check_schema(db: Database) -> None:
    """Check that this code can run on the schema. Raises SchemaUninitialized without a schema, and SchemaMismatch if the code
    cannot run on the schema. Raises SchemaRightsError if the role may not call the functions of the code."""
    if not await db.value("schema_exists"):
        raise SchemaUninitialized("the database has no runyard schema; run `runyard migrate`")
    state = await db.one("schema_state", sorted(called_functions()))
    if (state["version"] or 0) < OLDEST_SCHEMA:
        raise SchemaMismatch(
            f"the schema is at version {state['version']}, this code needs {OLDEST_SCHEMA}; run `runyard migrate`",
            schema=state["version"],
            needed=OLDEST_SCHEMA,
        )
    _check_oldest_code(state)
    if state["missing"]:
        raise SchemaMismatch(
            f"the schema lacks functions that this code calls: {', '.join(state['missing'])}; run `runyard migrate`; "
            "if a newer release has removed them, upgrade runyard",
            missing_functions=state["missing"],
        )
    if state["forbidden"]:
        role, quoted = state["role"], '"' + state["role"].replace('"', '""') + '"'
        raise SchemaRightsError(
            f"role {role!r} may not call functions that this code calls; as the owner of the schema, run "
            f"`GRANT EXECUTE ON FUNCTION {', '.join(state['forbidden'])} TO {quoted}`, or give the role all rights of workers "
            f"and clients with `runyard migrate --grant-to {shlex.quote(role)}`",
            role=role,
            functions=state["forbidden"],
        )
