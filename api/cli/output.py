"""How answers look: tables and words for people, JSON for programs.

All that the command line writes goes through here, so that nothing that others wrote drives a terminal: consoles show control
characters as signs, JSON has escapes for them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_jsonable_python
from rich import markup
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from runner.legible import legible, legible_json, one_line
from runner.models import HitlRequest, Message
from runner.states import RunStatus

STATUS_STYLE = {
    RunStatus.QUEUED: "yellow",
    RunStatus.RUNNING: "cyan",
    RunStatus.SUSPENDED: "magenta",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.CANCELLED: "bright_black",
    RunStatus.DEAD: "bold red",
}
WIDE = 200
"""Columns of a table that goes into a pipe: its reader cuts as it likes."""
ROLE_STYLE = {"user": "bold blue", "assistant": "bold green", "tool": "bold yellow", "system": "bold bright_black"}


class Terminal(Console, RenderHook):
    """A console whose text is legible, whatever it is made of."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, **options)
        self.push_render_hook(self)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by rich with all that is to be printed."""
        return [_Legible(renderable) for renderable in renderables]


class _Legible:
    def __init__(self, shown: ConsoleRenderable) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self._shown, options):
            yield Segment(text if control else legible(text), style, control)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._shown)


def console() -> Terminal:
    """Standard output as it is at this moment."""
    return Terminal(file=sys.stdout, soft_wrap=True)


def notes() -> Terminal:
    """For what is said beside the answer, so that the answer can be piped."""
    return Terminal(file=sys.stderr, soft_wrap=True)


def escape(text: str) -> str:
    """``text`` of one line as markup that shows it."""
    return escape_lines(one_line(text))


def escape_lines(text: str) -> str:
    """The same for a text whose lines are its own: whoever prints it sets them in."""
    shown = markup.escape(text)
    trailing = len(shown) - len(shown.rstrip("\\"))
    return shown + "\\" * (trailing % 2)  # an odd one would take a closing tag for text


def say(text: str) -> None:
    """One line on standard error, as plain text."""
    print(one_line(text), file=sys.stderr)


def print_line(text: str) -> None:
    """One line on standard output, as plain text."""
    print(one_line(text))


def print_json(value: Any) -> None:
    """One JSON document on standard output; models become objects."""
    print(legible_json(json.dumps(to_jsonable_python(value), indent=2, ensure_ascii=False)))


def print_json_line(value: Any) -> None:
    """One JSON document in one line, at once."""
    print(legible_json(json.dumps(to_jsonable_python(value), ensure_ascii=False)), flush=True)


def status(value: RunStatus) -> str:
    """A status in its colour, as markup."""
    return f"[{STATUS_STYLE[value]}]{value}[/]"


def clock(moment: datetime | None) -> str:
    """A moment for people: the time today, else the day too; local time."""
    if moment is None:
        return ""
    local, today = moment.astimezone(), datetime.now(UTC).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M")


def age(moment: datetime | None) -> str:
    """How long ago ``moment`` was, in its largest unit."""
    return "" if moment is None else duration(max((datetime.now(UTC) - moment).total_seconds(), 0.0))


def duration(seconds: float | None) -> str:
    """A time in its largest unit."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def count(number: int, one: str, many: str) -> str:
    """``number`` with the words that agree with it."""
    return f"{number} {one if number == 1 else many}"


def summary(message: Message | None, width: int = 60) -> str:
    """A message in one line, as plain text."""
    if message is None:
        return ""
    calls = ", ".join(f"{call.name}(…)" for call in message.tool_calls)
    results = ", ".join("error" if result.is_error else "result" for result in message.tool_results)
    words = " ".join((message.text or (f"calls {calls}" if calls else results)).split())
    return words if len(words) <= width else words[: width - 1] + "…"


def question(request: HitlRequest) -> str:
    """What a request asks, in one line."""
    asked = request.payload.get("question")
    return asked if isinstance(asked, str) else json.dumps(request.payload, ensure_ascii=False)


def marked(shown: str, damaged: Sequence[str]) -> str:
    """Markup with the fields that cannot be read behind it, if there are any."""
    return f"{shown} [red]cannot be read: {escape(', '.join(damaged))}[/]".strip() if damaged else shown


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Rows of markup, a line each, under plain headings, or the words of ``empty``.

    Only the last column gives way to a narrow terminal.
    """
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not lines:
        notes().print(escape(empty))
        return
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        widest = max(len(column), *(Text.from_markup(line[place]).cell_len for line in lines))
        last = place == len(columns) - 1
        grid.add_column(column, no_wrap=True, overflow="ellipsis", min_width=None if last else widest)
    for line in lines:
        grid.add_row(*line)
    Terminal(file=sys.stdout, width=None if sys.stdout.isatty() else WIDE).print(grid)


def more(cursor: str | None) -> None:
    """Say that a list goes on."""
    if cursor:
        notes().print(f"[bright_black]more: --cursor {escape(cursor)}[/]")
