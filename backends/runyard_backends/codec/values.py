"""Encode and decode the values of columns: msgpack and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import msgpack

from runyard.errors import InvalidInputError


class Row(Protocol):
    """A row of a query. Its columns have names and an order. A dict and a record of asyncpg are rows."""

    def __getitem__(self, column: Any, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def get(self, column: str, /) -> Any: ...


_POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

_JSON: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def pack(value: Any) -> bytes:
    """Encode a value with msgpack. Strings can contain lone surrogates. Raises InvalidInputError if msgpack cannot encode
    it."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"value cannot be stored: {error}") from error
    return packed


def unpack(data: bytes) -> Any:
    """Decode a value that :func:`pack` encoded, or a JSON object that a stored function wrote. A single byte ``{`` is not JSON,
    but msgpack for 123."""
    if data[:1] == b"{" and len(data) > 1:
        return json.loads(data)
    return msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="surrogatepass")


def moment(data: bytes) -> datetime:
    """Decode a time that Postgres encoded: its microseconds since 2000, as a 64-bit integer."""
    return _POSTGRES_EPOCH + timedelta(microseconds=int.from_bytes(data, "big", signed=True))


def to_json(value: Any) -> str:
    """Encode a value as JSON for a jsonb column. Raises InvalidInputError for the values that jsonb cannot store: NUL
    characters, lone surrogates, NaN and infinity."""
    try:
        text = _JSON.encode(value)
        text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"value cannot be stored as JSON: {error}") from error
    # The six characters \u0000 are valid in a text: JSON encodes their backslash as two backslashes.
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
        raise InvalidInputError("JSON values must not contain NUL characters")
    return text


def from_json(text: str | None) -> Any:
    """Decode the value of a jsonb column."""
    return None if text is None else json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int | float:
    """Decode a number without a fraction. If the number does not fit into 64 bits, return a float. Such a number was stored as
    a float, because jsonb writes a float such as 1e20 with all its digits."""
    return int(digits) if len(digits) < 20 or -(2**63) <= int(digits) < 2**64 else float(digits)


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
