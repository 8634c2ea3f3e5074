"""One database, and one pool of connections to it, for the tests of a module. Each test begins with empty tables.

A new database and new sessions take most of the time of a short test on Postgres.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import asyncpg

from runyard_backends.postgres.backend import PostgresBackend
from runyard_backends.postgres.database import Database

TABLES = """
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'runyard'
"""
NOT_EMPTY = """
DO $$
DECLARE
    name text;
    has_rows bool;
BEGIN
    SET LOCAL session_replication_role = replica; -- in any order
    SET LOCAL lock_timeout = '20s';
    FOREACH name IN ARRAY {names} LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO has_rows;
        IF has_rows THEN
            EXECUTE format('DELETE FROM %s', name);
        END IF;
    END LOOP;
END $$
"""


class SharedDatabase:
    """``url``: the URL of the database for the role of workers and API processes."""

    def __init__(self, url: str, owner: asyncpg.Connection, opened: Database, empty: str) -> None:
        self.url, self._owner, self._opened, self._empty = url, owner, opened, empty

    @classmethod
    @asynccontextmanager
    async def open(cls, owner_url: str, url: str, connections: int) -> AsyncIterator[Self]:
        """Share the database at ``url``. ``owner_url``: its URL for the owner of the tables. The tables that have rows now
        keep them. ``connections``: maximum number of connections."""
        owner = await asyncpg.connect(owner_url)
        opened = await Database.connect(url, min_pool_size=1, max_pool_size=connections)
        try:
            names = [name for (name,) in await owner.fetch(TABLES)]
            filled = [name for name in names if await owner.fetchval(f"SELECT EXISTS (SELECT FROM {name})")]
            emptied = ", ".join(f"'{name}'" for name in names if name not in filled)
            yield cls(url, owner, opened, NOT_EMPTY.format(names=f"ARRAY[{emptied}]"))
        finally:
            await opened.close()
            await owner.close()

    async def empty(self) -> None:
        """Remove what the last test stored. Raises LockNotAvailableError if one of its transactions is still open."""
        await self._owner.execute(self._empty)

    def backend(self, tenant: str, **settings: Any) -> PostgresBackend:
        """Return a backend that knows nothing of other backends. ``settings``: arguments of Database."""
        pool, connector = self._opened.pool, self._opened._connector
        database = _Borrowing(pool, connector, command_timeout=self._opened._command_timeout, **settings)
        return PostgresBackend(database, None, tenant, self.url)


class _Borrowing(Database):
    """A database that leaves the pool open."""

    async def close(self) -> None:
        return None
