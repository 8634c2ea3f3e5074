"""Reads of a Postgres database of cubepi or cubeloop. Each page is read in its own read-only transaction."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgpack

from runyard.errors import BackendUnavailableError, DataCorruptedError, SchemaMismatch, SchemaUninitialized
from runyard.models import JsonObject

from .source import ROWS_PER_READ, VERSIONS, SourceMessage, SourceThread, made_thread, statements

CONNECT_SECONDS: Final = 10.0
COMMAND_SECONDS: Final = 60.0
"""Seconds for one read."""


class PostgresSource:
    """A connection to the database."""

    def __init__(self, connection: asyncpg.Connection, version: int) -> None:
        self._connection, self.version = connection, version

    @classmethod
    async def open(cls, url: str) -> PostgresSource:
        """Connect to ``url``.

        Raises BackendUnavailableError. Raises SchemaUninitialized for a database without cubepi's tables. Raises SchemaMismatch
        for a version of cubepi's schema that cannot be imported.
        """
        try:
            connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS, command_timeout=COMMAND_SECONDS)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TimeoutError) as error:
            raise BackendUnavailableError(f"cannot connect to the database to import: {type(error).__name__}") from None
        source = cls(connection, 0)
        try:
            source.version = await source._found_version()
        except BaseException:
            await connection.close()
            raise
        return source

    async def _found_version(self) -> int:
        async with self._reading():
            columns: dict[str, set[str]] = defaultdict(set)
            for row in await self._connection.fetch(statements("postgres")["columns"]):
                columns[row["table"]].add(row["column"])
            if not {"cubepi_threads", "cubepi_messages", "cubepi_schema_version"} <= set(columns):
                raise SchemaUninitialized("the database has no tables of cubepi's or cubeloop's PostgresCheckpointer")
            version = await self._connection.fetchval(statements("postgres")["version"])
        if version not in VERSIONS:
            known = ", ".join(map(str, VERSIONS))
            raise SchemaMismatch(
                f"the database has version {version} of cubepi's schema; only {known} can be imported; upgrade it first",
                expected=VERSIONS[-1],
                actual=version,
            )
        return int(version)

    async def thread_ids(self, after: str, limit: int) -> list[str]:
        async with self._reading():
            return [row["thread_id"] for row in await self._rows("threads", after, limit)]

    async def thread(self, thread_id: str) -> SourceThread | None:
        async with self._reading():
            found = await self._rows("thread", thread_id)
            if not found:
                return None
            runs = await self._rows("runs", thread_id) if self.version >= 4 else []
            answers = await self._rows("answers", thread_id) if self.version >= 5 else []
            bounds = await self._rows("bounds", thread_id)
        return made_thread(
            thread_id,
            extra=found[0]["extra"],
            parent_thread_id=found[0]["parent_thread_id"],
            request=found[0]["request"],
            request_run_id=found[0]["run_id"],
            runs=runs,
            answers=answers,
            bounds=bounds,
        )

    async def page(self, thread_id: str, after: int, last: int) -> list[SourceMessage]:
        async with self._reading():
            rows = await self._rows("messages", thread_id, after, last, ROWS_PER_READ)
        return [SourceMessage(row["row"], row["run_id"], _fields(thread_id, row)) for row in rows]

    async def close(self) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._connection.close()

    async def _rows(self, name: str, *args: Any) -> list[Any]:
        own = f"{name}_v3" if self.version < 4 and name in ("bounds", "messages") else name
        found: list[Any] = await self._connection.fetch(statements("postgres")[own], *args)
        return found

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[None]:
        """Open a transaction whose reads all see one state."""
        try:
            async with self._connection.transaction(isolation="repeatable_read", readonly=True):
                yield
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError) as error:
            raise BackendUnavailableError(f"cannot read the database to import: {type(error).__name__}: {error}") from None


def _fields(thread_id: str, row: Any) -> JsonObject:
    """Return the fields of a message. The column ``metadata`` replaces the metadata of the payload, as in cubepi."""
    try:
        fields = msgpack.unpackb(row["payload"], raw=False)
        metadata = json.loads(row["metadata"]) if row["metadata"] is not None else {}
        return {**fields, "metadata": metadata, "run_id": row["run_id"]}
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        where = f"cubepi_messages.seq={row['row']}"
        raise DataCorruptedError(f"{where} of thread {thread_id} cannot be read: {type(error).__name__}", row=where) from None
