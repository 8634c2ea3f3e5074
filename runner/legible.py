"""Text that somebody else wrote, fit for a terminal.

Control characters of stored text would be obeyed by whoever's terminal shows it: set its title, fill its clipboard, write over
what is there. Characters that reverse the direction of text show something else than is there.
"""

from __future__ import annotations

import re
from reprlib import Repr
from typing import Any, Final

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")
"""Everything but tab and newline that a terminal obeys, and what it cannot be sent."""
_IN_JSON: Final = re.compile(f"[\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")

_BRIEF: Final = Repr()
_BRIEF.maxstring = _BRIEF.maxother = 80


def legible(text: str) -> str:
    """``text`` with a visible sign in the place of each such character; tabs and newlines stay."""
    return _UNSEEN.sub(_sign, text)


def one_line(text: str) -> str:
    """The same where a line of its own could be taken for something else."""
    return legible(text).replace("\n", "␊")


def legible_json(text: str) -> str:
    """JSON as it is, with escapes for those of the characters that JSON leaves alone."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def brief(value: Any) -> str:
    """What ``value`` is, for an error that tells of it. Of a long text only the beginning is looked at."""
    try:
        return _BRIEF.repr(value[:80] if isinstance(value, bytes) else value)
    except ValueError:  # an integer that Python does not write out
        return f"a {type(value).__name__}"


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == 0x7F:
        return "␡"
    return chr(0x2400 + code) if code < 0x20 else "\N{REPLACEMENT CHARACTER}"
