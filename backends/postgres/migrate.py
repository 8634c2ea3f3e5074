"""Schema versions. A version is a file of ``migrations``; the header ``-- oldest code: N`` of one that older code cannot run on
(a contraction) is recorded with it. Code starts on any schema from OLDEST_SCHEMA to the newest that admits it, so that
migrating first never kills the processes of the release before.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

import asyncpg

from runner.errors import SchemaMismatch, SchemaUninitialized

from .database import Database, statements, translated
from .urls import split_url

CODE_VERSION: Final = 1
"""What this code calls itself; a contraction names the first code version that does without what it takes away."""
OLDEST_SCHEMA: Final = 14
"""The first schema version that has all that this code uses. An expansion for later code does not raise it."""

_HEADER = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)


def migrations() -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every migration, in order."""
    return sorted(
        (int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files("backends.postgres").joinpath("migrations").iterdir()
        if (match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name))
    )


def _oldest_code(sql: str) -> int:
    match = _HEADER.search(sql)
    return int(match[1]) if match else 1


async def migrate(url: str, *, lock_timeout: float = 5.0) -> list[str]:
    """Bring the schema at ``url`` to this code's newest version; the names of what was applied.

    Each version is one transaction. ``lock_timeout`` (seconds) bounds the wait for a table in use. Concurrent calls wait for
    each other. Nobody but the owner may call the functions, unless it is granted. Raises BackendUnavailableError.
    """
    sql = statements()
    applied = []
    url, _ = split_url(url)
    with translated():
        connection = await asyncpg.connect(url, statement_cache_size=0)  # may be a transaction pooler
        try:
            for version, name, text in migrations():
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}")
                    await connection.execute(sql["schema_lock"])
                    await connection.execute(sql["schema_start"])
                    await connection.execute(sql["schema_table"])
                    if (await connection.fetchval(sql["schema_version"]) or 0) < version:
                        await connection.execute(text)
                        await connection.execute(sql["schema_closed"])
                        await connection.execute(sql["schema_applied"], version, name, _oldest_code(text))
                        applied.append(f"{version:04d}_{name}")
        finally:
            await connection.close()
    return applied


async def check_schema(db: Database) -> None:
    """Raise SchemaUninitialized or SchemaMismatch unless this code can run on the schema."""
    if not await db.value("schema_exists"):
        raise SchemaUninitialized("the database has no runyard schema; run `runyard migrate`")
    state = await db.one("schema_state")
    if (state["version"] or 0) < OLDEST_SCHEMA:
        raise SchemaMismatch(
            f"the schema is at version {state['version']}, this code needs {OLDEST_SCHEMA}; run `runyard migrate`",
            schema=state["version"],
            needed=OLDEST_SCHEMA,
        )
    if state["oldest_code"] > CODE_VERSION:
        raise SchemaMismatch(
            f"the schema admits code from version {state['oldest_code']}, this is {CODE_VERSION}; upgrade runyard",
            oldest_code=state["oldest_code"],
            code=CODE_VERSION,
        )
