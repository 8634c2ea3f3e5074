"""Bounds on the JSON of requests. They are checked while a body arrives (A2).

When the body exceeds a bound, the server neither checks nor keeps the rest of the body.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from runyard.domain.size_limits import MAX_VALUES

MAX_BODY_VALUES: Final = 2 * MAX_VALUES
"""Maximum number of values in one body, including members of lists and objects. While a process checks the values, it cannot
answer other requests. The number must therefore be limited."""
OUT_OF_BOUNDS: Final = "body_out_of_bounds"
"""Key in the state of a request. The value is the reason why the body exceeds a bound and was not kept."""

FORM: Final = "multipart/form-data"


def is_form(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if the body of a request with these headers is a form with files."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in headers if name == b"content-type"]
    return kinds == [FORM.encode()]
