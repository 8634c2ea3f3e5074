"""Lost tasks of a worker, and attempts that begin while lost ones are released (W4)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from runyard.ports.refs import AttemptToken
from runyard.ports.scheduling import Effects
from runyard.worker.lost_tasks import LostTaskDetector

ATTEMPTS = [AttemptToken(1, "a", 1), AttemptToken(2, "b", 2)]


class Held:
    """A store in which a worker holds ``ATTEMPTS``, and the worker's tasks.

    ``begin``: whether the other attempts begin during a release.
    """

    def __init__(self, *, begin: bool) -> None:
        self.begin = begin
        self.tasks: dict[Any, Any] = {}
        self.released: list[AttemptToken] = []

    async def running(self, worker_id: str) -> list[AttemptToken]:
        return [each for each in ATTEMPTS if each not in self.released]

    async def release(self, attempt: AttemptToken, *, first_event: int | None) -> Any:
        self.released.append(attempt)
        if self.begin:
            self.tasks |= {each.ref: SimpleNamespace(attempt=each) for each in ATTEMPTS if each != attempt}
        return SimpleNamespace(effects=Effects())

    def detector(self) -> LostTaskDetector:
        backend: Any = SimpleNamespace(workers=self, runs=self)
        slots: Any = SimpleNamespace(execution=self.tasks.get)
        sender: Any = SimpleNamespace(carry_out=lambda effects: None)
        claim_loop: Any = SimpleNamespace(claiming=set())
        return LostTaskDetector(backend, slots, claim_loop, sender)


async def test_an_attempt_without_a_task_is_released_at_the_second_look() -> None:
    """W4: the reply with an attempt may still be on its way at the first look."""
    held = Held(begin=False)
    detector = held.detector()
    await detector.check("w")
    assert held.released == []
    await detector.check("w")
    assert set(held.released) == set(ATTEMPTS)


async def test_an_attempt_that_begins_during_a_release_is_kept() -> None:
    """W4: an attempt with a task is not lost, even if it had none as the look began."""
    held = Held(begin=True)
    detector = held.detector()
    for _ in range(3):
        await detector.check("w")
    assert len(held.released) == 1 and len(held.tasks) == 1
