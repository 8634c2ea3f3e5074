"""Reads of a SQLite database of cubepi or cubeloop. The database is opened read-only. Each page is read in its own
transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from runyard.errors import BackendUnavailableError, InvalidInputError, SchemaUninitialized

from ..sql.sqlite_path import path_of
from .source import ROWS_PER_READ, SourceMessage, SourceThread, made_thread, read_object, statements

T = TypeVar("T")

BUSY_SECONDS: Final = 10.0
"""Seconds to wait for a program that writes to the database."""


class SqliteSource:
    """A database file. Each read opens the file, because a program may replace it."""

    def __init__(self, path: Path, columns: dict[str, set[str]]) -> None:
        self._path, self._columns = path, columns
        runs = "runs" in columns and "run_id" in columns["messages"]
        self.version = 5 if runs and "thread_hitl_answers" in columns else 4 if runs else 3

    @classmethod
    async def open(cls, url: str) -> SqliteSource:
        """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

        Raises InvalidInputError for a file that does not exist. Raises SchemaUninitialized for a database without cubepi's
        tables.
        """
        path = path_of(url)
        if not await asyncio.to_thread(path.is_file):
            raise InvalidInputError(f"there is no file {str(path)!r}", field="url")
        columns: dict[str, set[str]] = defaultdict(set)
        for row in await asyncio.to_thread(_with, path, lambda db: db.execute(statements("sqlite")["columns"]).fetchall()):
            columns[row["table"]].add(row["column"])
        if not {"messages", "thread_extra"} <= set(columns) or "message_json" not in columns["messages"]:
            raise SchemaUninitialized(f"{path.name} has no tables of cubepi's or cubeloop's SQLiteCheckpointer")
        return cls(path, dict(columns))

    async def thread_ids(self, after: str, limit: int) -> list[str]:
        rows = await self._read(lambda db: self._rows(db, "threads", after, limit))
        return [row["thread_id"] for row in rows]

    async def thread(self, thread_id: str) -> SourceThread | None:
        return await self._read(lambda db: self._thread(db, thread_id))

    async def page(self, thread_id: str, after: int, last: int) -> list[SourceMessage]:
        rows = await self._read(lambda db: self._rows(db, "messages", thread_id, after, last, ROWS_PER_READ))
        made = []
        for row in rows:
            fields = read_object(row["payload"], f"messages.id={row['row']}")
            made.append(SourceMessage(row["row"], row["run_id"], {**fields, "run_id": row["run_id"]}))
        return made

    async def close(self) -> None:
        """Do nothing, because each read closes the file."""

    def _thread(self, db: sqlite3.Connection, thread_id: str) -> SourceThread | None:
        db.execute("BEGIN")  # all reads of this transaction see one state
        extra = self._rows(db, "thread", thread_id)
        pending = self._rows(db, "pending", thread_id)
        runs = self._rows(db, "runs", thread_id) if self.version >= 4 else []
        answers = self._rows(db, "answers", thread_id) if self.version >= 5 else []
        bounds = self._rows(db, "bounds", thread_id)
        if not (extra or pending or runs or bounds):
            return None
        return made_thread(
            thread_id,
            extra=extra[0]["extra"] if extra else None,
            parent_thread_id=extra[0]["parent_thread_id"] if extra else None,
            request=pending[0]["request"] if pending else None,
            request_run_id=pending[0]["run_id"] if pending else None,
            runs=runs,
            answers=answers,
            bounds=bounds,
        )

    def _rows(self, db: sqlite3.Connection, name: str, *args: Any) -> list[Any]:
        if name == "pending" and "thread_pending_request" not in self._columns:
            return []
        old = {
            "threads": self.version < 4,
            "bounds": self.version < 4,
            "messages": self.version < 4,
            "thread": "parent_thread_id" not in self._columns["thread_extra"],
        }
        if name == "pending" and "run_id" not in self._columns["thread_pending_request"]:
            name = "pending_v2"
        elif old.get(name):
            name = f"{name}_v3"
        stored = [arg.encode("utf-8", "surrogateescape") if isinstance(arg, str) else arg for arg in args]
        return db.execute(statements("sqlite")[name], stored).fetchall()

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(_with, self._path, work)


def _with(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Call ``work`` with a connection that cannot write."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
            db.row_factory = sqlite3.Row
            db.text_factory = _text
            return work(db)
    except sqlite3.DatabaseError as error:
        raise BackendUnavailableError(f"cannot read {path.name}: {error}") from None


def _text(stored: bytes) -> str:
    """Return a stored text. In a text that is not UTF-8, an invalid byte becomes a lone surrogate. A store of runyard then
    refuses the text."""
    return stored.decode("utf-8", "surrogateescape")
