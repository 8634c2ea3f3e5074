"""Decoders for rows that can be damaged. The decoder of a single row raises an error with the name of the row. The decoder of a
list entry leaves the damaged fields empty."""

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
"""Exceptions that decoding a damaged row can raise. ValueError includes the errors of pydantic."""

_NAMES: Final = ("thread_id", "run_id", "request_id", "step_key")
"""Columns that identify a row in an error."""

_MADE_OF: Final = {"body": ("payload", "answer_schema", "on_deadline"), "stored_input": ("input",)}
"""The fields that are decoded from each column. A column that is missing here has one field of the same name."""


def named(what: str) -> Callable[[Callable[[Row], Decoded]], Callable[[Row], Decoded]]:
    """Return a decorator for a decoder of rows. The decorated decoder raises DataCorruptedError for a row that cannot be
    decoded. The message names the row. ``what``: the kind of row, for the message."""

    def decorate(decode: Callable[[Row], Decoded]) -> Callable[[Row], Decoded]:
        @wraps(decode)
        def decoder(row: Row) -> Decoded:
            try:
                return decode(row)
            except UNDECODABLE as error:
                names = {name: row[name] for name in _NAMES if row.get(name) is not None}
                where = ", ".join(f"{name} {value}" for name, value in names.items())
                message = (
                    f"the {what} with {where} cannot be decoded ({type(error).__name__}); did another program write the row?"
                )
                raise DataCorruptedError(message, **names) from error

        return decoder

    return decorate


def entry(decode: Callable[[Any], Entry], **empty: Any) -> Callable[[Row], Entry]:
    """Return a decoder of list entries that uses ``decode``, a decoder of rows. The entry's field ``damaged`` lists the fields
    that cannot be decoded. These fields are empty.

    ``empty``: the encoded value of an empty field, by column. The decoder raises DataCorruptedError if it cannot decode a
    column that ``empty`` does not list.
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
