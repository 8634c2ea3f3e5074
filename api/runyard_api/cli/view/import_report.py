"""The output of the commands that import threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from ..exit_codes import Exit
from . import output
from .output import escape

if TYPE_CHECKING:
    from runyard_backends.import_report import Report

NOTES_SHOWN: Final = 50


def show(report: Report, source: str, never: Sequence[str], *, as_json: bool) -> Exit:
    """Print the report of an import, and return the exit code of the command. ``source``: the name of the source. ``never``:
    the data that such an import never imports."""
    code = Exit.OK if report.complete else Exit.CONFLICT
    if as_json:
        output.print_json({**asdict(report), "complete": report.complete, "never_carried_over": list(never)})
        return code
    console = output.console()
    threads = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.outcomes.items())) or "none"
    console.print(f"{'would import' if report.dry_run else 'imported'} from {source}; threads: {threads}")
    counts = ("messages", "runs", "forks", "requests", "answers")
    console.print(", ".join(f"{getattr(report, name)} {name}" for name in counts))
    for note in report.notes[:NOTES_SHOWN]:
        console.print(f"[yellow]●[/] {escape(note.thread_id)}: {escape(note.what)}")
    if (hidden := len(report.notes) - NOTES_SHOWN + report.more_notes) > 0:
        console.print(f"{hidden} more notes; --json shows up to {len(report.notes)}")
    for line in never:
        console.print(f"[bright_black]not imported: {escape(line)}[/]")
    return code
