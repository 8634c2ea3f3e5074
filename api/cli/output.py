"""How answers look: tables and words for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

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


def console() -> Console:
    """Standard output as it is at this moment."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def notes() -> Console:
    """For what is said beside the answer, so that the answer can be piped."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document on standard output; models become objects."""
    print(json.dumps(to_jsonable_python(value), indent=2, ensure_ascii=False))


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


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Rows of markup under plain headings, or the words of ``empty``. Only the last column gives way to a narrow terminal."""
    lines = list(rows)
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
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE).print(grid)


def more(cursor: str | None) -> None:
    """Say that a list goes on."""
    if cursor:
        notes().print(f"[bright_black]more: --cursor {escape(cursor)}[/]")
