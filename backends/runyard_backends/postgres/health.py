"""Facts about a Postgres server and the schema in it, for an operator."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from runyard.errors import BackendUnavailableError, SchemaError
from runyard.ports.workers import FeedDelay

from .database import Database
from .migrate import check_schema, edited_objects


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """Facts about a Postgres server. ``max_connections``: the number of connections for roles that are not superusers.
    ``connections``: the number of open connections. ``clock_ahead``: seconds by which the server's clock is ahead of this
    machine's clock. ``round_trip``: seconds for reading the server's clock. ``clock_ahead`` can be wrong by half of
    ``round_trip``. ``no_timeout``: the timeouts that are not set in the sessions of runyard. ``schema``: the version of the
    schema, or None. ``schema_trouble``: the reason why this code cannot run on the schema, or None if it can. ``edited``: the
    functions and triggers that were changed by hand after ``runyard migrate``. ``leader``: the id of the worker that holds the
    leader's lease, or None. ``feed_delay``: the delay of the feed."""

    version: str
    in_recovery: bool
    fsync: str
    synchronous_commit: str
    max_connections: int
    connections: int
    clock_ahead: float
    round_trip: float
    no_timeout: list[str]
    schema: int | None
    schema_trouble: str | None
    edited: tuple[str, ...]
    leader: str | None
    feed_delay: FeedDelay


async def diagnose(url: str) -> PostgresFacts:
    """Read the facts of the server at ``url`` over a separate connection. Raises BackendUnavailableError, InvalidInputError."""
    try:
        db = await _connect(url)
    except BackendUnavailableError as error:
        if not isinstance(error.__cause__, asyncpg.ReadOnlySQLTransactionError):
            raise
        db = await _connect(url, target_session_attrs="any")  # the facts show that the server takes no writes
    try:
        await db.one("server_facts")
        asked, began = datetime.now().astimezone(), time.monotonic()
        row = dict(await db.one("server_facts"))
        took = time.monotonic() - began
        trouble = None
        try:
            await check_schema(db)
        except SchemaError as error:
            trouble = error.message
        exists = await db.value("schema_exists")
        return PostgresFacts(
            clock_ahead=(row.pop("now") - asked).total_seconds() - took / 2,
            round_trip=took,
            schema=await db.value("schema_version") if exists else None,
            schema_trouble=trouble,
            edited=await _edited(db) if trouble is None else (),
            leader=await db.value("leader") if trouble is None else None,
            feed_delay=FeedDelay(**await db.one("feed_delay")) if trouble is None else FeedDelay(),
            **row,
        )
    finally:
        await db.close()


async def _connect(url: str, **settings: Any) -> Database:
    return await Database.connect(url, min_pool_size=1, max_pool_size=1, command_timeout=5.0, name="runyard-doctor", **settings)


async def _edited(db: Database) -> tuple[str, ...]:
    return tuple(edited_objects(await db.rows("functions_applied"), await db.rows("functions_stored")))
