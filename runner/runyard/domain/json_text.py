"""Reads JSON from a text of unknown size. Bounds of the text are checked before the text is parsed (A2).

A text can have millions of values. To convert a very long number can take longer than to receive it. :class:`Shape` counts the
values and the digits of each number piece by piece. The parser refuses JSON that is nested too deep.
"""

from __future__ import annotations

import math
from typing import Any, Final

from pydantic_core import from_json

MAX_DIGITS: Final = 100
"""Maximum number of digits of a number. Parsers of JSON refuse longer numbers, or convert them in more than linear time."""
PIECE_BYTES: Final = 2**16
"""Number of bytes of a piece that is counted in one step."""

_BEGINNINGS: Final = b",[{"
"""Bytes that precede a value. No such byte precedes the first value of a text."""
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0" * 10)
_TOO_LONG: Final = b"0" * (MAX_DIGITS + 1)


def read(text: bytes) -> Any:
    """Parse ``text``. Call this function only after :class:`Shape` has accepted the text.

    Raises ValueError for NaN, infinity, lone surrogates, and bytes that are not JSON.
    """
    value = from_json(text, allow_inf_nan=False)
    _check_finite(value)
    return value


class Shape:
    """Counts the values, and the digits of numbers, in a JSON text. The counts are right up to the first syntax error.

    ``most``: the maximum number of values of a text. ``values``: the number of values so far, without the first value.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.values = 0
        self._in_string = False
        self._escape = b""
        """A backslash at the end of the previous piece. This backslash escapes the first byte of the next piece."""
        self._number = b""
        """The last bytes of the previous piece. A number in these bytes may continue in the next piece."""
        self._quotes = 0

    def feed(self, piece: bytes) -> None:
        """Count ``piece``. Raises ValueError for too many values, and for a number of more than MAX_DIGITS digits."""
        if b"\\" in piece or self._escape:
            piece = self._without_escapes(self._escape + piece)
        parts = piece.split(b'"')
        outside = b" ".join(parts[self._in_string :: 2])
        self._quotes += len(parts) - 1
        self._in_string = self._quotes % 2 == 1
        self.values += len(outside) - len(outside.translate(None, _BEGINNINGS))
        if self.values >= self.most or self._quotes > 4 * self.most:  # two for each value and each name
            raise ValueError(f"more than {self.most} values; keep large data elsewhere and send a reference")
        if _TOO_LONG in (self._number + outside).translate(_DIGITS):
            raise ValueError(f"a number has more than {MAX_DIGITS} digits; make it a string")
        self._number = b"" if self._in_string else (self._number + outside)[-MAX_DIGITS:]

    def feed_all(self, text: bytes) -> None:
        """Count a whole text. Raises the errors of :meth:`feed`."""
        for at in range(0, len(text), PIECE_BYTES):
            self.feed(text[at : at + PIECE_BYTES])

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
