"""The connection pool, and the named statements."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from runyard.errors import InvalidInputError
from runyard.ports.results import PAGE_BYTES
from runyard.ports.stores import DEFAULT_MAX_POOL_CONNECTIONS, DEFAULT_MIN_POOL_CONNECTIONS

from .driver_errors import translated, undone_again

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy


@cache
def statements() -> dict[str, str]:
    """Load the statements of ``queries.sql`` by name, without their comments."""
    text = files("runyard_backends.postgres").joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n", "", part.strip(), flags=re.MULTILINE)
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
    }


class _PlainConnection(asyncpg.Connection):
    """A connection that is not reset when it returns to the pool, which saves a round trip. No statement changes the
    session."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool of connections that sends the named statements.

    ``page_bytes``: maximal bytes of a page of a list; a larger entry is a page of its own. The attribute ``decoding`` is the
    lock to hold while decoding a page of a run's events, so that other tasks get their turn between the pages of many readers.
    """

    def __init__(self, pool: asyncpg.Pool, page_bytes: int = PAGE_BYTES) -> None:
        self.pool, self.page_bytes, self.decoding = pool, page_bytes, asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
        max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
        command_timeout: float = 30.0,
        name: str = "runyard",
        page_bytes: int = PAGE_BYTES,
        **settings: Any,
    ) -> Database:
        """Open the pool. ``command_timeout``: seconds after which a call without a reply raises BackendUnavailableError.
        ``name``: the name under which Postgres lists the connections. ``settings``: arguments of asyncpg's pool. Behind
        PgBouncer in transaction mode, ``statement_cache_size=0`` is required, as an argument or in the URL."""
        url, in_url = split_url(url)
        with translated():
            return cls(
                await asyncpg.create_pool(
                    url,
                    min_size=min_pool_size,
                    max_size=max_pool_size,
                    command_timeout=command_timeout,
                    max_cached_statement_lifetime=0,  # a timer of the cache would keep the contextvars of its first run
                    connection_class=_PlainConnection,
                    server_settings={"application_name": name},
                    **in_url | settings,
                ),
                page_bytes,
            )

    async def close(self) -> None:
        """Close the pool. After 5 seconds, close connections that are still in use too."""
        try:
            async with asyncio.timeout(5):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()

    async def rows(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Return all rows of a statement."""
        with translated():
            return await undone_again(lambda: self.pool.fetch(statements()[name], *args))

    async def row(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record | None:
        """Return the first row of a statement, executed on ``connection`` if one is given."""
        with translated():
            if connection is not None:
                return await connection.fetchrow(statements()[name], *args)
            return await undone_again(lambda: self.pool.fetchrow(statements()[name], *args))

    async def one(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record:
        """Return the only row of a statement that always returns one row."""
        row = await self.row(name, *args, connection=connection)
        assert row is not None, name
        return row

    async def value(self, name: str, *args: Any) -> Any:
        """Return the first column of the first row."""
        with translated():
            return await undone_again(lambda: self.pool.fetchval(statements()[name], *args))

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Database]:
        """Return a database whose reads, inside the block, all see one state."""
        with translated():
            async with self.pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
                yield _Bound(self.pool, connection)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Database]:
        """Return a database whose calls, inside the block, are one transaction."""
        with translated():
            async with self.pool.acquire() as connection, connection.transaction():
                yield _Bound(self.pool, connection)


class _Bound(Database):
    def __init__(self, pool: asyncpg.Pool, connection: Connection) -> None:
        super().__init__(pool)
        self._connection = connection

    async def rows(self, name: str, *args: Any) -> list[asyncpg.Record]:
        return await self._connection.fetch(statements()[name], *args)

    async def row(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record | None:
        return await self._connection.fetchrow(statements()[name], *args)

    async def value(self, name: str, *args: Any) -> Any:
        return await self._connection.fetchval(statements()[name], *args)


CACHE_SIZE: Final = "statement_cache_size"


def split_url(url: str) -> tuple[str, dict[str, Any]]:
    """Remove ``statement_cache_size`` from ``url``. Return the URL, and the setting as an argument of asyncpg's pool.

    asyncpg would send the setting to the server. The URL has it because processes behind PgBouncer read their URL, and no other
    setting of the pool, from the environment. Raises InvalidInputError if the setting is not a number.
    """
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    sizes = [value for name, value in query if name == CACHE_SIZE]
    if not sizes:
        return url, {}
    if not sizes[-1].isdecimal():
        raise InvalidInputError(f"{CACHE_SIZE} in the URL must be a number, got {sizes[-1]!r}", field="url")
    rest = urlencode([(name, value) for name, value in query if name != CACHE_SIZE])
    return urlunsplit(parts._replace(query=rest)), {CACHE_SIZE: int(sizes[-1])}
