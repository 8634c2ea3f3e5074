"""What a person reads while a run goes on."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from runyard.models import Event, JsonObject
from runyard_api.cli.view.live_run import Printer


def printed(*events: tuple[str, JsonObject]) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=200, color_system=None)
    printer = Printer(console, console)
    for kind, data in events:
        printer.show(Event(id=None, type=kind, thread_id="t", run_id="r", data=data))
    printer.finish()
    return out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"attempt": 2, "takeover": False}, "↺ attempt 2 continues from the last stored message"),
        ({"attempt": 2}, "↺ attempt 2 continues from the last stored message"),
        (
            {"attempt": 2, "error": {"code": "agent_error", "message": "down", "details": {"type": "ConnectionError"}}},
            "↺ attempt 2 continues from the last stored message, after ConnectionError: down",
        ),
        ({"attempt": 3, "takeover": True}, "↺ attempt 3: another worker takes over from the last stored message"),
    ],
)
def test_watch_tells_a_retry_from_a_takeover(data: JsonObject, line: str) -> None:
    assert printed(("run.rewound", data)) == [line]


def test_a_message_that_arrives_twice_is_printed_once() -> None:
    message: JsonObject = {"role": "assistant", "content": [{"type": "text", "text": "Done."}]}
    event: tuple[str, JsonObject] = ("message.completed", {"message_id": "m1", "message": message})
    assert printed(event, event) == ["Done."]
