"""The view of one run: its times, its costs and its timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from runyard.models import CandidateStatus, FanOutProgress, Timeline, TimelineEntry, Usage

from ... import quantities
from . import output
from .output import escape

_STATUS_STYLE = {
    **dict.fromkeys(("completed", "done", "ok", "answered", "ended"), "green"),
    **dict.fromkeys(("failed", "dead", "error", "damaged"), "red"),
    **dict.fromkeys(("running", "started", "pending", "queued", "waiting"), "cyan"),
    "suspended": "magenta",
}

PROGRESS = get_args(CandidateStatus)
"""The statuses of candidates, in the order in which their numbers are shown."""

_WORDS = {"model_request": "model", "request": "asked"}
"""The word in the table for a type of entry. If a type is missing here, the table shows the name of the type."""


def show(
    found: Timeline,
    sentence: str,
    details: list[tuple[str, str]],
    numbers: Mapping[int, int],
    progress: FanOutProgress | None = None,
) -> None:
    """Print a run, its ``details``, its times and the entries of its timeline. Print the tracebacks of its errors below.

    ``numbers``: the numbers of the run's attempts by their fences. ``progress``: the progress of a fan-out, or None.
    """
    run, console = found.run, output.console()
    console.print(f"[bold]{escape(run.run_id)}[/] on {escape(run.thread_id)}  {output.status(run.status)}")
    console.print(escape(sentence))
    used = usage_words(progress.usage if progress is not None else run.usage)
    shown_of_fan = [("candidates", progress_words(progress, usage=False))] if progress is not None else []
    for name, value in [*details, *shown_of_fan, ("times", _times(found)), ("usage", used), ("answer", found.answer or "")]:
        if value:
            console.print(f"  [bright_black]{name:<10}[/] {escape(value)}")
    rows = (
        (
            quantities.clock(entry.at),
            quantities.duration(entry.seconds) if entry.seconds is not None else "",
            escape(" ".join(filter(None, (_WORDS.get(entry.type, entry.type), entry.name)))),
            f"[{_STATUS_STYLE.get(entry.status or '', 'yellow')}]{escape(entry.status or '')}[/]",
            escape(_detail(entry)),
        )
        for entry in found.entries
    )
    output.table(("AT", "TOOK", "WHAT", "STATUS", "DETAIL"), rows, empty="nothing has happened in it yet")
    shown = set()
    for entry in found.entries:
        if entry.error is not None and entry.error.traceback is not None:
            shown.add(entry.error.traceback)
            head = attempt_words(int(entry.id), numbers) if entry.type == "attempt" else f"{entry.type} {entry.id}"
            output.print_line(f"{head}:")
            output.print_lines(entry.error.traceback)
    if (error := found.error) is not None and error.traceback is not None and error.traceback not in shown:
        output.print_lines(error.traceback)
    for entry in found.entries:
        if entry.type == "child" and entry.status in ("failed", "dead"):
            output.print_line(f"child {entry.id} on {entry.name} is {entry.status}; see: runyard runs show {entry.id}")


def attempt_words(fence: int, numbers: Mapping[int, int]) -> str:
    """Return the number and the fence of an attempt as text. ``numbers``: the numbers of attempts by their fences."""
    return f"attempt {numbers[fence]} (fence {fence})" if fence in numbers else f"attempt with fence {fence}"


def usage_words(usage: Usage) -> str:
    """Return the tokens and the cost as one line, or an empty text if no model was used."""
    if usage == Usage():
        return ""
    words = f"{usage.input_tokens} tokens in, {usage.output_tokens} out, {usage.requests} model requests"
    return f"{words}, ${usage.cost:.4f}" if usage.cost else words


def progress_words(progress: FanOutProgress, *, usage: bool = True) -> str:
    """Return the progress of a fan-out as one line."""
    counts = [f"{n} {name}" for name in PROGRESS if (n := getattr(progress, name))]
    words = f"{progress.total} candidates: {', '.join(counts)}" if usage else f"{progress.total}: {', '.join(counts)}"
    used = usage_words(progress.usage) if usage else ""
    return f"{words}; {used}" if used else words


def _times(found: Timeline) -> str:
    times = {
        "queued": found.queued_seconds,
        "ran": found.running_seconds,
        "parked": found.parked_seconds,
        "waited between attempts": found.waiting_seconds,
    }
    return ", ".join(f"{name} {quantities.duration(seconds)}" for name, seconds in times.items() if seconds or name == "queued")


def _detail(entry: TimelineEntry) -> str:
    shown = [f"run {entry.id}"] if entry.type == "child" else []
    if entry.usage is not None:
        shown.append(f"{entry.usage.input_tokens}+{entry.usage.output_tokens} tokens")
    if entry.input is not None:
        shown.append(entry.input)
    if entry.output:
        shown.append(f"→ {entry.output}" if entry.input is not None else entry.output)
    if entry.error is not None:
        shown.append(entry.error.headline)
    return "  ".join(shown)
