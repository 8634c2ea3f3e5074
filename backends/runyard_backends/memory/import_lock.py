"""The lock of a tenant's imports in the memory store."""

from __future__ import annotations

from ..import_locks import taken
from .state import Database


class MemoryImportLock:
    """The lock of ``tenant``. Raises LockedError if the lock is taken."""

    def __init__(self, db: Database, tenant: str) -> None:
        if tenant in db.importing:
            raise taken()
        self._db, self._tenant = db, tenant
        db.importing.add(tenant)

    async def check(self) -> None:
        """Do nothing, because the lock cannot be lost."""

    async def release(self) -> None:
        self._db.importing.discard(self._tenant)
