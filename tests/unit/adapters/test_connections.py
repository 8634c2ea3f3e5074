"""The connections of savers and sessions to a URL."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.adapters.langgraph_saver import RunyardSaver
from runyard.errors import BackendUnavailableError
from runyard_backends.embedded.process import free_port

THREAD: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def unreachable() -> str:
    return f"postgresql://127.0.0.1:{free_port()}/none"


async def test_a_close_after_a_failed_connect_raises_nothing() -> None:
    """The call that connected has raised the error. A close that raised it again would hide another error of the block."""
    saver = RunyardSaver(unreachable())
    with pytest.raises(BackendUnavailableError):
        await saver.aget_tuple(THREAD)
    await saver.aclose()
    with pytest.raises(ValueError, match="mine"):
        async with RunyardSaver(unreachable()) as other:
            with pytest.raises(BackendUnavailableError):
                await other.aget_tuple(THREAD)
            raise ValueError("mine")


def test_a_synchronous_close_after_a_failed_connect_raises_nothing() -> None:
    with RunyardSaver(unreachable()) as saver, pytest.raises(BackendUnavailableError):
        saver.get_tuple(THREAD)
