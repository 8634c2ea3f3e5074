"""The arguments of a step as a short text, for the timeline of the run."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from ..domain.timeline import SHORT_CHARACTERS, short
from ..support.tracebacks import TracebackFilter, kept_text

FILTERED_CHARACTERS: Final = 65_536
"""Number of characters after which a filter gets no further values. It gets no part of a value, because it would not recognize
a part of a secret."""
MAX_DEPTH: Final = 20
"""Maximum number of nested lists and objects that the text shows."""
MAX_INTEGER_BITS: Final = 1024
"""Size of the largest integer that the text shows. The digits of larger integers take too long to compute."""


def step_input(fn: Callable[..., Any], args: Sequence[Any], keep: TracebackFilter | None) -> str | None:
    """Return the arguments of ``fn(*args)`` in at most SHORT_CHARACTERS characters. Return None without arguments.

    The text has the form of the arguments of a call, for example ``7, "EUR", retries=3``. The text includes the arguments that
    a ``functools.partial`` binds. Values are shown as JSON. A value that is not JSON is shown by the name of its type, for
    example ``<Decimal>``. The text is made without the methods of the values' own classes.

    ``keep``: the filter of the host program (:attr:`runyard.App.traceback_filter`). The filter gets the text before the text is
    cut. Return None if the filter returns None or fails.
    """
    named: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        args, named, fn = (*fn.args, *args), {**fn.keywords, **named}, fn.func
    if not args and not named:
        return None
    if keep is None:
        text = _first(_call(args, named, SHORT_CHARACTERS), SHORT_CHARACTERS)
        return short(_storable(text[: SHORT_CHARACTERS + 1]))
    text = _first(_call(args, named, FILTERED_CHARACTERS), FILTERED_CHARACTERS)
    kept = kept_text(_storable(text), keep)
    return short(kept) if kept is not None else None


def _first(pieces: Iterable[str], most: int) -> str:
    """Join whole pieces until they have ``most`` characters. An ellipsis stands for the other pieces."""
    text = ""
    for piece in pieces:
        if len(text) >= most:
            return text + "…"
        text += piece
    return text


def _storable(text: str) -> str:
    """Return ``text`` with escapes for the characters that stores refuse: NUL and lone surrogates."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def _call(args: Sequence[Any], named: dict[str, Any], most: int) -> Iterator[str]:
    for n, value in enumerate(args):
        yield ", " if n else ""
        yield from _value(value, most, 0)
    for n, (name, value) in enumerate(named.items(), len(args)):
        yield f"{', ' if n else ''}{name[:most]}="
        yield from _value(value, most, 0)


def _value(value: Any, most: int, depth: int) -> Iterator[str]:
    """Yield ``value`` as JSON, or the name of its type. ``depth``: the number of lists and objects around the value."""
    # isinstance() and the methods of a subclass can execute the user's code. type() and the built-in methods cannot.
    kind = type(value)
    if value is None or kind is bool:
        yield _encode(value)
    elif kind is str and (len(value) <= most or most == SHORT_CHARACTERS):
        yield _encode(value[:most])
    elif issubclass(kind, int) and int.bit_length(value) <= MAX_INTEGER_BITS:
        yield int.__repr__(value)
    elif issubclass(kind, float):
        yield float.__repr__(value)
    elif not issubclass(kind, list | tuple | dict):
        yield f"<{_name(kind)[:most]}>"
    elif depth == MAX_DEPTH:
        yield "…"
    elif issubclass(kind, dict):
        yield "{"
        for n, (key, inner) in enumerate(list(islice(dict.items(value), most))):
            yield ", " if n else ""
            yield from _value(key, most, MAX_DEPTH)
            yield ": "
            yield from _value(inner, most, depth + 1)
        yield "}"
    else:
        yield "["
        for n, inner in enumerate((list if issubclass(kind, list) else tuple).__iter__(value)):
            yield ", " if n else ""
            yield from _value(inner, most, depth + 1)
        yield "]"


_name: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__
_encode: Final = json.JSONEncoder(ensure_ascii=False).encode
