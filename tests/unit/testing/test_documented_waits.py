"""The first example of docs/how-to/waits.md."""

import re
from pathlib import Path
from typing import Any

from runyard import App
from runyard.testing import Harness

PAGE = Path(__file__).parents[3] / "docs/how-to/waits.md"


async def test_the_message_before_a_sleep_is_stored_once() -> None:
    """K1: the code before the sleep is executed again after the sleep, and the result of its step is replayed."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    async with Harness(App(names["remind"])) as harness:
        run = await harness.prompt("t", "remind me")
        assert run.attempts > 1
        texts = [message.text for message in await harness.messages("t")]
    assert texts == ["remind me", "I will come back to this in three days.", "Three days have passed."]
