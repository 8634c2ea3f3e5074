"""The output of commands: tables and sentences for people, JSON for programs.

Every command writes through this module. The option ``--json`` (:mod:`runyard_api.cli.options`) selects JSON. rich determines
whether the output has colors. Control characters in stored text do not reach a terminal. A console prints visible signs in
their place. JSON escapes them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlsplit, urlunsplit

from pydantic_core import to_jsonable_python
from rich import markup
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from runyard.domain.quoting import legible, legible_json, one_line
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, Message, Run

_PASSWORD: Final = re.compile(r"((?:^|&)\w*password=)[^&]*")

STATUS_STYLE: dict[str, str] = {
    RunStatus.QUEUED: "yellow",
    RunStatus.RUNNING: "cyan",
    RunStatus.SUSPENDED: "magenta",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.CANCELLED: "bright_black",
    RunStatus.DEAD: "bold red",
    "parked": "magenta",
}
PIPE_COLUMNS = 200
"""Width of a table that is written into a pipe, in characters."""
COLUMN_GAP: Final = 2
LAST_COLUMN_MIN: Final = 20
"""Number of characters between the columns of a table, and minimum width of a last column that is shortened."""
ROLE_STYLE = {"user": "bold blue", "assistant": "bold green", "tool": "bold yellow", "system": "bold bright_black"}


class Terminal(Console, RenderHook):
    """A console that prints control characters as visible signs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)
        self.push_render_hook(self)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return the objects that rich prints, with visible signs in place of control characters."""
        return [_Legible(renderable) for renderable in renderables]


class _Legible:
    def __init__(self, shown: ConsoleRenderable) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._shown, options):
            yield Segment(text if control else legible(text), style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._shown)


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if ``stream`` is a terminal. ``stream`` is None if the process was started without this standard stream."""
    return stream is not None and not stream.closed and stream.isatty()


def console() -> Terminal:
    """Return a console on standard output."""
    return Terminal(file=sys.stdout, soft_wrap=True)


def notes() -> Terminal:
    """Return a console on standard error for notes. Standard output has only the answer, so that it can be piped."""
    return Terminal(file=sys.stderr, soft_wrap=True)


def escape(text: str) -> str:
    """Return markup that prints ``text`` unchanged on one line."""
    return escape_lines(one_line(text))


def escape_lines(text: str) -> str:
    """Return markup that prints ``text`` unchanged, with its line breaks."""
    shown = markup.escape(text)
    trailing = len(shown) - len(shown.rstrip("\\"))
    return shown + "\\" * (trailing % 2)  # an odd number of backslashes would escape a closing tag after the text


def say(text: str) -> None:
    """Print one line of plain text on standard error."""
    _print_aside(one_line(text))


def say_lines(text: str) -> None:
    """Print plain text of several lines on standard error."""
    _print_aside(legible(text).rstrip("\n"))


def _print_aside(text: str) -> None:
    """Print on standard error. If standard error is closed, the command continues with the same exit code."""
    if sys.stderr is None:  # closed before the start of Python
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        with Path(os.devnull).open("w") as nowhere:  # Python would print the text again at its end, and end with the code 120
            os.dup2(nowhere.fileno(), sys.stderr.fileno())


def print_lines(text: str) -> None:
    """Print plain text of several lines on standard output."""
    print(legible(text).rstrip("\n"))


def print_line(text: str) -> None:
    """Print one line of plain text on standard output."""
    print(one_line(text))


def print_json(value: Any) -> None:
    """Print one JSON document on standard output. Models become objects."""
    print(legible_json(json.dumps(to_jsonable_python(value), indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """Print one JSON document as one line and flush it."""
    print(legible_json(json.dumps(to_jsonable_python(value), ensure_ascii=False)), flush=True)


def status(value: str) -> str:
    """Return the status of a run or of a candidate as markup, in the color of this status."""
    return f"[{STATUS_STYLE[value]}]{value}[/]"


def summary(message: Message | None, width: int = 60) -> str:
    """Return a message as one line of plain text, at most ``width`` characters."""
    if message is None:
        return ""
    calls = ", ".join(f"{call.name}(…)" for call in message.tool_calls)
    results = ", ".join("error" if result.is_error else "result" for result in message.tool_results)
    return shortened(message.text or (f"calls {calls}" if calls else results), width)


def shortened(text: str, width: int = 60) -> str:
    """Return a text as one line, at most ``width`` characters."""
    words = " ".join(text.split())
    return words if len(words) <= width else words[: width - 1] + "…"


def question(request: HitlRequest) -> str:
    """Return the question of a request, or its payload as JSON."""
    asked = request.payload.get("question")
    return asked if isinstance(asked, str) else json.dumps(request.payload, ensure_ascii=False)


def cancelled_words(run: Run) -> str:
    """Return the status of a run after its cancel, in words."""
    asked = run.cancel_requested_at is not None and not run.ended
    return "cancelling: the worker stops the run" if asked else str(run.status)


def marked(shown: str, damaged: Sequence[str]) -> str:
    """Return ``shown`` and the names of the ``damaged`` fields. These fields cannot be read."""
    return f"{shown} [red]cannot be read: {escape(', '.join(damaged))}[/]".strip() if damaged else shown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print rows of markup under headings, or ``empty`` if there are none.

    On a narrow terminal, only the last column is shortened, to LAST_COLUMN_MIN characters. Longer lines are wrapped.
    """
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not lines:
        notes().print(escape(empty))
        return
    out = Terminal(file=sys.stdout, width=None if is_terminal(sys.stdout) else PIPE_COLUMNS)
    cells = [[column, *(Text.from_markup(line[place]).plain for line in lines)] for place, column in enumerate(columns)]
    *widths, last = (max(map(cell_len, column)) for column in cells)
    taken = sum(widths) + COLUMN_GAP * len(widths)
    widths.append(min(last, max(out.width - taken, LAST_COLUMN_MIN)))
    out.width = max(out.width, taken + widths[-1])
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, COLUMN_GAP, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(column, no_wrap=True, overflow="ellipsis", width=width)
    for line in lines:
        grid.add_row(*line)
    out.print(grid)


def more(cursor: str | None) -> None:
    """Print the cursor with which a list continues, if there is one."""
    if cursor:
        more_by(f"--cursor {cursor}")


def more_by(how: str) -> None:
    """Print the way to continue a list: an option of the same command, or another command."""
    notes().print(f"[bright_black]more: {escape(how)}[/]")


def without_password(url: str) -> str:
    """Return ``url`` with its passwords replaced by ``***``, including passwords in parameters."""
    parts = urlsplit(url)
    if parts.password is not None:
        parts = parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}")
    return urlunsplit(parts._replace(query=_PASSWORD.sub(r"\1***", parts.query)))
