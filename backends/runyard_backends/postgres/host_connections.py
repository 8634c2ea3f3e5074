"""Accept a run on a connection of a host. A host uses asyncpg, psycopg 3, or SQLAlchemy with one of these drivers.

The run exists if the host's transaction commits. This module never commits, rolls back or closes a connection.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import asyncpg

from runyard.errors import (
    BackendUnavailableError,
    InvalidInputError,
    LockedError,
    RunyardError,
    SchemaMismatch,
    SchemaUninitialized,
    from_dict,
)
from runyard.support.class_origins import is_of

from ..codec.values import Row, to_json
from .codec.run_requests import RunRequest
from .database import statements
from .driver_errors import REFUSED, translated

T = TypeVar("T")

CANCEL_SECONDS: Final = 0.5
"""Seconds until a cancel of a statement is repeated. If a cancel reaches Postgres between two statements, it has no effect."""
ACCEPTED: Final = (
    "an open connection of asyncpg or psycopg 3, a connection or a session of SQLAlchemy with one of these drivers, "
    "or django.db.connection with psycopg 3"
)
_JSONB: Final = frozenset({"options", "metadata", "fork"})
"""The attributes of a RunRequest that contain JSON as text."""
_JSONB_COLUMNS: Final = ("options", "metadata", "error", "usage")
"""The columns of a run that are decoded from JSON as text."""
_DRIVERS: Final = frozenset({"asyncpg", "psycopg", "psycopg_async"})
"""SQLAlchemy's names of the drivers."""
_BY_SQLSTATE: Final[dict[str, type[RunyardError]]] = {
    "55P03": LockedError,
    "3F000": SchemaUninitialized,
    "42P01": SchemaUninitialized,
    "42704": SchemaUninitialized,
    "42883": SchemaMismatch,
    "42703": SchemaMismatch,
}


async def accept_on(connection: Any, tenant: str, request: RunRequest) -> tuple[bool, Row]:
    """Accept a run in the transaction of ``connection``. Return True if the run is new, and the row of the run.

    Raises InvalidInputError if ``connection`` is not of asyncpg, of psycopg 3, or of SQLAlchemy with one of these drivers. Also
    raises the errors of ``runyard.accept_request``.
    """
    if is_of(connection, "sqlalchemy"):
        connection = await _beneath_sqlalchemy(connection)
    if isinstance(connection, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        with translated():
            accepted = await connection.fetchrow(statements()["accept_request"], tenant, _as_json(request))
            run = await connection.fetchrow(statements()["run"], tenant, request.thread_id, request.run_id)
            return _of_rows((accepted, run))
    if is_of(connection, "psycopg"):
        import psycopg

        found = (tenant, request.thread_id, request.run_id)
        calls = ((_of_psycopg("accept_request"), (tenant, _as_json(request))), (_of_psycopg("run"), found))
        if isinstance(connection, psycopg.AsyncConnection):
            return await _psycopg_async(connection, calls)
        if isinstance(connection, psycopg.Connection):
            return await _in_thread(lambda: _psycopg_sync(connection, calls), cancel=lambda: _cancel(connection))
    raise InvalidInputError(f"connection is {ACCEPTED}; got {_name_of(connection)}", field="connection")


Calls = Sequence[tuple[str, tuple[Any, ...]]]


async def _psycopg_async(connection: Any, calls: Calls) -> tuple[bool, Row]:
    from psycopg import AsyncCursor
    from psycopg.rows import dict_row

    with _translated_psycopg():
        async with AsyncCursor(connection, row_factory=dict_row) as cursor:
            _load_aware(cursor)
            rows = [await (await cursor.execute(sql, args)).fetchone() for sql, args in calls]
    return _of_rows(rows)


def _psycopg_sync(connection: Any, calls: Calls) -> tuple[bool, Row]:
    from psycopg import Cursor
    from psycopg.rows import dict_row

    with _translated_psycopg(), Cursor(connection, row_factory=dict_row) as cursor:
        _load_aware(cursor)
        rows = [cursor.execute(sql, args).fetchone() for sql, args in calls]
    return _of_rows(rows)


def _cancel(connection: Any) -> None:
    """Cancel the statement of a connection of psycopg. Errors are ignored, because the statement has also ended if the server
    is lost."""
    import psycopg

    with suppress(psycopg.Error):
        connection.cancel()


def _load_aware(cursor: Any) -> None:
    """Set a loader on ``cursor`` that keeps the UTC offset of times. The host's loader may drop the offset, as Django's does
    without ``USE_TZ``."""
    from psycopg.types.datetime import TimestamptzLoader

    cursor.adapters.register_loader("timestamptz", TimestamptzLoader)


async def _in_thread(call: Callable[[], T], *, cancel: Callable[[], None] | None = None) -> T:
    """Execute ``call`` in a separate thread and return its result. ``cancel``: a function that ends the statement for which
    ``call`` waits.

    The host may use its connection as soon as this function ends. Therefore a cancelled call of this function first waits for
    the end of ``call``.
    """
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor(2, "runyard-host")
    running = loop.run_in_executor(threads, copy_context().run, call)

    async def end() -> None:
        while not running.done():
            if cancel is not None:
                await loop.run_in_executor(threads, cancel)
            await asyncio.wait({running}, timeout=CANCEL_SECONDS)

    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        ending = loop.create_task(end())
        while not ending.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(ending)
        raise
    finally:
        threads.shutdown(wait=False)


def _of_psycopg(name: str) -> str:
    """Return a statement with psycopg's placeholders. Each parameter of the statement must occur once, in order."""
    return re.sub(r"\$\d", "%s", statements()[name])


def _of_rows(rows: Sequence[Any]) -> tuple[bool, Row]:
    """Return a pair: True if the run is new, and the row of the run. The row has jsonb as text and times in UTC. A codec of
    the host may have decoded the jsonb or removed the UTC offset of times. This function reverses such changes.
    """
    accepted, run = rows
    row = {name: _in_utc(value) if isinstance(value, datetime) else value for name, value in run.items()}
    decoded = [name for name in _JSONB_COLUMNS if row[name] is not None and not isinstance(row[name], str)]
    return bool(accepted["created"]), {**row, **{name: to_json(row[name]) for name in decoded}}


def _in_utc(value: datetime) -> datetime:
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


async def _beneath_sqlalchemy(given: Any) -> Any:
    """Return the driver's connection of a connection or session of SQLAlchemy, in a transaction that SQLAlchemy has begun.

    SQLAlchemy begins a transaction at its own first statement, and commits no other transaction.
    """
    from sqlalchemy.engine import Connection
    from sqlalchemy.orm import Session, scoped_session

    if isinstance(given, scoped_session):
        raise _scoped(given)
    if is_of(given, "sqlalchemy.ext.asyncio"):
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(given, async_scoped_session):
            raise _scoped(given)
        if isinstance(given, AsyncSession):
            given = await given.connection()
        if isinstance(given, AsyncConnection) and given.dialect.driver in _DRIVERS:
            await given.exec_driver_sql("SELECT 1")
            return (await given.get_raw_connection()).driver_connection
    if not isinstance(given, Session | Connection):
        return given

    def begun() -> Any:
        connection = given.connection() if isinstance(given, Session) else given
        if connection.dialect.driver not in _DRIVERS:
            return connection
        connection.exec_driver_sql("SELECT 1")
        return connection.connection.driver_connection

    return await _in_thread(begun)


def _scoped(given: Any) -> InvalidInputError:
    return InvalidInputError(
        f"a scoped session is a different session in each thread or task; pass the session itself: connection=Session(); "
        f"got {_name_of(given)}",
        field="connection",
    )


def _as_json(request: RunRequest) -> str:
    """Return ``request`` as a JSON object. Postgres makes a ``runyard.request`` from this object."""
    fields = (
        f"{json.dumps(name)}: {value if name in _JSONB and value is not None else json.dumps(value, default=_text)}"
        for name, value in request._asdict().items()
    )
    return "{" + ", ".join(fields) + "}"


def _text(value: Any) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


@contextmanager
def _translated_psycopg() -> Iterator[None]:
    """Replace errors of psycopg in the block by runyard's errors."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        state, said = error.sqlstate or "", error.diag
        if state == REFUSED:
            refused = {"code": said.message_hint, "message": said.message_primary}
            raise from_dict({**refused, "details": json.loads(said.message_detail or "{}")}) from error
        if cls := _BY_SQLSTATE.get(state):
            raise cls(f"Postgres refused the statement: {said.message_primary}") from error
        if isinstance(error, psycopg.DataError):
            raise InvalidInputError(f"a value cannot be stored: {said.message_primary or error}") from error
        if isinstance(error, psycopg.OperationalError):
            raise BackendUnavailableError(f"Postgres cannot be reached: {error}") from error
        raise


def _name_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
