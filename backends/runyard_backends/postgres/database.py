"""The connection pool, the named statements, and the translation of the driver's errors into runyard's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from runyard.errors import (
    BackendUnavailableError,
    InvalidInputError,
    RunyardError,
    SchemaMismatch,
    SchemaUninitialized,
    from_dict,
)
from runyard.ports.results import PAGE_BYTES
from runyard.support.store_retries import jittered

T = TypeVar("T")

_DEADLOCK_PAUSE_SECONDS: Final = 0.05
"""Seconds to wait before a statement is repeated that Postgres undid because of a deadlock. Waiting statements get its locks
first."""

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

REFUSED = "RY000"
"""SQLSTATE of a refusal by a stored function. Its HINT is the error code, and its DETAIL has the details as JSON."""


@cache
def statements() -> dict[str, str]:
    """Load the statements of ``queries.sql`` by name, without their comments."""
    text = files("runyard_backends.postgres").joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n", "", part.strip(), flags=re.MULTILINE)
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def refusal(code: str | None, message: str, details: dict[str, Any]) -> RunyardError:
    """Return the error for a refusal by a stored function."""
    if "existing" in details and "request" in details:
        old, new = json.loads(details.pop("existing")), json.loads(details.pop("request"))
        details["differs"] = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return from_dict({"code": code, "message": message, "details": details})


def translate(error: BaseException) -> RunyardError | None:
    """Return runyard's error for an error of the driver. Return None for a defect, whose error should be raised unchanged."""
    match error:
        case asyncpg.PostgresError() if error.sqlstate == REFUSED:
            return refusal(error.hint, error.args[0], json.loads(error.detail or "{}"))
        case asyncpg.InvalidSchemaNameError() | asyncpg.UndefinedTableError() | asyncpg.UndefinedObjectError():
            return SchemaUninitialized("the database has no runyard schema; run `runyard migrate`")
        case asyncpg.UndefinedFunctionError() | asyncpg.UndefinedColumnError():
            return SchemaMismatch("the database schema is older than this code; run `runyard migrate`")
        case asyncpg.UniqueViolationError() if error.constraint_name == "hitl_responses":
            return InvalidInputError("this response_id was used for another request of the thread; use a fresh one")
        case asyncpg.UntranslatableCharacterError() | asyncpg.CharacterNotInRepertoireError():
            return InvalidInputError("text must not contain NUL characters or lone surrogates")
        case asyncpg.ProgramLimitExceededError():
            return InvalidInputError("a value is too long for its index; use a shorter id or key")
        case asyncpg.DataError():
            return InvalidInputError(f"a value cannot be stored: {error}")
        case (
            asyncpg.PostgresConnectionError()
            | asyncpg.InterfaceError()
            | asyncpg.InternalClientError()  # a connection that was cut during a statement
            | asyncpg.AdminShutdownError()
            | asyncpg.CannotConnectNowError()
            | asyncpg.CrashShutdownError()
            | asyncpg.InsufficientResourcesError()
            | asyncpg.ReadOnlySQLTransactionError()  # a failover: this server is no longer the primary
            | asyncpg.TransactionRollbackError()
            | asyncpg.IdleSessionTimeoutError()
            | OSError()
            | TimeoutError()
        ):
            return BackendUnavailableError(f"Postgres cannot be reached: {error}")
        case _:
            return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise runyard's errors instead of the driver's inside the block."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError) as error:
        mapped = translate(error)
        if mapped is None:
            raise
        raise mapped from error


async def _undone_again(send: Callable[[], Awaitable[T]]) -> T:
    """Send a statement that is a transaction of its own. Repeat it, at most twice, if Postgres undid it because of a
    deadlock."""
    for _ in range(2):
        with contextlib.suppress(asyncpg.TransactionRollbackError):
            return await send()
        await asyncio.sleep(jittered(_DEADLOCK_PAUSE_SECONDS))
    return await send()


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
        min_pool_size: int = 1,
        max_pool_size: int = 10,
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
            return await _undone_again(lambda: self.pool.fetch(statements()[name], *args))

    async def row(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record | None:
        """Return the first row of a statement, executed on ``connection`` if one is given."""
        with translated():
            if connection is not None:
                return await connection.fetchrow(statements()[name], *args)
            return await _undone_again(lambda: self.pool.fetchrow(statements()[name], *args))

    async def one(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record:
        """Return the only row of a statement that always returns one row."""
        row = await self.row(name, *args, connection=connection)
        assert row is not None, name
        return row

    async def value(self, name: str, *args: Any) -> Any:
        """Return the first column of the first row."""
        with translated():
            return await _undone_again(lambda: self.pool.fetchval(statements()[name], *args))

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
