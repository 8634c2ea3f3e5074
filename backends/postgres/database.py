"""One pool, the named statements, and the one place where driver errors become runyard's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeVar

import asyncpg

from runner.errors import (
    BackendUnavailableError,
    InvalidInputError,
    RunyardError,
    SchemaMismatch,
    SchemaUninitialized,
    from_dict,
)
from runner.exchange import PAGE_BYTES
from runner.patience import jittered

from .urls import split_url

T = TypeVar("T")

_AFTER_YOU: Final = 0.05
"""Seconds for whoever waited for the locks of a statement that was undone: sent again at once, it may take them first."""

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

REFUSED = "RY000"
"""SQLSTATE of the stored functions' own refusals: HINT holds the error code, DETAIL the details as JSON."""


@cache
def statements() -> dict[str, str]:
    """The statements of ``sql/*.sql`` by name."""
    found: dict[str, str] = {}
    for file in files("backends.postgres").joinpath("sql").iterdir():
        parts = re.split(r"^-- name: (\w+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found.update(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))
    return found


def refusal(code: str | None, message: str, details: dict[str, Any]) -> RunyardError:
    """The error that a stored function refused with."""
    if "existing" in details and "request" in details:
        old, new = json.loads(details.pop("existing")), json.loads(details.pop("request"))
        details["differs"] = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return from_dict({"code": code, "message": message, "details": details})


def translate(error: BaseException) -> RunyardError | None:
    """The runyard error for a driver's error, most specific first; None if it is a defect and should show as it is."""
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
            return InvalidInputError("a value is too long to be found again by it; ids and keys are to be short")
        case asyncpg.DataError():
            return InvalidInputError(f"a value cannot be stored: {error}")
        case (
            asyncpg.PostgresConnectionError()
            | asyncpg.InterfaceError()
            | asyncpg.InternalClientError()  # a connection that was cut in the middle of a statement
            | asyncpg.AdminShutdownError()
            | asyncpg.CannotConnectNowError()
            | asyncpg.CrashShutdownError()
            | asyncpg.InsufficientResourcesError()
            | asyncpg.ReadOnlySQLTransactionError()  # a failover: this server is not the primary any more
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
    """Raise runyard's errors in place of the driver's."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError) as error:
        mapped = translate(error)
        if mapped is None:
            raise
        raise mapped from error


async def _undone_again(send: Callable[[], Awaitable[T]]) -> T:
    """Send a statement that is a transaction of its own; once more if the server undid it to break a deadlock."""
    for _ in range(2):
        with contextlib.suppress(asyncpg.TransactionRollbackError):
            return await send()
        await asyncio.sleep(jittered(_AFTER_YOU))
    return await send()


class _PlainConnection(asyncpg.Connection):
    """Spares the round trip with which asyncpg resets a session that goes back to the pool: nothing here changes one."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool of connections and the statements to send.

    ``command_timeout`` (seconds) bounds every call, so that a hung server shows as BackendUnavailableError. ``page_bytes``:
    of one page of a list at most, but for a single entry. ``decoding``: held by who decodes a run's events: readers that all
    come at once do so one after the other, and between them others have their turn.
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
        """Open the pool. Works behind PgBouncer in transaction mode with ``statement_cache_size=0``, here or in the URL."""
        url, in_url = split_url(url)
        with translated():
            return cls(
                await asyncpg.create_pool(
                    url,
                    min_size=min_pool_size,
                    max_size=max_pool_size,
                    command_timeout=command_timeout,
                    max_cached_statement_lifetime=0,  # its timer would hold the contextvars of the run that asked first
                    connection_class=_PlainConnection,
                    server_settings={"application_name": name},
                    **in_url | settings,
                ),
                page_bytes,
            )

    async def close(self) -> None:
        """Close the pool; connections still in use after 5 seconds are cut."""
        try:
            async with asyncio.timeout(5):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()

    async def rows(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """All rows of a statement."""
        with translated():
            return await _undone_again(lambda: self.pool.fetch(statements()[name], *args))

    async def row(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record | None:
        """The first row of a statement, on ``connection`` if one is given."""
        with translated():
            if connection is not None:
                return await connection.fetchrow(statements()[name], *args)
            return await _undone_again(lambda: self.pool.fetchrow(statements()[name], *args))

    async def one(self, name: str, *args: Any, connection: Connection | None = None) -> asyncpg.Record:
        """The only row of a statement that always returns one."""
        row = await self.row(name, *args, connection=connection)
        assert row is not None, name
        return row

    async def value(self, name: str, *args: Any) -> Any:
        """The first column of the first row."""
        with translated():
            return await _undone_again(lambda: self.pool.fetchval(statements()[name], *args))

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Database]:
        """Several reads that see one state of the database."""
        with translated():
            async with self.pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
                yield _Bound(self.pool, connection)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Database]:
        """Several calls that take effect together."""
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
