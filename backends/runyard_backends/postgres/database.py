"""The connection pool, and the named statements."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Sequence
from functools import cache, partial
from math import ceil
from typing import Any, Final
from weakref import WeakSet

import asyncpg

from runyard.ports.results import PAGE_BYTES
from runyard.ports.stores import DEFAULT_MAX_POOL_CONNECTIONS, DEFAULT_MIN_POOL_CONNECTIONS
from runyard.support import metrics
from runyard.support.metrics import measured_call
from runyard.support.store_retries import until_unlocked

from ..statements import named_statements
from .connecting import TAKES_NO_WRITES, Connector, session_timeouts, split_url
from .driver_errors import DRIVER_ERRORS, translated, undone_again
from .history_cache import HistoryCache

DEFAULT_COMMAND_SECONDS: Final = 30.0
"""Seconds that a call of Postgres may take."""
CONNECT_SECONDS: Final = 10.0
"""Minimum time limit for opening a connection, in seconds. With a shorter limit, a machine under load might never open a
connection. If the time limit of a call is shorter, the call ends before this time."""
CONNECTIONS_PER_LOCKED_CALL: Final = 4
"""Number of connections of the pool for each call that may wait for a lock again, after its first wait. A larger pool lets
more calls wait again at the same time."""
RELEASE_SECONDS: Final = 0.5
"""Seconds within which a cancelled statement must end. After this time its connection is closed."""
BEGIN_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_seqscan = off; SET LOCAL jit = off"
"""Begins a transaction whose reads see one state and use indexes. Without the settings, a plan that was made while a table was
small would stay in use while the table grows. The three statements are sent together, in one round trip."""

Connection = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy


@cache
def statements() -> dict[str, str]:
    """Load the statements of ``queries.sql`` by name, without their comments."""
    return named_statements("runyard_backends.postgres")


class _PlainConnection(asyncpg.Connection):
    """A connection that is not reset when it returns to the pool. No statement changes the session, and a reset would cost a
    round trip."""

    def get_reset_query(self) -> str:
        return ""


class Database:
    """A pool of connections that sends the named statements.

    Calls get connections in the order in which they asked for them. Without this order, asyncpg's pool could give a free
    connection to a new call while an older call waits.

    A statement that waits for a lock is undone after LOCK_WAIT_SECONDS and sent again later. Between the two tries, calls for
    other threads can use the connection of the statement. The call raises LockedError after the shorter of two times:
    LOCKED_SECONDS and half of ``command_timeout``.

    ``command_timeout``: seconds that a call may take, from the wait for a connection to the reply. ``page_bytes``: maximum
    number of bytes of a page of a list. A larger entry is a page of its own. ``history_cache_bytes``: maximum number of bytes
    of the histories that the process keeps in memory, 0 for none. ``locked_calls``: maximum number of calls that wait again for
    a lock at the same time. The attribute ``decoding`` is a lock. A reader holds it while it decodes a page of a
    run's events. Other tasks can therefore run between the pages of many readers.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        connector: Connector,
        *,
        command_timeout: float,
        page_bytes: int = PAGE_BYTES,
        history_cache_bytes: int = 0,
        locked_calls: int = 1,
    ) -> None:
        self.histories = HistoryCache(history_cache_bytes)
        self.pool, self.page_bytes, self.decoding = pool, page_bytes, asyncio.Lock()
        self._connector, self._command_timeout = connector, command_timeout
        self._free = asyncio.Semaphore(pool.get_max_size())
        self._locked = asyncio.Semaphore(locked_calls)

    @property
    def servers(self) -> Hashable:
        """The URLs of the Postgres hosts of this database, as a hashable value. The value differs between databases of
        different deployments."""
        return self._connector.servers

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
        max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
        command_timeout: float = DEFAULT_COMMAND_SECONDS,
        name: str = "runyard",
        page_bytes: int = PAGE_BYTES,
        history_cache_bytes: int = 0,
        **settings: Any,
    ) -> Database:
        """Open the pool. ``command_timeout``: seconds after which a call without a reply raises BackendUnavailableError.
        ``name``: the name under which Postgres lists the connections. ``settings``: arguments of asyncpg's pool. Behind
        PgBouncer in transaction mode, ``statement_cache_size=0`` is required, as an argument or in the URL."""
        url, in_url = split_url(url)
        connector = Connector(url, name, session_timeouts(command_timeout))
        connect_timeout = max(command_timeout, CONNECT_SECONDS)
        with translated():
            async with asyncio.timeout(connect_timeout):
                pool = await asyncpg.create_pool(
                    min_size=min_pool_size,
                    max_size=max_pool_size,
                    max_cached_statement_lifetime=0,  # otherwise a timer keeps the context of a run
                    connection_class=_PlainConnection,
                    connect=connector,
                    **{"timeout": connect_timeout} | in_url | settings,
                )
        locked_calls = max(1, max_pool_size // CONNECTIONS_PER_LOCKED_CALL)
        database = cls(
            pool,
            connector,
            command_timeout=command_timeout,
            page_bytes=page_bytes,
            history_cache_bytes=history_cache_bytes,
            locked_calls=locked_calls,
        )
        _open.add(database)
        return database

    async def close(self) -> None:
        """Close the pool. Connections that are still in use are closed after 5 seconds."""
        try:
            async with asyncio.timeout(5):
                await self.pool.close()
        except TimeoutError:
            self.pool.terminate()

    async def rows(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Return all rows of a statement."""
        rows: list[asyncpg.Record] = await self._call("fetch", name, args)
        return rows

    async def rows_unless_locked(self, name: str, *args: Any) -> list[asyncpg.Record]:
        """Return all rows of a statement that is not sent again. Raises LockedError after the first wait for a lock."""
        with measured_call("postgres"), translated():
            async with asyncio.timeout(self._command_timeout):
                rows: list[asyncpg.Record] = await self._send("fetch", name, args)
                return rows

    async def row(self, name: str, *args: Any) -> asyncpg.Record | None:
        """Return the first row of a statement."""
        row: asyncpg.Record | None = await self._call("fetchrow", name, args)
        return row

    async def one(self, name: str, *args: Any) -> asyncpg.Record:
        """Return the only row of a statement that always returns one row."""
        row = await self.row(name, *args)
        assert row is not None, name
        return row

    async def value(self, name: str, *args: Any) -> Any:
        """Return the first column of the first row."""
        return await self._call("fetchval", name, args)

    async def check_writable(self) -> None:
        """Raise BackendUnavailableError if the server takes no writes, because it is a standby or read-only."""
        async with self._connection() as connection:
            if await connection.fetchval(TAKES_NO_WRITES):
                raise asyncpg.ReadOnlySQLTransactionError("the server is a standby or read-only")

    async def connect_alone(self) -> asyncpg.Connection:
        """Open a connection outside the pool. Raises the errors of the driver."""
        return await self._connector(statement_cache_size=0)

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Database]:
        """Return a database. Inside the block, all reads of this database see one state. The reads use indexes."""
        async with self._transaction(BEGIN_SNAPSHOT) as bound:
            yield bound

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Database]:
        """Yield a database whose calls inside the block are one transaction."""
        async with self._transaction("BEGIN") as bound:
            yield bound

    async def _call(self, method: str, name: str, args: Sequence[Any]) -> Any:
        with measured_call("postgres"), translated():
            async with asyncio.timeout(self._command_timeout):
                send = partial(self._send, method, name, args)
                return await until_unlocked(send, self._locked, bound=self._command_timeout / 2)

    async def _send(self, method: str, name: str, args: Sequence[Any]) -> Any:
        async def send() -> Any:
            async with self._acquired() as connection:
                return await getattr(connection, method)(statements()[name], *args)

        with translated():
            return await undone_again(send)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """Return a connection of the pool for one call."""
        with translated():
            async with asyncio.timeout(self._command_timeout), self._acquired() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Connection]:
        """Return a connection of the pool. After an error, wait until the connection can be used again. If this takes longer
        than RELEASE_SECONDS, close the connection. If the server takes no writes, close the connection immediately."""
        async with self._free:
            connection = await self.pool.acquire()
            try:
                yield connection
            except BaseException as error:
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    connection.terminate()
                    self._connector.refuse(error)
                with contextlib.suppress(*DRIVER_ERRORS):
                    await _release(connection, RELEASE_SECONDS)
                raise
            await _release(connection, None)

    @contextlib.asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[Database]:
        async with self._connection() as connection:
            try:
                await connection.execute(begin)
                yield _Bound(self, connection)
            except BaseException:
                await _undo(connection)
                raise
            await connection.execute("COMMIT")


_open: Final[WeakSet[Database]] = WeakSet()
"""The databases of this process, for the metrics of the process."""


def _pool_sizes() -> tuple[int, int]:
    """Return two numbers for the open pools of this process together: the maximum number of connections, and the connections in
    use."""
    pools = [database.pool for database in _open if not database.pool.is_closing()]
    return sum(pool.get_max_size() for pool in pools), sum(pool.get_size() - pool.get_idle_size() for pool in pools)


metrics.POOL.set_function(lambda: _pool_sizes()[0])
metrics.POOL_IN_USE.set_function(lambda: _pool_sizes()[1])


async def _release(connection: Any, seconds: float | None) -> None:
    """Return the connection to its pool, if it has not left the pool. If this call fails or is cancelled, the connection is
    closed. pool.release would start a separate task. If the caller were cancelled, nobody would get an error of this task."""
    if connection._con is not None:
        await connection._holder.release(seconds)


async def _undo(connection: Connection) -> None:
    """Roll back the transaction. If the rollback takes longer than RELEASE_SECONDS, close the connection."""
    try:
        async with asyncio.timeout(RELEASE_SECONDS):
            await connection.execute("ROLLBACK")
    except BaseException as error:
        with contextlib.suppress(asyncpg.InterfaceError):  # the driver has closed the connection
            connection.terminate()
        if not isinstance(error, DRIVER_ERRORS):
            raise


class _Bound(Database):
    def __init__(self, database: Database, connection: Connection) -> None:
        super().__init__(
            database.pool,
            database._connector,
            command_timeout=database._command_timeout,
            page_bytes=database.page_bytes,
        )
        self._bound = connection

    async def _call(self, method: str, name: str, args: Sequence[Any]) -> Any:
        return await self._send(method, name, args)  # a retry is useless, because an error ends the transaction

    async def _send(self, method: str, name: str, args: Sequence[Any]) -> Any:
        return await getattr(self._bound, method)(statements()[name], *args)


def milliseconds(seconds: float) -> int:
    """Return ``seconds`` as milliseconds, at least 1 if they are more than 0."""
    return ceil(seconds * 1000)
