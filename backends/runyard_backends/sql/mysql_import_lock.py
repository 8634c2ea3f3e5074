"""The lock of a tenant's imports in MySQL."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from runyard.domain.derived_ids import digest
from runyard.errors import BackendUnavailableError

from ..import_locks import taken

REPLY_SECONDS = 10.0
"""Seconds within which the server must answer."""
RELEASE_SECONDS = 0.5
"""Seconds to wait for the answer to a release. Without an answer, the connection is closed. The server then releases the lock
when it notices the close."""


class MySqlImportLock:
    """A lock of a session, on a separate connection. The server releases the lock when the connection is lost."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def take(cls, connection: Any, tenant: str) -> MySqlImportLock:
        """Take the lock on ``connection``, and close the connection if this fails. Raises LockedError and errors of the
        driver."""
        lock = cls(connection)
        try:  # the name contains the database, because all databases of a server share the names of such locks
            free = await lock._ask(
                "SELECT GET_LOCK(CONCAT('runyard_import_', MD5(CONCAT(DATABASE(), %s))), 0)", (digest(tenant),)
            )
            if not free:
                raise taken()
        except BaseException:
            connection.close()
            raise
        return lock

    async def _ask(self, statement: str, values: tuple[str, ...] | None = None, seconds: float = REPLY_SECONDS) -> Any:
        async with asyncio.timeout(seconds):
            cursor = self._connection.cursor()
            await cursor.execute(statement, values)
            [(found,)] = await cursor.fetchall()
            return found

    async def check(self) -> None:
        """Raise BackendUnavailableError if the lock was lost."""
        try:
            await self._ask("SELECT 1")
        except Exception as error:
            raise BackendUnavailableError(f"the lock of the import was lost: {error}; import again") from error

    async def release(self) -> None:
        """Release the lock, and close the connection. To close the connection alone would not be enough, because the server may
        notice the close late."""
        try:
            with suppress(Exception):
                await self._ask("SELECT RELEASE_ALL_LOCKS()", seconds=RELEASE_SECONDS)
        finally:
            self._connection.close()
