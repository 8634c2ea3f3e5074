"""Print the events of a run while they arrive."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from rich.console import Console

from runyard.models import Event, HitlRequest

from .output import escape, question

_ENDINGS = {
    "run.completed": "[green]● completed[/]",
    "run.cancelled": "[bright_black]● cancelled[/]",
    "run.failed": "[red]● failed[/]",
    "run.dead": "[bold red]● dead[/]",
    "run.suspended": "[magenta]● suspended[/]",
}
_NOTES = {
    "run.queued": "○ queued",
    "run.started": "◐ started",
    "run.resumed": "◐ resumed",
    "hitl.answered": "◐ answered",
    "gap": "┄ some events were lost; the stored ones follow",
}


class Printer:
    """Prints the tokens of messages on ``out`` and every other event on ``notes``.

    Each message is printed once. If its tokens do not arrive, the message is printed when it is complete.
    """

    def __init__(self, out: Console, notes: Console | None = None) -> None:
        self.out, self.notes = out, notes
        self.printed: set[str] = set()
        self.open_line = False
        self.text = ""

    def show(self, event: Event) -> None:
        handler = getattr(self, "_" + event.type.replace(".", "_"), None)
        if handler is not None:
            handler(event.data)
        elif event.type in _ENDINGS:
            error = _error_words(event.data)
            self._note(_ENDINGS[event.type] + (f" {escape(error)}" if error else ""))
        elif event.type in _NOTES:
            self._note(f"[bright_black]{_NOTES[event.type]}[/]")

    def finish(self) -> None:
        """End the line of an incomplete message."""
        if self.open_line:
            self.out.print()
            self.open_line = False

    def _message_delta(self, data: dict[str, Any]) -> None:
        self.printed.add(str(data.get("message_id")))
        self._type(str(data.get("text", "")))

    def _message_completed(self, data: dict[str, Any]) -> None:
        message = data.get("message") or {}
        for part in message.get("content") or []:
            if part.get("type") == "tool_result":
                content = part.get("content")
                words = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
                self._note(f"[yellow]  → {escape(words[:200])}[/]")
        message_id = str(data.get("message_id") or message.get("id"))
        if message.get("role") == "assistant" and message_id not in self.printed:
            self.printed.add(message_id)
            parts = message.get("content") or []
            self._type("".join(part.get("text", "") for part in parts if part.get("type") == "text"))
        self.finish()

    def _tool_started(self, data: dict[str, Any]) -> None:
        arguments = json.dumps(data.get("arguments") or {}, ensure_ascii=False)
        self._note(f"[yellow]⚙ {escape(str(data.get('name', 'tool')))}[/][bright_black]{escape(arguments)}[/]")

    def _tool_completed(self, data: dict[str, Any]) -> None:
        if data.get("is_error"):
            self._note(f"[yellow]  {escape(str(data.get('name', 'tool')))} failed[/]")

    def _hitl_requested(self, data: dict[str, Any]) -> None:
        request = data.get("request")
        asked = question(HitlRequest.model_validate(request)) if isinstance(request, dict) else "the run waits for an answer"
        self._note(f"[magenta]? {escape(asked)}[/]")

    def _candidate_ended(self, data: dict[str, Any]) -> None:
        counts = f"{data.get('ended')} of {data.get('total')}"
        self._note(
            f"[bright_black]{escape(counts)} candidates ended: {escape(str(data.get('number')))} {data.get('status')}[/]"
        )

    def _run_rewound(self, data: dict[str, Any]) -> None:
        attempt = escape(str(data.get("attempt")))
        how = ": another worker takes over" if data.get("takeover") else " continues"
        error = _error_words(data)
        why = f", after {escape(error)}" if error else ""
        self._note(f"[yellow]↺ attempt {attempt}{how} from the last stored message{why}[/]")

    def _type(self, text: str) -> None:
        if text:
            self.out.print(text, end="", markup=False, emoji=False)
            self.out.file.flush()
            self.open_line = True

    def _note(self, markup: str) -> None:
        self.finish()
        if self.notes is not None:
            self.notes.print(markup)


def _error_words(data: dict[str, Any]) -> str:
    """Return the class or the code of the error in the data of an event, and its message. Without an error, return ""."""
    error = data.get("error")
    if not isinstance(error, dict):
        return ""
    kind = (error.get("details") or {}).get("type", error.get("code"))
    return f"{kind}: {error.get('message')}"


async def show(events: AsyncIterator[Event], printer: Printer) -> None:
    """Print ``events`` until they end."""
    try:
        async for event in events:
            printer.show(event)
    finally:
        printer.finish()
