"""JSON from outside, bounded before anything is built of it (semantics: A2).

A body has room for millions of values, and for numbers that take longer to convert than to send. Both are found in a fixed
number of passes over the bytes, each one call of C. Depth is bounded by the parser, which stops where it is exceeded.
"""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pydantic_core import from_json

from runner.bounds import MAX_VALUES

MOST_VALUES: Final = 2 * MAX_VALUES
"""Values in one body, the members of lists and objects counted: while they are checked, nobody else is answered."""
MAX_DIGITS: Final = 100
"""Digits of a number. Readers of JSON convert long ones in more than linear time, or not at all."""
LARGE: Final = 2**16
"""Bytes from which a body is read beside the event loop."""

_BEGINNINGS: Final = b",[{"
"""A value comes first, or after one of these."""
_DIGITS: Final = bytes.maketrans(b"0123456789", b"0" * 10)
_TOO_LONG: Final = b"0" * (MAX_DIGITS + 1)

_beside = ThreadPoolExecutor(1, thread_name_prefix="runyard-bodies")
"""One thread: the calls of C that it makes hold up the loop for a moment each, and several threads would do so in turn."""


async def read(body: bytes) -> Any:
    """The value that ``body`` is. Raises ValueError for what is no JSON, NaN and infinity, and for what is out of bounds."""
    if len(body) < LARGE:
        return _read(body)
    return await asyncio.get_running_loop().run_in_executor(_beside, _read, body)


def _read(body: bytes) -> Any:
    check_shape(body)
    value = from_json(body, allow_inf_nan=False)
    _check_finite(value)
    return value


def check_shape(body: bytes) -> None:
    """Raises ValueError for more than MOST_VALUES values, or a number with more than MAX_DIGITS digits in a row."""
    many = len(body) >= MOST_VALUES and _beginnings(body) >= MOST_VALUES
    long = _TOO_LONG in body.translate(_DIGITS)
    if not (many or long):
        return  # not even if all of it were outside of strings
    outside = _outside_strings(body)
    if _beginnings(outside) >= MOST_VALUES:
        raise _too_many()
    if long and _TOO_LONG in outside.translate(_DIGITS):
        raise ValueError(f"a number has more than {MAX_DIGITS} digits; make it a string")


def _beginnings(text: bytes) -> int:
    return len(text) - len(text.translate(None, _BEGINNINGS))


def _outside_strings(body: bytes) -> bytes:
    """What of ``body`` is in no string. It holds up to the first place where ``body`` is no JSON, beyond which nobody reads."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * MOST_VALUES:  # two for each value and each name
        raise _too_many()
    return b" ".join(plain.split(b'"')[::2])


def _too_many() -> ValueError:
    return ValueError(f"more than {MOST_VALUES} values; keep large data elsewhere and send a reference")


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
