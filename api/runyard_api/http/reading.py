"""Reads the JSON of requests. Its bounds are checked before it is parsed (A2).

A body can have millions of values, and numbers that take longer to convert than to send. The values, and the digits of each
number, are counted piece by piece while the body arrives. Beyond a bound, the rest of the body is neither checked nor kept. The
parser bounds the depth.
"""

from __future__ import annotations

import math
from typing import Any, Final

from pydantic_core import from_json

from runyard.domain.size_limits import MAX_VALUES

MAX_BODY_VALUES: Final = 2 * MAX_VALUES
"""Most values in one body, with members of lists and objects. A process that checks them answers no other request meanwhile."""
MAX_DIGITS: Final = 100
"""Most digits of a number. Parsers of JSON need more than linear time for long ones, or refuse them."""

OUT_OF_BOUNDS: Final = "body_out_of_bounds"
"""Key in the state of a request: the reason why its body is out of bounds and was not kept."""

_BEGINNINGS: Final = b",[{"
"""Bytes that precede a value. Only the first value of a body has none before it."""
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0" * 10)
_TOO_LONG: Final = b"0" * (MAX_DIGITS + 1)


def read(body: bytes) -> Any:
    """Parse ``body`` after its :class:`Shape` was checked. Raises ValueError for bytes that are not JSON, NaN and infinity."""
    value = from_json(body, allow_inf_nan=False)
    _check_finite(value)
    return value


class Shape:
    """Counts the values, levels and digits outside of strings. The counts are right up to the first syntax error."""

    def __init__(self) -> None:
        self._in_string = False
        self._escape = b""
        """A backslash at the end of a piece, which escapes the first byte of the next piece."""
        self._number = b""
        """The end of a piece, if a number may continue in the next."""
        self._quotes = self._values = 0

    def feed(self, piece: bytes) -> None:
        """Count ``piece``. Raises ValueError for more than MAX_BODY_VALUES values, and for more than MAX_DIGITS digits."""
        if b"\\" in piece or self._escape:
            piece = self._without_escapes(self._escape + piece)
        parts = piece.split(b'"')
        outside = b" ".join(parts[self._in_string :: 2])
        self._quotes += len(parts) - 1
        self._in_string = self._quotes % 2 == 1
        self._values += len(outside) - len(outside.translate(None, _BEGINNINGS))
        if self._values >= MAX_BODY_VALUES or self._quotes > 4 * MAX_BODY_VALUES:  # two for each value and each name
            raise ValueError(f"more than {MAX_BODY_VALUES} values; keep large data elsewhere and send a reference")
        if _TOO_LONG in (self._number + outside).translate(_DIGITS):
            raise ValueError(f"a number has more than {MAX_DIGITS} digits; make it a string")
        self._number = b"" if self._in_string else (self._number + outside)[-MAX_DIGITS:]

    def _without_escapes(self, piece: bytes) -> bytes:
        self._escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        return piece.removesuffix(self._escape).replace(rb"\\", b"").replace(rb"\"", b"")


def _check_finite(value: Any) -> None:
    """Raise ValueError for a number that is too large for a float."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
        elif isinstance(found, float) and math.isinf(found):
            raise ValueError("a number is too large")
