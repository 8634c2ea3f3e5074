"""The lock of a tenant's imports in Postgres."""

from __future__ import annotations

import asyncio

from ..import_locks import taken
from .database import RELEASE_SECONDS, Connection, Database, statements
from .driver_errors import DRIVER_ERRORS, translated

REPLY_SECONDS = 10.0
"""Seconds within which the server must answer."""


class PostgresImportLock:
    """An advisory lock of a transaction on a separate connection. Such a lock also works behind PgBouncer in transaction mode.
    The server releases the lock when the connection is lost."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def take(cls, db: Database, tenant: str) -> PostgresImportLock:
        """Take the lock. Raises LockedError, BackendUnavailableError."""
        with translated():
            async with asyncio.timeout(REPLY_SECONDS):
                lock = cls(await db.connect_alone())
                try:
                    await lock._connection.execute("BEGIN")
                    free = await lock._connection.fetchval(statements()["import_lock"], tenant)
                except BaseException:
                    lock._connection.terminate()
                    raise
        if not free:
            await lock.release()
            raise taken()
        return lock

    async def check(self) -> None:
        """Raise BackendUnavailableError if the lock was lost. The holder calls this method regularly. Otherwise the server
        would end the transaction as idle."""
        with translated():
            async with asyncio.timeout(REPLY_SECONDS):
                await self._connection.execute("SELECT 1")

    async def release(self) -> None:
        """Close the connection."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._connection.execute("ROLLBACK")
                await self._connection.close()
        except DRIVER_ERRORS:
            self._connection.terminate()
