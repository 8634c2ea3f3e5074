"""SQLite files (``sqlite:///file.db``). Several processes of one machine may share a file.

A file is in WAL mode. In this mode, readers do not wait for the writer. Only one connection at a time can write. This
connection locks the file by ``BEGIN IMMEDIATE``. Each commit is flushed to the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiosqlite

from runyard.errors import (
    BackendUnavailableError,
    DataCorruptedError,
    InvalidInputError,
    LockedError,
    RunyardError,
    SchemaMismatch,
)
from runyard.ports.results import PAGE_BYTES
from runyard.support.store_retries import LOCKED_SECONDS, jittered

from .database import DuplicateKeyError, Sent, Transaction, Values, statements
from .import_lock import SqliteImportLock
from .migrate import Migrated, Migration, check_oldest_code, check_schema, migrated, migrations, pending, schema_state
from .sqlite_path import path_of

T = TypeVar("T")

MAX_READERS: Final = 4
"""Maximum number of connections of a process that read at the same time."""

_MODE_PAUSE_SECONDS: Final = 0.01
"""Seconds before another try to set the mode of the file."""
_SCHEMA_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS runyard_schema (version INTEGER PRIMARY KEY, name TEXT NOT NULL, oldest_code INTEGER NOT NULL)
"""
_DUPLICATES: Final = frozenset({sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE})
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNAVAILABLE: Final = frozenset(
    {
        *(sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_AUTH, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOMEM),
    }
)


def translate(error: sqlite3.Error) -> RunyardError | None:
    """Return runyard's error for an error of SQLite. Return None for an error that shows a defect. The caller raises such an
    error unchanged."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _LOCKED:
        return LockedError(f"another process holds the SQLite file for too long; try again later: {error}")
    if code in _DAMAGED:
        return DataCorruptedError(
            f"SQLite cannot read the file: {error}; check that it is a SQLite database, or restore a copy"
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return InvalidInputError(f"a value cannot be stored: {error}")
    if code == sqlite3.SQLITE_ERROR:  # the statements of this package are fixed, so a table or a column must be missing
        return SchemaMismatch(f"the file has other tables than runyard's: {error}; use another file for runyard")
    if code in _UNAVAILABLE:
        return BackendUnavailableError(f"SQLite cannot use the file: {error}; check its path, its rights and the free space")
    return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Convert the errors of SQLite in the block to errors of runyard. An error without a counterpart is raised unchanged."""
    try:
        yield
    except sqlite3.Error as error:
        if (mapped := translate(error)) is None:
            raise
        raise mapped from error


@cache
def _texts() -> dict[str, str]:
    """Return the statements of ``queries.sql`` without ``FOR UPDATE``, because SQLite has no row locks."""
    return {name: text.removesuffix(" SKIP LOCKED").removesuffix(" FOR UPDATE") for name, text in statements().items()}


@contextlib.contextmanager
def _duplicates() -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode in _DUPLICATES:
            raise DuplicateKeyError from error
        raise


class SqliteTransaction(Transaction):
    """A transaction on a connection, from its BEGIN to its end."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        super().__init__()
        self.connection = connection

    async def _read(self, statement: str, values: Values) -> tuple[list[str], list[tuple[Any, ...]]]:
        found = list(await self.connection.execute_fetchall(_texts()[statement], values))
        return (list(found[0].keys()) if found else []), [tuple(row) for row in found]

    async def _send(self, statement: str, values: Values) -> Sent:
        with _duplicates():
            cursor = await self.connection.execute(_texts()[statement], values)
        return Sent(cursor.rowcount, cursor.lastrowid or 0)

    async def _send_many(self, statement: str, rows: Sequence[Values]) -> None:
        with _duplicates():
            await self.connection.executemany(_texts()[statement], rows)

    async def _clock(self) -> datetime:
        return datetime.now(UTC)

    async def restart(self) -> None:
        """Do nothing, because no other transaction can write at the same time."""


class SqliteDatabase:
    """One SQLite file. It has one connection that writes, and up to MAX_READERS connections that read."""

    name = "SQLite"

    def __init__(self, path: Path, *, busy_seconds: float = LOCKED_SECONDS, page_bytes: int = PAGE_BYTES) -> None:
        self.path, self.busy_seconds, self.page_bytes = path, busy_seconds, page_bytes
        self._writer: aiosqlite.Connection | None = None
        self._readers: list[aiosqlite.Connection] = []
        self._idle: list[aiosqlite.Connection] = []
        self._reading = asyncio.Semaphore(MAX_READERS)
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Open the file. Make the file if it does not exist. Raises BackendUnavailableError, LockedError,
        DataCorruptedError."""
        with translated():
            # Open the file with sqlite3 first. If aiosqlite fails to open a file, the thread of aiosqlite may end after the
            # event loop was closed.
            await asyncio.to_thread(lambda: sqlite3.connect(self.path).close())
            self._writer = await self._connect()

    async def _connect(self) -> aiosqlite.Connection:
        connection = aiosqlite.connect(self.path, timeout=self.busy_seconds, isolation_level=None)
        # Make the connection's thread a daemon. Otherwise a program that did not close its store would not end. In aiosqlite
        # before 0.22, the connection itself is the thread.
        thread: Any = getattr(connection, "_thread", connection)
        thread.daemon = True
        await connection
        try:
            await self._use_wal(connection)
            await connection.execute("PRAGMA synchronous = FULL")
            await connection.execute("PRAGMA secure_delete = ON")
            connection.row_factory = sqlite3.Row
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _use_wal(self, connection: aiosqlite.Connection) -> None:
        """Set the mode of the file. Try several times, because SQLite does not wait for other processes that set the mode at
        the same time."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.busy_seconds
        while True:
            try:
                await connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _LOCKED or loop.time() > give_up:
                    raise
            else:
                return
            await asyncio.sleep(jittered(_MODE_PAUSE_SECONDS))

    async def read(self, verb: Callable[[Transaction], Awaitable[T]]) -> T:
        """Call ``verb`` in a transaction that reads one state of the file."""
        async with self._reading:
            self._opened()
            connection = self._idle.pop() if self._idle else None
            with translated():
                if connection is None:
                    connection = await self._connect()
                    self._readers.append(connection)
                try:
                    async with _transaction(connection, "BEGIN") as transaction:
                        return await verb(transaction)
                finally:
                    self._idle.append(connection)

    async def write(self, verb: Callable[[Transaction], Awaitable[T]], *, long: bool = False, wait: bool = True) -> T:
        """Call ``verb`` in a transaction. No other process can write during this transaction. The verb has no time limit.
        ``wait``: False to raise LockedError immediately while another transaction writes."""
        if not wait and self._writing.locked():
            raise LockedError("another transaction writes to the SQLite file; try again later")
        async with self._writing:
            writer = self._opened()
            with translated():
                await writer.execute(f"PRAGMA busy_timeout = {round(self.busy_seconds * 1000) if wait else 0}")
                async with _transaction(writer, "BEGIN IMMEDIATE") as transaction:
                    return await verb(transaction)

    async def lock_imports(self, tenant: str) -> SqliteImportLock:
        """Take the lock on imports into the file. Raises LockedError if another import holds the lock."""
        with translated():
            return await SqliteImportLock.take(self.path)

    async def check(self) -> None:
        """Check that the file can be read. Raises BackendUnavailableError, SchemaMismatch."""
        await self.read(check_schema)

    async def apply(self, migrations: Sequence[Migration]) -> Migrated:
        """Apply the ``migrations`` that the file lacks, in one transaction. Raises SchemaMismatch if this code cannot run on
        the schema of the file."""
        async with self._writing:
            writer = self._opened()
            with translated():
                if await _version(writer) >= migrations[-1].version:  # the schema is current: do not wait for another writer
                    await check_schema(SqliteTransaction(writer))
                    return migrated(migrations[-1].version, [])
                async with _transaction(writer, "BEGIN IMMEDIATE") as transaction:
                    await writer.execute(_SCHEMA_TABLE)
                    before = (await schema_state(transaction))["version"]
                    missing = pending(migrations, before)
                    for migration in missing:
                        for statement in migration.statements():
                            await writer.execute(statement)
                        await transaction.send("schema_applied", migration.version, migration.name, migration.oldest_code)
                    await check_schema(transaction)
        return migrated(before, missing)

    def _opened(self) -> aiosqlite.Connection:
        if self._writer is None:
            raise BackendUnavailableError("the SQLite file is closed; connect again")
        return self._writer

    async def close(self) -> None:
        """Close each connection after the call that uses it. Waiting calls are refused. The last process that closes the file
        removes its WAL."""
        writer, self._writer = self._writer, None
        async with contextlib.AsyncExitStack() as unused:
            await unused.enter_async_context(self._writing)
            for _ in range(MAX_READERS):
                await unused.enter_async_context(self._reading)
            readers, self._readers, self._idle = self._readers, [], []
            for connection in [*readers, *([writer] if writer is not None else [])]:
                await connection.close()


async def _version(connection: aiosqlite.Connection) -> int:
    """Return the version of the schema, or 0 without a schema."""
    if not list(await connection.execute_fetchall("SELECT 1 FROM sqlite_master WHERE name = 'runyard_schema'")):
        return 0
    return (await schema_state(SqliteTransaction(connection)))["version"]


@contextlib.asynccontextmanager
async def _transaction(connection: aiosqlite.Connection, begin: str) -> AsyncIterator[SqliteTransaction]:
    """Open a transaction. A cancelled caller does not wait for the rollback. The connection's thread executes calls in order,
    and therefore executes the rollback before any later call.
    """
    try:
        await connection.execute(begin)
        yield SqliteTransaction(connection)
        await connection.execute("COMMIT")
    except BaseException:
        rollback = asyncio.ensure_future(connection.rollback())
        rollback.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(rollback)
        raise


async def connect_database(url: str, *, busy_seconds: float = LOCKED_SECONDS, page_bytes: int = PAGE_BYTES) -> SqliteDatabase:
    """Open the file of ``url`` and bring its schema up to this version."""
    database, _ = await _migrated(SqliteDatabase(path_of(url), busy_seconds=busy_seconds, page_bytes=page_bytes))
    return database


async def migrate(url: str) -> Migrated:
    """Apply the migrations that the file of ``url`` lacks. Make the file if it does not exist."""
    database, done = await _migrated(SqliteDatabase(path_of(url)))
    await database.close()
    return done


async def plan(url: str) -> Migrated:
    """Return what :func:`migrate` would do now, and change nothing. A file that does not exist is not made. Raises
    SchemaMismatch if the schema does not allow this version of runyard."""
    path, before = path_of(url), 0
    if path.exists():
        with translated():
            async with aiosqlite.connect(f"file:{quote(str(path))}?mode=ro", uri=True) as connection:
                connection.row_factory = sqlite3.Row
                if before := await _version(connection):
                    check_oldest_code(await schema_state(SqliteTransaction(connection)))
    return migrated(before, pending(migrations("sqlite"), before))


async def _migrated(database: SqliteDatabase) -> tuple[SqliteDatabase, Migrated]:
    await database.open()
    try:
        return database, await database.apply(migrations("sqlite"))
    except BaseException:
        await database.close()
        raise
