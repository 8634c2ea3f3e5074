"""MySQL 8.0.17 or later and MariaDB 10.6 or later (``mysql://``, ``mariadb://``), on InnoDB with its default isolation.

A verb that writes locks its thread first. In REPEATABLE READ, all non-locking reads of a transaction see the state at the time
of the first of these reads. This first read comes after the lock of the thread. Therefore all these reads see the commits that
came before the lock.

The verb is called again after a deadlock, and after a wait of LOCK_WAIT_SECONDS for a lock. After LOCKED_SECONDS, the verb
fails. After the loss of a connection, the verb is called again only if it has sent no statement.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import asyncmy
from asyncmy import errors
from asyncmy.constants import CLIENT

from runyard.errors import (
    BackendUnavailableError,
    InvalidInputError,
    LockedError,
    RunyardError,
    SchemaUninitialized,
)
from runyard.ports.results import PAGE_BYTES
from runyard.ports.stores import DEFAULT_MAX_POOL_CONNECTIONS, DEFAULT_MIN_POOL_CONNECTIONS
from runyard.support.store_retries import LOCKED_SECONDS, MAX_LOCKED_PAUSE_SECONDS, jittered

from .database import Sent, Transaction, Values, moment, statements
from .migrate import Migrated, check_oldest_code, check_schema, migrated, migrations, pending, schema_state
from .mysql_errors import BROKEN, UndoneError, too_large, translate
from .mysql_import_lock import MySqlImportLock

T = TypeVar("T")

LOCK_WAIT_SECONDS: Final = 2
"""Maximum seconds for which one try of a verb waits for a lock."""
CONNECT_SECONDS: Final = 10
"""Seconds within which the server must accept a connection."""
COMMAND_SECONDS: Final = 30.0
"""Maximum seconds that one try of a verb may take."""
LONG_COMMAND_SECONDS: Final = 3600.0
"""Maximum seconds that one try of a deletion, an erasure or a migration may take. The time of these verbs grows with the
number of rows."""
RECYCLE_SECONDS: Final = 1800
"""Seconds after which an idle connection is replaced."""
MIGRATION_SECONDS: Final = 15
"""Maximum seconds to wait for the end of another migration."""
_CLOSE_SECONDS: Final = 5.0
_DEFAULT_PORT: Final = 3306

_LOCKS: Final = "SELECT GET_LOCK('runyard_migrate', %s)"
_SCHEMA_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS runyard_schema (version INTEGER PRIMARY KEY, name VARCHAR(100) NOT NULL, oldest_code INTEGER NOT
    NULL) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4
"""
_SESSION: Final = f"""
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',
                innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}, time_zone = '+00:00'
                /*!80000 , transaction_isolation = 'REPEATABLE-READ' */ /*M! , tx_isolation = 'REPEATABLE-READ' */
"""
"""The settings of each session. MySQL and MariaDB have different names for the isolation level. Each server ignores the
comment with the name of the other server."""


def options_of(url: str) -> dict[str, Any]:
    """Return the arguments of a connection to ``mysql://user:password@host:port/database``. The URL's query may have
    ``unix_socket`` and ``ssl=true``. Raises InvalidInputError. The message of this error contains no part of the URL."""
    form = "mysql://user:password@host:port/database, with unix_socket=…, ssl=true or ssl=false once in its query"
    refused = InvalidInputError(f"the URL of a MySQL database is {form}", field="url")
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        raise refused from None
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = dict(pairs)
    database = unquote(parts.path[1:])
    if not database or "/" in database or parts.fragment or len(query) < len(pairs):
        raise refused
    if not query.keys() <= {"unix_socket", "ssl"} or query.get("ssl", "false") not in ("true", "false"):
        raise refused
    made: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "db": database,
    }
    if "unix_socket" in query:
        made["unix_socket"] = query["unix_socket"]
    if query.get("ssl") == "true":
        made["ssl"] = ssl.create_default_context()
    return made


@cache
def _texts() -> dict[str, str]:
    """Return the statements of ``queries.sql`` with the placeholders of the driver."""
    return {name: text.replace("?", "%s") for name, text in statements().items()}


class MySqlTransaction(Transaction):
    """A transaction on a connection. ``packet``: the bytes of the largest statement that the server accepts."""

    def __init__(self, connection: Any, begin: str, packet: int) -> None:
        super().__init__()
        self.connection, self.begin, self.packet = connection, begin, packet

    async def execute(self, statement: str, values: Values = ()) -> Any:
        """Send a statement, and return its cursor."""
        cursor = self.connection.cursor()
        self._check_size(cursor, statement, values)
        try:
            await cursor.execute(statement, tuple(values) or None)
        except (errors.MySQLError, *BROKEN) as error:
            if (mapped := translate(error)) is None:
                raise
            raise mapped from error
        return cursor

    def _check_size(self, cursor: Any, statement: str, values: Values) -> None:
        """Raise an error for a statement that is too large for the server. Only statements with long values are measured."""
        about = 2 * sum(len(value) for value in values if isinstance(value, str | bytes))
        if about < self.packet - 10_000:
            return
        if len(cursor.mogrify(statement, tuple(values)).encode("utf-8", "surrogateescape")) > self.packet - 100:
            raise too_large()

    async def _read(self, statement: str, values: Values) -> tuple[list[str], list[tuple[Any, ...]]]:
        cursor = await self.execute(_texts()[statement], values)
        return [column[0] for column in cursor.description], list(await cursor.fetchall())

    async def _send(self, statement: str, values: Values) -> Sent:
        cursor = await self.execute(_texts()[statement], values)
        return Sent(cursor.rowcount, cursor.lastrowid or 0)

    async def _send_many(self, statement: str, rows: Sequence[Values]) -> None:
        for row in rows:
            await self.execute(_texts()[statement], row)

    async def _clock(self) -> datetime:
        cursor = await self.execute("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")
        [(microseconds,)] = await cursor.fetchall()
        return moment(microseconds)

    async def restart(self) -> None:
        """End the transaction and begin another transaction. The end releases all locks."""
        await self.execute("ROLLBACK")
        await self.execute(self.begin)


class MySqlDatabase:
    """A pool of connections to one database. Transactions get connections in the order of their requests. asyncmy's pool alone
    does not ensure this order. ``connect`` opens a connection outside the pool."""

    name = "MySQL"

    def __init__(self, pool: Any, connect: Callable[[], Awaitable[Any]], packet: int, page_bytes: int) -> None:
        self.pool, self._connect, self.packet, self.page_bytes = pool, connect, packet, page_bytes
        self._free = asyncio.Semaphore(pool.maxsize)

    async def read(self, verb: Callable[[Transaction], Awaitable[T]]) -> T:
        """Call ``verb`` in a transaction that reads one state of the database."""
        return await self._until_done(verb, "START TRANSACTION READ ONLY", COMMAND_SECONDS)

    async def write(self, verb: Callable[[Transaction], Awaitable[T]], *, long: bool = False, wait: bool = True) -> T:
        """Call ``verb`` in a transaction. If other transactions make the server roll back this transaction, call ``verb``
        again. ``long``: True if the verb may take LONG_COMMAND_SECONDS. ``wait``: False to call ``verb`` only once."""
        seconds = LONG_COMMAND_SECONDS if long else COMMAND_SECONDS
        return await self._until_done(verb, "START TRANSACTION", seconds, LOCKED_SECONDS if wait else 0.0)

    async def _until_done(
        self, verb: Callable[[Transaction], Awaitable[T]], begin: str, seconds: float, patience: float = LOCKED_SECONDS
    ) -> T:
        loop = asyncio.get_running_loop()
        give_up, pause = loop.time() + patience, 0.005
        while True:
            try:
                return await self._once(verb, begin, seconds)
            except UndoneError as error:
                if loop.time() + pause > give_up:
                    raise LockedError(f"other transactions held a lock for too long; try again later: {error}") from error
            await asyncio.sleep(jittered(pause))
            pause = min(pause * 2, MAX_LOCKED_PAUSE_SECONDS)

    async def _once(self, verb: Callable[[Transaction], Awaitable[T]], begin: str, seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds), self._free:
                connection = await self._began(begin)
                clean = False
                try:
                    transaction = MySqlTransaction(connection, begin, self.packet)
                    made = await verb(transaction)
                    await transaction.execute("COMMIT")
                    clean = True
                except (RunyardError, UndoneError) as error:
                    clean = not isinstance(error, BackendUnavailableError) and await _rolled_back(connection)
                    raise
                finally:
                    self._release(connection, clean)
                return made
        except (errors.MySQLError, *BROKEN) as error:
            if (mapped := translate(error)) is None:
                raise
            raise mapped from error

    async def _began(self, begin: str) -> Any:
        """Return a connection in a new transaction. A pooled connection that the server has closed is replaced."""
        for _ in range(self.pool.maxsize):
            connection = await self.pool.acquire()
            try:
                await connection.cursor().execute(begin)
            except (errors.MySQLError, *BROKEN) as error:
                self._release(connection, clean=False)
                if not isinstance(translate(error), BackendUnavailableError):
                    raise
            except BaseException:
                self._release(connection, clean=False)
                raise
            else:
                return connection
        connection = await self.pool.acquire()
        try:
            await connection.cursor().execute(begin)
        except BaseException:
            self._release(connection, clean=False)
            raise
        return connection

    def _release(self, connection: Any, clean: bool) -> None:
        """Return a connection to the pool. If its state is unknown, close the connection."""
        if not clean:
            connection.close()
        self.pool.release(connection)

    async def lock_imports(self, tenant: str) -> MySqlImportLock:
        """Take the lock of the tenant's imports, on a separate connection. Raises LockedError if another import holds the
        lock."""
        try:
            return await MySqlImportLock.take(await self._connect(), tenant)
        except (errors.MySQLError, *BROKEN) as error:
            if (mapped := translate(error)) is None:
                raise
            raise mapped from error

    async def check(self) -> None:
        """Check that the server answers, and that this code can run on the schema."""
        await self.read(check_schema)

    async def close(self) -> None:
        """Close the connections."""
        self.pool.close()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.pool.wait_closed()
        except TimeoutError:
            self.pool.terminate()


async def _rolled_back(connection: Any) -> bool:
    """Roll back a transaction. Return False if the connection can no longer be used."""
    try:
        await connection.cursor().execute("ROLLBACK")
    except (errors.MySQLError, *BROKEN):
        return False
    return True


async def open_database(url: str, *, min_pool_size: int, max_pool_size: int, page_bytes: int = PAGE_BYTES) -> MySqlDatabase:
    """Connect to the server at ``url``. Raises InvalidInputError, BackendUnavailableError."""
    options = options_of(url)
    if not 0 <= min_pool_size <= max_pool_size or max_pool_size < 1:
        words = "max_pool_size must be at least 1, and min_pool_size must be from 0 to max_pool_size"
        raise InvalidInputError(words, field="max_pool_size")
    session: dict[str, Any] = {"init_command": _SESSION, "autocommit": True, "charset": "utf8mb4", "binary_prefix": True}
    sizes: dict[str, Any] = {"minsize": min_pool_size, "maxsize": max_pool_size, "pool_recycle": RECYCLE_SECONDS}
    try:
        pool = await asyncmy.create_pool(
            **options, **session, **sizes, connect_timeout=CONNECT_SECONDS, client_flag=CLIENT.FOUND_ROWS
        )
    except (errors.MySQLError, *BROKEN) as error:
        if (mapped := translate(error)) is None:
            raise
        raise mapped from error
    connect = partial(asyncmy.connect, **options, **session, connect_timeout=CONNECT_SECONDS)
    database = MySqlDatabase(pool, connect, 2**20, page_bytes)
    try:
        [(database.packet,)] = await database.read(lambda tx: _asked(tx, "SELECT @@max_allowed_packet"))
    except BaseException:
        await database.close()
        raise
    return database


async def _asked(tx: Transaction, statement: str) -> list[tuple[Any, ...]]:
    assert isinstance(tx, MySqlTransaction)
    found: list[tuple[Any, ...]] = list(await (await tx.execute(statement)).fetchall())
    return found


async def connect_database(
    url: str,
    *,
    min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
    max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
    page_bytes: int = PAGE_BYTES,
) -> MySqlDatabase:
    """Connect to the database at ``url``, and check its schema. Raises SchemaUninitialized, SchemaMismatch, InvalidInputError,
    BackendUnavailableError."""
    database = await open_database(url, min_pool_size=min_pool_size, max_pool_size=max_pool_size, page_bytes=page_bytes)
    try:
        await database.check()
    except BaseException:
        await database.close()
        raise
    return database


async def migrate(url: str) -> Migrated:
    """Apply the migrations that the database at ``url`` lacks. Concurrent calls wait for each other. Raises LockedError,
    SchemaMismatch, BackendUnavailableError."""
    database = await open_database(url, min_pool_size=1, max_pool_size=1)
    try:
        return await database.write(_migrate, long=True)
    finally:
        await database.close()


async def plan(url: str) -> Migrated:
    """Return what :func:`migrate` would do now, and change nothing. Raises SchemaMismatch, BackendUnavailableError."""
    database = await open_database(url, min_pool_size=1, max_pool_size=1)
    try:
        state = await database.read(schema_state)
    except SchemaUninitialized:
        state = {"version": 0, "oldest_code": 0}
    finally:
        await database.close()
    check_oldest_code(state)
    before = state["version"]
    return migrated(before, pending(migrations("mysql"), before))


async def _migrate(tx: Transaction) -> Migrated:
    """Apply migrations under a lock of the session. A transaction would not be enough, because the server commits after each
    statement that makes a table."""
    assert isinstance(tx, MySqlTransaction)
    [(locked,)] = await (await tx.execute(_LOCKS, (MIGRATION_SECONDS,))).fetchall()
    if not locked:
        raise LockedError("another migration is running; try again later")
    await tx.execute(_SCHEMA_TABLE)
    before = (await schema_state(tx))["version"]
    [(version,)] = await (await tx.execute("SELECT VERSION()")).fetchall()
    collation = "utf8mb4_nopad_bin" if "mariadb" in version.lower() else "utf8mb4_0900_bin"
    missing = pending(migrations("mysql"), before)
    for migration in missing:
        for statement in migration.statements():
            await tx.execute(statement.replace("{collation}", collation))
        await tx.send("schema_applied", migration.version, migration.name, migration.oldest_code)
        await tx.execute("COMMIT")
    await check_schema(tx)
    return migrated(before, missing)
