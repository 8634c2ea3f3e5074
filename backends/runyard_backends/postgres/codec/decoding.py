"""Rows that cannot be decoded: an error that names the row, or an entry of a list without the damaged fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import msgpack

from runyard.errors import DataCorruptedError
from runyard.models import AttemptInfo, HitlRequest, Run, Thread

from .values import Row

Decoded = TypeVar("Decoded")

Entry = TypeVar("Entry", Run, Thread, HitlRequest, AttemptInfo)

UNDECODABLE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgpack.UnpackException)
"""Errors of decoding a row that runyard did not write; pydantic's errors are ValueErrors."""

_NAMES: Final = ("thread_id", "run_id", "request_id", "step_key")
"""Columns that identify a row in an error."""

_MADE_OF: Final = {"body": ("payload", "answer_schema", "on_deadline")}
"""Fields whose column has another name."""


def named(what: str) -> Callable[[Callable[[Row], Decoded]], Callable[[Row], Decoded]]:
    """Decorate a decoder of rows: if it cannot decode a row, it raises DataCorruptedError, which names the row."""

    def decorate(decode: Callable[[Row], Decoded]) -> Callable[[Row], Decoded]:
        @wraps(decode)
        def decoder(row: Row) -> Decoded:
            try:
                return decode(row)
            except UNDECODABLE as error:
                names = {name: row[name] for name in _NAMES if row.get(name) is not None}
                where = ", ".join(f"{name} {value}" for name, value in names.items())
                message = (
                    f"the {what} with {where} cannot be decoded ({type(error).__name__}); did something else write the row?"
                )
                raise DataCorruptedError(message, **names) from error

        return decoder

    return decorate


def entry(decode: Callable[[Any], Entry], **empty: Any) -> Callable[[Row], Entry]:
    """Decorate a decoder of list entries: fields that cannot be decoded are left empty and named in ``damaged``.

    ``empty``: the columns with encoded values, each with the value that stands for an empty one. The decoder raises
    DataCorruptedError only if the other columns cannot be read.
    """

    def readable(row: Mapping[str, Any]) -> bool:
        try:
            decode(row)
        except DataCorruptedError:
            return False
        return True

    def decoder(row: Row) -> Entry:
        try:
            return decode(row)
        except DataCorruptedError:
            stored = dict(row)
        damaged = [name for name in empty if not readable(stored | empty | {name: stored[name]})]
        entry = decode(stored | {name: empty[name] for name in damaged})
        entry.damaged = sorted(field for name in damaged for field in _MADE_OF.get(name, (name,)))
        return entry

    return decoder
