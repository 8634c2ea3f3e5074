"""Loading threads does not keep Python from finding garbage."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys

import pytest

from runyard.support import turns
from runyard.support.garbage_collector import FULL_COLLECTION_VALUES, MIN_VALUES, held_back

PROGRAM = """
import sys
import weakref
from runyard.support.garbage_collector import held_back, settle

class Cycle:
    def __init__(self):
        self.me = self

messages, loads = map(int, sys.argv[1:3])
if sys.argv[3] == "a process that serves":
    settle()
left = []
for _ in range(loads):
    with held_back(messages):
        made = [Cycle() for _ in range(messages)]
    left += [weakref.ref(one) for one in made[:1]]
    del made
assert sum(one() is not None for one in left) < loads / 2
"""


@pytest.mark.parametrize("process", ["a program", "a process that serves"])
@pytest.mark.parametrize(("messages", "loads"), [(3, 40_000), (MIN_VALUES, 3 * FULL_COLLECTION_VALUES // MIN_VALUES)])
def test_garbage_between_two_loads_is_found(process: str, messages: int, loads: int) -> None:
    """Whether threads are short or long: cycles of a worker that only loads are gone without anybody's asking.

    In a process of its own, which has few objects. The process of the tests has a million that are frozen.
    """
    subprocess.run([sys.executable, "-c", PROGRAM, str(messages), str(loads), process], timeout=60, check=True)


def test_the_collector_is_as_it_was() -> None:
    """Also after an error; and where the host has turned it off."""
    with pytest.raises(ZeroDivisionError), held_back(MIN_VALUES):
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with held_back(MIN_VALUES):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_other_tasks_run_with_the_collector_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's task may start a process or measure memory. After an error the collector is on."""
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)
    seen: list[bool] = []

    async def other() -> None:
        for _ in range(3):
            seen.append(gc.isenabled())
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    with pytest.raises(ZeroDivisionError), held_back(MIN_VALUES) as pause:
        for _ in range(4):
            await pause.turn(0.0)
            assert not gc.isenabled()
        raise ZeroDivisionError
    await task
    assert gc.isenabled() and seen == [True] * 3


async def test_a_collector_that_a_host_turns_off_meanwhile_stays_off() -> None:
    """A host's task may turn the collector off while the event loop runs. It stays off, also after later turns."""
    try:
        with held_back(MIN_VALUES) as pause:
            asyncio.get_running_loop().call_soon(gc.disable)
            for _ in range(2):
                await pause.turn(0.0)
                assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_a_collector_that_a_host_turned_on_again_is_not_paused() -> None:
    """After a host has turned the collector off, only the host turns it on, and it stays on."""
    try:
        with held_back(MIN_VALUES) as pause:
            for change in (gc.disable, gc.enable):
                asyncio.get_running_loop().call_soon(change)
                await pause.turn(0.0)
            assert gc.isenabled()
        assert gc.isenabled()
    finally:
        gc.enable()
