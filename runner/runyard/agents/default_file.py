"""The file ``runyard.db`` of the working directory, in which Agents without a checkpointer keep their threads.

The file is open while a call of an Agent uses it. The calls that run at the same time in one event loop share a connection.
The last of these calls closes the connection. No connection therefore outlives a call, an event loop or the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from ..checkpointer import SQLiteCheckpointer
from ..errors import BackendUnavailableError, DataCorruptedError, LockedError, SchemaMismatch
from ..ports.stores import Checkpointer

FILE_NAME: Final = "runyard.db"
INSTEAD: Final = (
    "give the agent a checkpointer: SQLiteCheckpointer(path) for a file at another place, or MemoryCheckpointer() for threads "
    "that end with the process"
)


@dataclass(slots=True)
class _Shared:
    """The checkpointer that the calls of one event loop share. ``users``: the number of these calls."""

    checkpointer: SQLiteCheckpointer
    users: int = 0
    opened: bool = False
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, _Shared]] = WeakKeyDictionary()


class DefaultFile(SQLiteCheckpointer):
    """A checkpointer on the file FILE_NAME of the working directory in which this object was made. Use it within
    :meth:`in_use`.

    Raises BackendUnavailableError if the working directory was deleted.
    """

    def __init__(self) -> None:
        try:
            self._path = Path.cwd() / FILE_NAME
        except OSError as error:
            raise BackendUnavailableError(f"the working directory cannot be used: {error.strerror}; {INSTEAD}") from error
        super().__init__(self._path)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Open the file until the ``with`` block ends. Make the file if it is missing.

        Raises SchemaMismatch, LockedError. Raises BackendUnavailableError if the file cannot be made or written. Raises
        DataCorruptedError if the file is not a SQLite file. Raises ExtraMissingError without aiosqlite.
        """
        of_loop = _shared.setdefault(asyncio.get_running_loop(), {})
        shared = of_loop.setdefault(self._path, _Shared(SQLiteCheckpointer(self._path)))
        shared.users += 1
        try:
            await self._opened(shared)
            yield
        finally:
            shared.users -= 1
            if not shared.users:
                del of_loop[self._path]
                await shared.checkpointer.__aexit__(None, None, None)

    async def _opened(self, shared: _Shared) -> None:
        async with shared.opening:
            if shared.opened:
                return
            try:
                await shared.checkpointer.__aenter__()
            except LockedError:
                raise
            except (BackendUnavailableError, DataCorruptedError, SchemaMismatch) as error:
                what = f"an agent without a checkpointer keeps its threads in {self._path}, which cannot be used"
                raise type(error)(f"{what}: {error.message}. Or {INSTEAD}", path=str(self._path)) from error
            shared.opened = True

    async def _open(self) -> Checkpointer:
        return await _shared[asyncio.get_running_loop()][self._path].checkpointer._open()
