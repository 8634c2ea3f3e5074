"""Check the size of a job in msgpack before Python objects are made from the job (A2).

A job of a few MiB may have millions of values. As objects, they would take a hundred times the size of the job in memory.
msgpack would block the worker while it makes these objects. This module counts the values in one pass over their headers. The
pass skips text and binary data.
"""

from __future__ import annotations

from typing import Final

from runyard.domain.size_limits import MAX_NESTING, MAX_VALUES
from runyard.errors import InvalidInputError

MAX_JOB_VALUES: Final = MAX_VALUES + 1000
"""Maximum number of members of all arrays and maps in one job. The number is enough for a message and the other arguments of
the job."""
MAX_JOB_NESTING: Final = MAX_NESTING + 2
"""Maximum number of levels of arrays and maps in one job: the levels of a stored value, the job itself, and the list of its
arguments."""

_LENGTHS: Final = dict(
    zip((0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF), (1, 2, 4) * 3 + (2, 4) * 2, strict=True)
)
"""Maps the first byte of binary data, an ext, text, an array or a map to the number of bytes that contain its length."""
_FIXED: Final = dict(enumerate((4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), 0xCA))
"""Maps the first byte of a number or a short ext to the number of bytes that follow this byte."""
_EXT: Final = range(0xC7, 0xCA)
_ARRAYS: Final = range(0xDC, 0xDE)
_MAPS: Final = range(0xDE, 0xE0)


def count_values(data: bytes) -> int:
    """Return the number of members of all arrays and maps in the first value of ``data``.

    Incomplete data is counted up to its end. Raises InvalidInputError for more than MAX_JOB_VALUES members or MAX_JOB_NESTING
    levels.
    """
    count = at = 0
    end = len(data)
    missing = [1]  # per open array or map: the number of values that have not begun
    while missing and at < end:
        if not missing[-1]:
            missing.pop()
            continue
        missing[-1] -= 1
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0 or 0xC0 <= first < 0xC4:  # an integer, nil, a boolean
            continue
        if 0xA0 <= first < 0xC0:  # short text
            at += first & 0x1F
            continue
        if first in _FIXED:
            at += _FIXED[first]
            continue
        if first < 0xA0:  # a short map or array
            members = first & 0x0F
            values = members if first >= 0x90 else 2 * members
        else:
            size = _LENGTHS[first]
            members = int.from_bytes(data[at : at + size], "big")
            at += size
            if first not in _ARRAYS and first not in _MAPS:
                at += members + (first in _EXT)  # an ext has a byte for its type
                continue
            values = members if first in _ARRAYS else 2 * members
        count += members
        if count > MAX_JOB_VALUES:
            words = f"the job holds more than {MAX_JOB_VALUES} values; keep large data elsewhere and enqueue a reference"
            raise InvalidInputError(words, field="job", most=MAX_JOB_VALUES)
        missing.append(values)
        if len(missing) > MAX_JOB_NESTING + 1:
            words = f"the job is nested more than {MAX_JOB_NESTING} levels deep; make it flatter"
            raise InvalidInputError(words, field="job", most=MAX_JOB_NESTING)
    return count
