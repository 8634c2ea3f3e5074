"""Transactions of a SQL store, and the values of its rows.

A verb of a store is a function that takes a :class:`Transaction`. :class:`Database` calls the verb in one transaction. If other
transactions make the server roll back the transaction, the Database calls the verb again. A verb must therefore change nothing
except by its statements. The functions of :mod:`.threads` lock a thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from runyard.errors import InvalidInputError
from runyard.ports.branches import ImportLock

from ..statements import named_statements

T = TypeVar("T")

Row: TypeAlias = dict[str, Any]
Values: TypeAlias = Sequence[Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_INTEGERS: Final = range(-(2**63), 2**63)
LAST: Final = 2**63 - 1
"""A number above all message numbers and completion numbers."""


@cache
def statements() -> dict[str, str]:
    """Return the statements of ``queries.sql`` by name."""
    return named_statements("runyard_backends.sql")


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a statement that changes rows. ``count``: the number of rows. ``key``: the key of an added row."""

    count: int
    key: int


class DuplicateKeyError(Exception):
    """A row with the same key exists."""


class Transaction(ABC):
    """One transaction. Its methods take the names of statements in ``queries.sql``. Times in arguments and results are
    datetimes."""

    def __init__(self) -> None:
        self._now: datetime | None = None

    @abstractmethod
    async def _read(self, statement: str, values: Values) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Execute a query. Return the names of its columns, and its rows."""

    @abstractmethod
    async def _send(self, statement: str, values: Values) -> Sent:
        """Send a statement that changes rows. Raises DuplicateKeyError."""

    @abstractmethod
    async def _send_many(self, statement: str, rows: Sequence[Values]) -> None:
        """Send a statement once for each of ``rows``."""

    @abstractmethod
    async def _clock(self) -> datetime:
        """Return the time of the store."""

    @abstractmethod
    async def restart(self) -> None:
        """End the transaction, release its locks and begin another transaction. Call it only before the first change."""

    async def now(self) -> datetime:
        """Return the time of the transaction."""
        if self._now is None:
            self._now = await self._clock()
        return self._now

    async def rows(self, name: str, *values: Any) -> list[Row]:
        """Return the rows of a query as mappings from column names."""
        columns, found = await self._read(name, [bound(value) for value in values])
        moments = [column.endswith("_at") for column in columns]
        return [
            {c: moment(v) if m and v is not None else v for c, v, m in zip(columns, row, moments, strict=True)} for row in found
        ]

    async def row(self, name: str, *values: Any) -> Row | None:
        """Return the first row of a query, or None."""
        return next(iter(await self.rows(name, *values)), None)

    async def tuples(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query as tuples, with the values that the driver returns."""
        return (await self._read(name, [bound(value) for value in values]))[1]

    async def send(self, name: str, *values: Any) -> Sent:
        """Send a statement that changes rows. Raises DuplicateKeyError."""
        return await self._send(name, [bound(value) for value in values])

    async def send_many(self, name: str, rows: Sequence[Values]) -> None:
        """Send a statement once for each of ``rows``."""
        if rows:
            await self._send_many(name, [[bound(value) for value in row] for row in rows])


class Database(Protocol):
    """A connected database. ``name``: the name of the database product, for errors. ``page_bytes``: maximum number of bytes of
    a page of a list.

    ``read`` calls a verb that only reads. All reads of the verb see one state. ``write`` calls a verb that changes rows.
    ``long``: True for a verb whose time grows with the length of the thread. Such a verb gets a longer time limit. ``wait``: if
    False, LockedError is raised immediately in two cases: another transaction has locked the whole database, or the server
    rolls back this transaction because of a conflict with another transaction. ``read`` and ``write`` raise LockedError if
    other transactions hold a lock for too long. Both methods raise BackendUnavailableError if the database does not answer.
    ``lock_imports`` takes the lock of a tenant's imports, or raises LockedError.
    """

    name: str
    page_bytes: int

    async def read(self, verb: Callable[[Transaction], Awaitable[T]]) -> T: ...
    async def write(self, verb: Callable[[Transaction], Awaitable[T]], *, long: bool = False, wait: bool = True) -> T: ...
    async def lock_imports(self, tenant: str) -> ImportLock: ...
    async def check(self) -> None: ...
    async def close(self) -> None: ...


def bound(value: Any) -> Any:
    """Return ``value`` as a parameter of a statement. Raises InvalidInputError for a text or a number that no store accepts."""
    if isinstance(value, str):
        if "\0" in value or not _encodable(value):
            raise InvalidInputError("text must not contain NUL characters or lone surrogates")
    elif isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    elif isinstance(value, bool):
        return int(value)
    elif isinstance(value, int) and value not in _INTEGERS:
        raise InvalidInputError(f"a number has more than 64 bits: {value:.3e}")
    return value


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def moment(microseconds: int) -> datetime:
    """Return the value of a time column as a datetime."""
    return _EPOCH + microseconds * _MICROSECOND
