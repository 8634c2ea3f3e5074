"""The data of threads in a database of cubepi or cubeloop. These classes are the same for SQLite and Postgres."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol

from runyard.errors import DataCorruptedError
from runyard.models import JsonObject

VERSIONS: Final = (3, 4, 5)
"""Versions of cubepi's schema that can be imported. Version 4 added runs and forks, version 5 the answers of requests."""
ROWS_PER_READ: Final = 100
"""Messages per read."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run. ``completion_seq``: its completion number, or None if it has not completed. The times are texts."""

    run_id: str
    completion_seq: int | None
    claimed_at: str | None
    completed_at: str | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The number of messages of one run, and the first and the last row of these messages. All messages without a run together
    also have one Bounds object."""

    messages: int
    first_row: int
    last_row: int


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """An answer in the ledger. ``run_id``: None for an answer without a run."""

    run_id: str | None
    question_id: str
    answer: Any


@dataclass(frozen=True, slots=True)
class SourceThread:
    """A thread without its messages. ``bounds``: the bounds of the messages by run id. ``request``: the pending request.
    ``request_run_id``: the run id of the request."""

    thread_id: str
    extra: JsonObject
    parent_thread_id: str | None
    request: JsonObject | None
    request_run_id: str | None
    runs: Sequence[SourceRun]
    answers: Sequence[SourceAnswer]
    bounds: Mapping[str | None, Bounds] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        return sum(each.messages for each in self.bounds.values())

    @property
    def last_row(self) -> int:
        return max((each.last_row for each in self.bounds.values()), default=0)

    @property
    def digest(self) -> str:
        """A digest of all imported data. The source never changes messages. The digest therefore has only their number and
        their last row."""
        said = [
            [self.extra, self.parent_thread_id, self.request, self.request_run_id],
            [[run.run_id, run.completion_seq] for run in self.runs],
            [[answer.run_id, answer.question_id, answer.answer] for answer in self.answers],
            [self.messages, self.last_row],
        ]
        return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class SourceMessage:
    """A message: its row, its run id, and the JSON object of its fields."""

    row: int
    run_id: str | None
    fields: JsonObject


class Source(Protocol):
    """A database to import from.

    ``version``: the version of its schema. ``thread_ids`` returns the ids of threads that come after the id ``after``, in
    order. ``thread`` returns a thread without its messages, or None if the thread does not exist. ``page`` returns the messages
    after the row ``after``, up to the row ``last``, in order. A row that cannot be read raises DataCorruptedError.
    """

    version: int

    async def thread_ids(self, after: str, limit: int) -> list[str]: ...
    async def thread(self, thread_id: str) -> SourceThread | None: ...
    async def page(self, thread_id: str, after: int, last: int) -> list[SourceMessage]: ...
    async def close(self) -> None: ...


@cache
def statements(database: str) -> dict[str, str]:
    """Load the statements of ``sqlite.sql`` or ``postgres.sql`` by name, without their comments."""
    text = files("runyard_backends.cubepi").joinpath(f"{database}.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n", "", part.strip(), flags=re.MULTILINE)
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def read_json(text: Any, what: str) -> Any:
    """Return the JSON value of a column. Raises DataCorruptedError if the column is not JSON."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataCorruptedError(f"{what} is not JSON: {type(error).__name__}", row=what) from None


def read_object(text: Any, what: str) -> JsonObject:
    """Return the JSON object of a column. Raises DataCorruptedError if the column is not a JSON object."""
    value = read_json(text, what)
    if not isinstance(value, dict):
        raise DataCorruptedError(f"{what} is not a JSON object", row=what)
    return value


def made_thread(
    thread_id: str,
    *,
    extra: Any,
    parent_thread_id: str | None,
    request: Any,
    request_run_id: str | None,
    runs: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]],
    bounds: Sequence[Mapping[str, Any]],
) -> SourceThread:
    """Return a thread for the rows of a database. ``extra`` and ``request``: JSON text, or None."""
    return SourceThread(
        thread_id=thread_id,
        extra=read_object(extra, f"the extra of thread {thread_id}") if extra is not None else {},
        parent_thread_id=parent_thread_id,
        request=read_object(request, f"the pending request of thread {thread_id}") if request is not None else None,
        request_run_id=request_run_id if request is not None else None,
        runs=[SourceRun(row["run_id"], row["completion_seq"], row["claimed_at"], row["completed_at"]) for row in runs],
        answers=[
            SourceAnswer(
                row["run_id"] or None, row["question_id"], read_json(row["answer"], f"an answer of thread {thread_id}")
            )
            for row in answers
        ],
        bounds={row["run_id"]: Bounds(row["messages"], row["first_row"], row["last_row"]) for row in bounds},
    )
