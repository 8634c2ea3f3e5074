"""cubeloop's Postgres checkpointer on its own schema, without a queue, with one pool of ten connections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import msgpack
from cubeloop.checkpointer.postgres import PostgresCheckpointer
from cubeloop.checkpointer.postgres.alembic_helpers import (
    create_message_partitions_op,
    create_runs_partitions_op,
    write_schema_version_op,
)
from cubeloop.checkpointer.postgres.models import cubeloop_metadata
from cubeloop.providers.base import AssistantMessage, Message, TextContent, UserMessage
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from benchmarks import fixtures
from benchmarks.lab import Lab

ROW_BYTES = """
SELECT (SELECT coalesce(sum(pg_column_size(m.*)), 0) FROM cubepi_messages m WHERE thread_id = $1)
     + (SELECT coalesce(sum(pg_column_size(r.*)), 0) FROM cubepi_runs r WHERE thread_id = $1)
     + (SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM cubepi_threads t WHERE thread_id = $1)
"""


class CubeloopStore:
    """cubeloop as a store. Only :meth:`build` and :meth:`row_bytes`, which are not timed, access the tables directly."""

    def __init__(self, checkpointer: PostgresCheckpointer, url: str) -> None:
        self._checkpointer = checkpointer
        self._url = url

    async def build(self, thread_id: str, messages: int, *, depth: int = 0) -> str:
        if depth:
            raise ValueError("a fork is a full copy here: it has no depth")
        runs = messages // 2
        connection = await asyncpg.connect(self._url)
        try:
            await connection.execute("INSERT INTO cubepi_threads (thread_id) VALUES ($1)", thread_id)
            await connection.execute(
                "INSERT INTO cubepi_runs (thread_id, run_id, completed_at, completion_seq) "
                "SELECT $1, 'run-' || n, now(), n FROM generate_series(1, $2::int) AS n",
                thread_id,
                runs,
            )
            await connection.copy_records_to_table(
                "cubepi_messages",
                records=_rows(thread_id, runs),
                columns=["thread_id", "seq", "role", "metadata", "payload", "run_id"],
            )
            await connection.execute("VACUUM ANALYZE cubepi_messages, cubepi_runs, cubepi_threads")
        finally:
            await connection.close()
        return fixtures.run_id(runs)

    async def fork(self, source: str, new: str, *, after_run_id: str) -> None:
        await self._checkpointer.fork(source, new, after_run_id=after_run_id)

    async def load(self, thread_id: str) -> int:
        data = await self._checkpointer.load(thread_id)
        return len(data.messages) if data else 0

    async def run(self, thread_id: str, run_id: str) -> None:
        await self._checkpointer.claim_run(thread_id, run_id)
        await self._checkpointer.load(thread_id)
        for message in _turn(run_id, 1):
            await self._checkpointer.append(thread_id, [message])
        await self._checkpointer.mark_run_complete(thread_id, run_id)

    async def row_bytes(self, thread_id: str) -> int:
        connection = await asyncpg.connect(self._url)
        try:
            return int(await connection.fetchval(ROW_BYTES, thread_id))
        finally:
            await connection.close()


@asynccontextmanager
async def connect(lab: Lab) -> AsyncIterator[CubeloopStore]:
    """Open a store on a database of its own. The schema is made by the DDL that a host's migration would execute."""
    url = await lab.database("cubeloop")
    connection = await asyncpg.connect(url)
    try:
        if await connection.fetchval("SELECT to_regclass('cubepi_threads') IS NULL"):
            await connection.execute(_schema())
    finally:
        await connection.close()
    async with PostgresCheckpointer(url) as checkpointer:
        yield CubeloopStore(checkpointer, url)


def _schema() -> str:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    tables = cubeloop_metadata.sorted_tables
    statements = [str(CreateTable(table).compile(dialect=dialect)) for table in tables]
    statements += [str(CreateIndex(index).compile(dialect=dialect)) for table in tables for index in table.indexes]
    statements += [create_message_partitions_op(), create_runs_partitions_op(), write_schema_version_op()]
    return ";\n".join(statements)


def _turn(run_id: str, number: int) -> tuple[Message, Message]:
    return (
        UserMessage(content=[TextContent(text=fixtures.prompt(number))], run_id=run_id),
        AssistantMessage(content=[TextContent(text=fixtures.answer(number))], run_id=run_id),
    )


def _rows(thread_id: str, runs: int) -> Iterator[tuple[str, int, str, str, bytes, str]]:
    for number in range(1, runs + 1):
        run_id = fixtures.run_id(number)
        for offset, message in enumerate(_turn(run_id, number)):
            payload = msgpack.packb(message.model_dump(mode="json"), use_bin_type=True)
            yield thread_id, 2 * number - 1 + offset, message.role, json.dumps(message.metadata), payload, run_id
