"""The lock on imports in SQLite. A file has one lock for all tenants."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from ..import_locks import taken


class SqliteImportLock:
    """The lock is a transaction on a second, empty file beside the store. The operating system releases the lock when the
    process ends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    async def take(cls, path: Path) -> SqliteImportLock:
        """Take the lock of the store in the file ``path``. Raises LockedError, sqlite3.Error."""
        return cls(await asyncio.to_thread(_locked, path))

    async def check(self) -> None:
        """Do nothing, because the lock cannot be lost."""

    async def release(self) -> None:
        await asyncio.to_thread(self._connection.close)


def _locked(path: Path) -> sqlite3.Connection:
    store = path.resolve()  # one file can have several paths
    beside = store.with_name(f"{store.name}-import")
    connection = sqlite3.connect(beside, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise taken() from None
        raise
    return connection
