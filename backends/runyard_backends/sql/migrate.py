"""Versions of the schema. Each version is a file ``<database>_<version>_<name>.sql`` of ``migrations``.

A SQLite file gets its schema when it is opened, because usually one program uses the file. A MySQL or MariaDB database gets its
schema from ``runyard migrate``, because programs of different releases may use the database. Code can run on a schema under two
conditions: the schema's version is at least OLDEST_SCHEMA, and no applied version excludes the code. A version that excludes
older code has the header ``-- oldest code: N``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from runyard.errors import SchemaMismatch

from .database import Transaction

CODE_VERSION: Final = 1
"""The version of this code. A schema can demand a minimum version (``-- oldest code: N``)."""
OLDEST_SCHEMA: Final = 1
"""The first schema version with all tables and columns that this code uses."""

_NAME: Final = re.compile(r"(?P<database>[a-z]+)_(?P<version>\d{4})_(?P<name>\w+)\.sql")
_HEADER: Final = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of ``migrations``. ``oldest_code``: the lowest CODE_VERSION that runs on the schema after this migration."""

    version: int
    name: str
    sql: str

    @property
    def oldest_code(self) -> int:
        match = _HEADER.search(self.sql)
        return int(match[1]) if match else 1

    def statements(self) -> list[str]:
        """Return the statements of the file, without comments."""
        text = re.sub(r"^--.*\n", "", self.sql, flags=re.MULTILINE)
        return [statement.strip() for statement in text.split(";\n") if statement.strip()]


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of a migration, or the plan of a migration. ``before``, ``after``: the versions of the schema, 0 without a
    schema. ``migrations``: the names of the applied files."""

    before: int
    after: int
    migrations: tuple[str, ...]


def migrations(database: str) -> list[Migration]:
    """Return the migrations of ``sqlite`` or ``mysql`` in the order of their versions."""
    found = []
    for file in files("runyard_backends.sql").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(file.name)
        if match and match["database"] == database:
            found.append(Migration(int(match["version"]), match["name"], file.read_text("utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def pending(all_of_them: Iterable[Migration], version: int) -> list[Migration]:
    """Return the migrations that a schema of ``version`` lacks."""
    return [migration for migration in all_of_them if migration.version > version]


def migrated(before: int, applied: Sequence[Migration]) -> Migrated:
    """Return the result of a migration that applies ``applied`` to a schema of the version ``before``."""
    after = applied[-1].version if applied else before
    return Migrated(before, after, tuple(f"{each.version:04d}_{each.name}" for each in applied))


def check_state(state: Mapping[str, int]) -> None:
    """Raise SchemaMismatch if this code cannot run on a schema. ``state``: the row of ``schema_state``."""
    if state["version"] < OLDEST_SCHEMA:
        raise SchemaMismatch(
            f"the schema has version {state['version']}, but this code needs {OLDEST_SCHEMA}; run `runyard migrate`",
            schema=state["version"],
            needed=OLDEST_SCHEMA,
        )
    check_oldest_code(state)


def check_oldest_code(state: Mapping[str, int]) -> None:
    """Raise SchemaMismatch if the schema does not allow this version of runyard. ``state``: the row of ``schema_state``."""
    if state["oldest_code"] > CODE_VERSION:
        raise SchemaMismatch(
            f"the schema needs code of version {state['oldest_code']} or later, got {CODE_VERSION}; upgrade runyard",
            oldest_code=state["oldest_code"],
            code=CODE_VERSION,
        )


async def schema_state(tx: Transaction) -> Mapping[str, int]:
    """Return the ``version`` of the schema, and the lowest code version that runs on it (``oldest_code``). Raises
    SchemaMismatch if another program made the table."""
    state = await tx.row("schema_state")
    if state is None or not all(isinstance(number, int) for number in state.values()):
        raise SchemaMismatch("another program made the table runyard_schema; use a database of its own for runyard")
    return state


async def check_schema(tx: Transaction) -> None:
    """Raise SchemaMismatch if this code cannot run on the schema."""
    check_state(await schema_state(tx))
