"""Map errors of asyncpg to errors of runyard, and decide which of them are transient.

A transient error becomes BackendUnavailableError, and :mod:`runyard.support.store_retries` repeats the call. A refusal by a
stored function becomes the typed error that the function names. :func:`undone_again` repeats a statement that Postgres has
undone because of a deadlock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import asyncpg

from runyard.errors import (
    BackendUnavailableError,
    InvalidInputError,
    LockedError,
    LoginRefusedError,
    RunyardError,
    SchemaMismatch,
    SchemaUninitialized,
    from_dict,
)
from runyard.support.store_retries import jittered

T = TypeVar("T")

_DEADLOCK_PAUSE_SECONDS: Final = 0.05
"""Seconds between a deadlock and the repetition of the statement. In this time, the other statements get the locks."""

DRIVER_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)

REFUSED = "RY000"
"""SQLSTATE of a refusal by a stored function. Its HINT is the error code, and its DETAIL has the details as JSON."""


def translate(error: BaseException) -> RunyardError | None:
    """Return runyard's error for an error of the driver. Return None for any other error. Such an error shows a defect, and the
    caller raises it unchanged."""
    match error:
        case asyncpg.PostgresError() if error.sqlstate == REFUSED:
            return from_dict({"code": error.hint, "message": error.args[0], "details": json.loads(error.detail or "{}")})
        case asyncpg.InvalidSchemaNameError() | asyncpg.UndefinedTableError() | asyncpg.UndefinedObjectError():
            return SchemaUninitialized("the database has no runyard schema; run `runyard migrate`")
        case asyncpg.UndefinedFunctionError() | asyncpg.UndefinedColumnError():
            return SchemaMismatch("the database schema is older than this code; run `runyard migrate`")
        case asyncpg.UniqueViolationError() if error.constraint_name == "hitl_responses":
            return InvalidInputError("this response_id was used for another request of the thread; use another id")
        case asyncpg.UntranslatableCharacterError() | asyncpg.CharacterNotInRepertoireError():
            return InvalidInputError("text must not contain NUL characters or lone surrogates")
        case asyncpg.ProgramLimitExceededError():
            return InvalidInputError("a value is too long for its index; use a shorter id or key")
        case asyncpg.InvalidCatalogNameError() | asyncpg.InvalidAuthorizationSpecificationError():
            return LoginRefusedError(f"Postgres refuses the user, the password or the database of its URL: {error}")
        case asyncpg.LockNotAvailableError():
            return LockedError(f"another transaction held a lock for too long; try again later: {error}")
        case asyncpg.ReadOnlySQLTransactionError():
            return BackendUnavailableError(f"Postgres takes no writes: {error}")
        case asyncpg.QueryCanceledError():
            return BackendUnavailableError(f"Postgres ended a statement before its reply: {error}")
        case asyncpg.CheckViolationError() if error.constraint_name == "moment_check":
            return InvalidInputError("a time must be in the years 1970 to 9099")
        case asyncpg.DataError():
            return InvalidInputError(f"a value cannot be stored: {error}")
        case (
            asyncpg.PostgresConnectionError()
            | asyncpg.InterfaceError()
            | asyncpg.InternalClientError()  # the connection was lost during a statement
            | asyncpg.AdminShutdownError()
            | asyncpg.CannotConnectNowError()
            | asyncpg.CrashShutdownError()
            | asyncpg.InsufficientResourcesError()
            | asyncpg.TransactionRollbackError()
            | asyncpg.IdleSessionTimeoutError()
            | asyncpg.IdleInTransactionSessionTimeoutError()
            | OSError()
            | TimeoutError()
        ):
            return BackendUnavailableError(f"Postgres cannot be reached: {str(error) or 'no answer in time'}")
        case _:
            return None


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Replace errors of the driver in the block by runyard's errors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        mapped = translate(error)
        if mapped is None:
            raise
        raise mapped from error


async def undone_again(send: Callable[[], Awaitable[T]]) -> T:
    """Send a statement that is a whole transaction. If Postgres undoes it because of a deadlock, repeat it at most twice."""
    for _ in range(2):
        with contextlib.suppress(asyncpg.TransactionRollbackError):
            return await send()
        await asyncio.sleep(jittered(_DEADLOCK_PAUSE_SECONDS))
    return await send()
