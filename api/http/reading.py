"""JSON from outside, bounded before anything is built of it (semantics: A2).

A body has room for millions of values, and for numbers that take longer to convert than to send. Both are found piece by piece
while it arrives. Of a body that holds too many, no more is looked at or kept than holds as many as may be. Depth is bounded by
the parser, which stops where it is exceeded.
"""

from __future__ import annotations

import math
from typing import Any, Final

from pydantic_core import from_json

from runner.bounds import MAX_VALUES

MOST_VALUES: Final = 2 * MAX_VALUES
"""Values in one body, the members of lists and objects counted: while they are checked, nobody else is answered."""
MAX_DIGITS: Final = 100
"""Digits of a number. Readers of JSON convert long ones in more than linear time, or not at all."""

OUT_OF_BOUNDS: Final = "body_out_of_bounds"
"""In the state of a request: what is wrong with its body, which is not kept then."""

_BEGINNINGS: Final = b",[{"
"""A value comes first, or after one of these."""
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0" * 10)
_TOO_LONG: Final = b"0" * (MAX_DIGITS + 1)


def read(body: bytes) -> Any:
    """The value that ``body`` is; its :class:`Shape` was checked. Raises ValueError for what is no JSON, NaN and infinity."""
    value = from_json(body, allow_inf_nan=False)
    _check_finite(value)
    return value


class Shape:
    """Counts what stands outside of strings. It is right up to the first place where the text is no JSON, beyond which nobody
    reads."""

    def __init__(self) -> None:
        self._in_string = False
        self._escape = b""
        """A backslash at the end of a piece: what it escapes comes with the next."""
        self._number = b""
        """The end of a piece, where a number may go on."""
        self._quotes = self._values = 0

    def feed(self, piece: bytes) -> None:
        """Raises ValueError from the value after MOST_VALUES values on, and for a number of more than MAX_DIGITS digits."""
        if b"\\" in piece or self._escape:
            piece = self._without_escapes(self._escape + piece)
        parts = piece.split(b'"')
        outside = b" ".join(parts[self._in_string :: 2])
        self._quotes += len(parts) - 1
        self._in_string = self._quotes % 2 == 1
        self._values += len(outside) - len(outside.translate(None, _BEGINNINGS))
        if self._values >= MOST_VALUES or self._quotes > 4 * MOST_VALUES:  # two for each value and each name
            raise ValueError(f"more than {MOST_VALUES} values; keep large data elsewhere and send a reference")
        if _TOO_LONG in (self._number + outside).translate(_DIGITS):
            raise ValueError(f"a number has more than {MAX_DIGITS} digits; make it a string")
        self._number = b"" if self._in_string else (self._number + outside)[-MAX_DIGITS:]

    def _without_escapes(self, piece: bytes) -> bytes:
        self._escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        return piece.removesuffix(self._escape).replace(rb"\\", b"").replace(rb"\"", b"")


def _check_finite(value: Any) -> None:
    """Raises ValueError for a number that is too large for a float."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
        elif isinstance(found, float) and math.isinf(found):
            raise ValueError("a number is too large")
