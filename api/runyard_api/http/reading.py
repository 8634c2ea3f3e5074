"""The bounds of the JSON of requests, which are checked while a body arrives (A2).

Beyond a bound, the rest of the body is neither checked nor kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from runyard.domain.size_limits import MAX_VALUES

MAX_BODY_VALUES: Final = 2 * MAX_VALUES
"""Most values in one body, with members of lists and objects. A process that checks them answers no other request meanwhile."""
OUT_OF_BOUNDS: Final = "body_out_of_bounds"
"""Key in the state of a request: the reason why its body is out of bounds and was not kept."""

FORM: Final = "multipart/form-data"


def is_form(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the body of a request with these headers is a form with files."""
    kinds = [value.partition(b";")[0].strip().lower() for name, value in headers if name == b"content-type"]
    return kinds == [FORM.encode()]
