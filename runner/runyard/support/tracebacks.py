"""Tracebacks of the user's code, as text of bounded size without the values of variables.

The text begins at the first frame outside of runyard and of the import system. The text also has the causes and contexts of
the error.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import dropwhile
from pathlib import Path
from sysconfig import get_path
from types import FrameType
from typing import Final

from ..domain.size_limits import MAX_TRACEBACK_BYTES, bounded_trace

MAX_FRAMES: Final = 60
"""Maximum number of frames of one error. The innermost frames are kept."""
MAX_WORDS: Final = 1000
"""Maximum number of characters of one error's own text, without its notes."""
MAX_NOTE: Final = 400
"""Maximum number of characters of one note of an error. An error shows its first MAX_ERRORS notes."""
MAX_ERRORS: Final = 6
"""Maximum number of errors in a traceback: the error itself, its causes and contexts, and the errors of a group."""
CUT: Final = "  …\n"

TracebackFilter = Callable[[str], str | None]
"""A function of a traceback, or of a step's arguments, that returns the text to store, or None to store no text."""

_OWN: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = f"{get_path('stdlib')}/"
_LOOP: Final = str(Path(asyncio.__file__).parent)
_PACKAGES: Final = "/site-packages/"
_FRAME: Final = re.compile(r'^ +File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_HEAD: Final = re.compile(r" ?(?: \+ Exception Group )?(?:Traceback|Stack) \(most recent call last\):")
_MARGIN: Final = re.compile(r"^(?: *\|)+")
_IMPORTS: Final = ("<frozen importlib", str(Path(importlib.__file__).parent))


def traceback_text(error: BaseException) -> str | None:
    """Return the traceback of ``error``, at most MAX_TRACEBACK_BYTES bytes. Return None if the error was never raised.

    The last line is the text of the error, as Python prints it. Source lines are read from the files of the frames.
    """
    if error.__traceback__ is None:
        return None
    blocks = list(_blocks(error, MAX_ERRORS, set()))
    room = MAX_TRACEBACK_BYTES // len(blocks)
    return "\n".join(_bounded(frames, words, room - 1) for frames, words in blocks)


def kept_traceback(error: BaseException, keep: TracebackFilter | None) -> str | None:
    """Return the traceback of ``error`` to store or to log (:func:`kept_text`)."""
    return kept_text(traceback_text(error), keep)


def kept_text(text: str | None, keep: TracebackFilter | None) -> str | None:
    """Return the text of a traceback, of a stack or of arguments to store or to log. Return None if there is no text to keep.

    ``keep``: the filter of the host program (:attr:`runyard.App.traceback_filter`). If ``keep`` is None, the whole text is
    kept. If the filter fails, return None, because the text may be secret.
    """
    if text is None or keep is None:
        return text
    try:
        kept = keep(text)
    except Exception as fault:
        import structlog  # only here: programs that import runyard do not need it

        # The error of the filter may quote the text. Therefore only the class and the place of this error are logged.
        structlog.get_logger("runyard.tracebacks").error(
            "traceback_filter_failed", error=type(fault).__qualname__, at=place_of(fault)
        )
        return None
    return None if kept is None else bounded_trace(str(kept))


def logged_traceback(error: BaseException, keep: TracebackFilter | None) -> dict[str, str]:
    """Return the field of a log line with the traceback of ``error`` (:func:`kept_traceback`)."""
    return trace_field(kept_traceback(error, keep))


def trace_field(trace: str | None) -> dict[str, str]:
    """Return the field of a log line with the text of a traceback. Return {} if ``trace`` is None."""
    return {} if trace is None else {"exception": trace}


def stack_text(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the stack of a thread, at most MAX_TRACEBACK_BYTES bytes. ``frames``: the frames, the outermost first.

    The leading frames of the program's start, of the event loop and of runyard are left out, unless the stack has only such
    frames.
    """
    whole = list(frames)
    looping = [frame.f_code.co_filename.startswith(_LOOP) for frame, _ in whole]
    first = looping.index(True) if True in looping else 0
    inside = dropwhile(lambda each: each[0].f_code.co_filename.startswith(_LOOP), whole[first:])
    of_user = list(dropwhile(lambda each: is_own(each[0].f_code.co_filename), inside))
    shown = traceback.StackSummary.extract((of_user or whole)[-MAX_FRAMES:])
    return _bounded(["Stack (most recent call last):\n", *shown.format()], "", MAX_TRACEBACK_BYTES)


def place_of(error: BaseException) -> str | None:
    """Return ``file:line`` of a syntax error, or of the innermost frame of the user's code."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    return innermost_place(traceback.walk_tb(error.__traceback__))


def innermost_place(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """Return ``file:line`` of the innermost frame of the user's code. Return None without frames.

    ``frames``: the frames with their line numbers, the outermost first. Code of the standard library, of installed packages
    and of runyard is not the user's code. If no frame has the user's code, the innermost frame is used.
    """
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    found = ([place for place in places if _is_users(place[0])] or places)[-1:]
    return f"{found[0][0]}:{found[0][1]}" if found else None


def place_in(trace: str) -> str | None:
    """Return ``file:line in function`` of the innermost frame of the user's code in the text of a traceback.

    Only the last error with frames is searched. If no frame has the user's code, the innermost frame is used. Return None if
    the text has no frames.
    """
    places = _FRAME.findall(_last_frames(trace))
    found = ([place for place in places if _is_users(place[0])] or places)[-1:]
    return "{}:{} in {}".format(*found[0]) if found else None


def _last_frames(trace: str) -> str:
    """Return the lines of the frames of the last error that has frames.

    Frames are the indented lines after a head. The first line that is not indented begins the error's text. This text can
    itself have lines that look like frames. A head is the first line, or follows a blank line or the separator of a group.
    """
    blocks: list[list[str]] = [[]]
    inside = apart = True
    for whole in trace.split("\n"):
        line = _MARGIN.sub("", whole)
        if apart and _HEAD.fullmatch(line):
            blocks.append([])
            inside = True
        elif inside := inside and (not line or line.startswith("  ")):
            blocks[-1].append(line)
        apart = not line.strip() or line.lstrip().startswith("+-")
    return next(("\n".join(block) for block in reversed(blocks) if _FRAME.search("\n".join(block))), "")


def _is_users(filename: str) -> bool:
    return not (is_own(filename) or filename.startswith(("<", _LIBRARY)) or _PACKAGES in filename)


def is_own(filename: str) -> bool:
    """Return whether a file is part of runyard or of the import system."""
    return filename.startswith((_OWN, *_IMPORTS)) or "/runyard_api/" in filename or "/runyard_backends/" in filename


def _blocks(error: BaseException, most: int, seen: set[int]) -> Iterator[tuple[list[str], str]]:
    """Yield the frames and the text of at most ``most`` errors: the causes, the error itself, the errors of a group.

    ``seen``: the ids of the errors that lead to ``error``. The ids are needed, because an error may be its own cause.
    """
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    seen.add(id(error))
    if before is not None and most > 1 and id(before) not in seen:
        for frames, words in _blocks(before, most - 1, seen):
            most -= 1
            yield frames, words
        link = (
            "The above exception was the direct cause of" if error.__cause__ else "During handling of the above exception came"
        )
        head = f"{link} the following exception:\n\nTraceback (most recent call last):\n"
    else:
        head = "Traceback (most recent call last):\n"
    stack, text = _shown(error)
    users = _first_of_user(stack)
    if users is None and isinstance(error, SyntaxError) and error.filename is not None:  # of the imported file itself
        users = len(stack)
    elif users is None:  # of an import hook
        users = next((n for n, frame in enumerate(stack) if not is_own(frame.filename)), None)
    told = [frame for frame in stack[users or 0 :] if not frame.filename.startswith(_IMPORTS)]
    if not told and users is None:
        told = stack
    yield [head, *traceback.StackSummary.from_list(told).format()], text
    for inner in error.exceptions[: most - 1] if isinstance(error, BaseExceptionGroup) else ():
        yield from _blocks(inner, 1, seen)


def _first_of_user(stack: Sequence[traceback.FrameSummary]) -> int | None:
    """Return the number of the first frame of the user's code.

    The import system calls the hooks of packages, and the code of modules. Hooks are not the user's code.
    """
    importing = False
    for n, frame in enumerate(stack):
        if is_own(frame.filename):
            importing = frame.filename.startswith(_IMPORTS)
        elif not importing or frame.name == "<module>":
            return n
    return None


def _shown(error: BaseException) -> tuple[list[traceback.FrameSummary], str]:
    """Return the innermost frames of an error, and its text as Python prints it.

    A long text and long notes are cut. With the argument ``_seen``, Python leaves out the causes of the error, and the errors
    of a group.
    """
    causes = {id(error.__cause__), id(error.__context__)}
    shown = traceback.TracebackException(type(error), error, error.__traceback__, limit=-MAX_FRAMES, compact=True, _seen=causes)
    shown.exceptions = None  # with _seen, Python 3.13 does not set this attribute, but reads it
    shown.__notes__ = None  # they follow the cut text
    text = "".join(shown.format_exception_only()).removesuffix("\n")
    return list(shown.stack), "".join([_cut(text, MAX_WORDS), *(_cut(note, MAX_NOTE) for note in _notes_of(error))])


def _notes_of(error: BaseException) -> list[str]:
    """Return the first MAX_ERRORS notes of an error."""
    notes = getattr(error, "__notes__", None)
    return [_text_of(note) for note in notes[:MAX_ERRORS]] if isinstance(notes, (list, tuple)) else []


def _cut(text: str, most: int) -> str:
    return f"{text}\n" if len(text) <= most else f"{text[:most]} …\n"


def _text_of(shown: object) -> str:
    """Return the text of an error or of a note."""
    try:
        return str(shown)
    except Exception:  # the code of a user's class
        return "<exception str() failed>"


def _bounded(frames: list[str], words: str, room: int) -> str:
    """Return the frames and ``words`` in at most ``room`` bytes. If frames must be left out, keep the first frame and the
    innermost frames."""
    left = room - _size(words)
    if sum(map(_size, frames)) > left:
        first, rest = frames[:2], frames[2:]
        left -= sum(map(_size, first)) + _size(CUT)
        kept: list[str] = []
        while rest and _size(rest[-1]) <= left:
            left -= _size(rest[-1])
            kept.insert(0, rest.pop())
        frames = [*first, CUT, *kept]
    return bounded_trace("".join(frames) + words, room)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))
