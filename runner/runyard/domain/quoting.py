"""Quoting of untrusted text for terminals.

Control characters in a text can make a terminal change its title, write to the clipboard, or overwrite other text. Other
characters change the direction in which a terminal shows text.
"""

from __future__ import annotations

import re
from reprlib import Repr
from typing import Any, Final

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")
"""Control characters except tab and newline, line separators, characters of text direction, and lone surrogates."""
_IN_JSON: Final = re.compile(f"[\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")

_BRIEF: Final = Repr()
_BRIEF.maxstring = _BRIEF.maxother = 80


def legible(text: str) -> str:
    """Replace each unsafe character of ``text`` by a visible sign. Tabs and newlines stay."""
    return _UNSEEN.sub(_sign, text)


def one_line(text: str) -> str:
    """Replace newlines and all characters that :func:`legible` replaces.

    Use this function where a newline in the text could look like the start of a real line.
    """
    return text if text.isprintable() else legible(text).replace("\n", "␊")


def legible_json(text: str) -> str:
    """Replace each unsafe character of the JSON ``text`` by its escape."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def brief(value: Any) -> str:
    """Return a short description of ``value`` for an error message. Only the beginning of a long text is read."""
    try:
        return _BRIEF.repr(value[:80] if isinstance(value, bytes) else value)
    except ValueError:  # an integer with more digits than Python prints
        return f"a {type(value).__name__}"


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == 0x7F:
        return "␡"
    return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"
