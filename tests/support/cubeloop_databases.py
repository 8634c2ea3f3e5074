"""Databases that the checkpointers of cubepi and cubeloop made, with each version of the schema."""

from __future__ import annotations

import asyncio
from typing import Any

import aiosqlite
import asyncpg
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from tests.support.cubeloop_packages import Package, asked, asking

DOWNGRADES = {
    ("sqlite", 4): ["DROP TABLE thread_hitl_answers"],
    ("sqlite", 3): [
        "DROP TABLE thread_hitl_answers",
        "DROP TABLE runs",
        "ALTER TABLE messages DROP COLUMN run_id",
        "ALTER TABLE thread_extra DROP COLUMN parent_thread_id",
    ],
    ("postgres", 4): ["DROP TABLE cubepi_hitl_answers", "UPDATE cubepi_schema_version SET version = 4"],
    ("postgres", 3): [
        "DROP TABLE cubepi_hitl_answers",
        "DROP TABLE cubepi_runs",
        "ALTER TABLE cubepi_messages DROP COLUMN run_id",
        "UPDATE cubepi_schema_version SET version = 3",
    ],
}
"""Statements that convert a database of version 5 to an earlier version."""


async def downgrade(url: str, version: int) -> None:
    kind, path = ("sqlite", url.removeprefix("sqlite:///")) if url.startswith("sqlite") else ("postgres", url)
    await execute(url if kind == "postgres" else f"sqlite:///{path}", *DOWNGRADES.get((kind, version), ()))


async def execute(url: str, *statements: str) -> None:
    """Send statements to a database that a checkpointer made."""
    if url.startswith("sqlite"):
        async with aiosqlite.connect(url.removeprefix("sqlite:///")) as db:
            for statement in statements:
                await db.execute(statement)
            await db.commit()
        return
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def own_checkpointer(package: Package, url: str) -> Any:
    """The package's own checkpointer for a new or an existing database. Use it with ``async with``."""
    if url.startswith("sqlite"):
        return package.module("checkpointer.sqlite").SQLiteCheckpointer(url.removeprefix("sqlite:///"))
    connection = await asyncpg.connect(url)
    try:
        if await connection.fetchval("SELECT to_regclass('cubepi_threads')") is None:
            await connection.execute(";".join(_schema(package)))
    finally:
        await connection.close()
    return package.module("checkpointer.postgres").PostgresCheckpointer(url, max_pool_size=2)


def _schema(package: Package) -> list[str]:
    """Make the package's tables, as the alembic of a host does."""
    models, helpers = package.module("checkpointer.postgres.models"), package.module("checkpointer.postgres.alembic_helpers")
    metadata = getattr(models, f"{package.name}_metadata")
    dialect = postgresql.dialect()
    made = []
    for table in metadata.sorted_tables:
        made.append(str(CreateTable(table).compile(dialect=dialect)))
        made += [str(CreateIndex(index).compile(dialect=dialect)) for index in table.indexes]
    partitions = [helpers.create_message_partitions_op(), helpers.create_runs_partitions_op()]
    return [*made, *partitions, helpers.write_schema_version_op()]


async def converse(package: Package, cp: Any) -> Any:
    """Make conversations with the package's own agent. Return the provider, which has one more answer.

    ``t``: a thread with a legacy message without a run, two runs with a tool, an unfinished run and extra. ``fork``: a fork of
    ``t`` after the first run, with another run. ``fork2``: a fork of ``fork``. ``asking``: a thread whose run waits for a human
    after an answered question, in another process. ``empty``: a thread that only has extra.
    """
    provider = package.provider
    await cp.append("t", [package.user("legacy", timestamp=1.0), package.user("legacy", timestamp=1.0)])
    agent = package.agent(
        package.calls_for(("c1", "add", {"a": 1, "b": 2})),
        package.says("three"),
        package.says("ok"),
        provider=provider,
        tools=[package.add()],
        checkpointer=cp,
        thread_id="t",
    )
    await agent.prompt("1 + 2?", run_id="r1")
    await agent.prompt("sure?", run_id="r2")
    await cp.claim_run("t", "open")
    await cp.append("t", [package.user("in flight", run_id="open", metadata={"at": [1, None, "ü"]})])
    await cp.save_extra("t", {"colour": "blue", "nothing": None})
    await agent.fork("t", "fork", after_run_id="r1", metadata={"label": "branch"})
    on_fork = package.agent(package.says("on the fork"), provider=provider, checkpointer=cp, thread_id="fork")
    await on_fork.prompt("go on", run_id="f1")
    await on_fork.fork("fork", "fork2", after_run_id="f1")
    await cp.save_extra("empty", {"only": "extra"})
    channel = package.hitl.CheckpointedChannel(checkpointer=cp, thread_id="asking", run_id="q")
    await cp.save_hitl_answer("asking", "earlier", {"k": "v"}, run_id="q")
    asks = package.agent(
        package.calls_for(("c1", "ask_user", asking())),
        provider=provider,
        tools=[package.hitl.ask_user_tool(channel)],
        checkpointer=cp,
        thread_id="asking",
        channel=channel,
    )
    await suspend(asks, cp)
    return provider


async def suspend(agent: Any, cp: Any) -> None:
    running = asyncio.create_task(agent.prompt("go", run_id="q"))
    await asked(cp, "asking", running)
    await agent.detach()
    await running
