"""What a jsonb column takes of a value, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.errors import InvalidInputError
from runyard_backends.postgres.codec import from_json, to_json

NUL = "\0"
WRITTEN = "\\u0000"
"""Six characters, of which none is a NUL."""


@pytest.mark.parametrize(
    "value", [{"a": WRITTEN}, {WRITTEN: 1}, ["\\" + WRITTEN], "\\" * 7 + "u0000", f"\n{WRITTEN}", "\\" * 10**6]
)
def test_an_escape_that_is_text_is_no_nul(value: Any) -> None:
    assert from_json(to_json(value)) == value


@pytest.mark.parametrize("value", [NUL, {"a": NUL}, {NUL: 1}, ["\\" + NUL], "\\\\" + NUL, WRITTEN + NUL, f"\\{WRITTEN}\n{NUL}"])
def test_a_nul_is_refused_wherever_it_stands(value: Any) -> None:
    with pytest.raises(InvalidInputError, match="NUL"):
        to_json(value)
