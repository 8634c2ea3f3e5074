"""Simulated crashes: workers that die at a chosen write."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ..errors import StaleFenceError

if TYPE_CHECKING:
    from ..app import App
    from .harness import Harness

Write = Literal["claim", "append", "start_step", "finish_step", "complete", "suspend", "start_child", "fail", "release"]
"""The writes that a worker commits for a run, by the names of the store's methods."""
Moment = Literal["before", "after"]

WRITES: Final = frozenset(get_args(Write))


@dataclass
class Crash:
    """A crash before or after (``moment``) the ``nth`` write from now on. ``verb``: count only the writes of this name."""

    moment: Moment
    verb: Write | None
    nth: int

    def __str__(self) -> str:
        return f"the ordered crash {self.moment} {self.verb or 'a write'} did not happen; writes still needed: {self.nth}"


class CrashPlan:
    """The crashes of a harness.

    ``writes``: the writes of workers, in order, including the writes that a crash prevented. ``changed``: an event that is set
    after each write. ``pending``: the crashes that have not happened yet.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.writes: list[Write] = []
        self.pending: list[Crash] = []

    def crashes_at(self, verb: Write, moment: Moment) -> bool:
        """Record a write. Return whether a planned crash happens before or after this write. Each planned crash happens
        once."""
        if moment == "before":
            self.writes.append(verb)
            for crash in self.pending:
                crash.nth -= crash.verb in (None, verb)
        here = [crash for crash in self.pending if not crash.nth and crash.moment == moment and crash.verb in (None, verb)]
        self.pending = [crash for crash in self.pending if crash not in here]
        return bool(here)


class CrashingPort:
    """Wraps a port of one worker, and simulates the crashes of ``crash_plan`` before or after the worker's writes.

    After the crash every call raises StaleFenceError. ``die``: a function that is called at the crash. The argument of ``die``
    is the store's answer, which the worker does not receive. The argument is None for a crash before the write.
    """

    def __init__(self, inner: Any, crash_plan: CrashPlan, die: Callable[[Any], None]) -> None:
        self._inner, self._crash_plan, self._die = inner, crash_plan, die
        self.dead = False

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._inner, verb)
        if not inspect.iscoroutinefunction(method):
            return method

        @functools.wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._pass(verb, "before")
            try:
                answer = await method(*args, **kwargs)
            finally:
                self._crash_plan.changed.set()
            self._pass(verb, "after", answer)
            return answer

        return call

    def _pass(self, verb: str, moment: Moment, answer: Any = None) -> None:
        if not self.dead and verb in WRITES and self._crash_plan.crashes_at(verb, moment):  # type: ignore[arg-type]
            self.dead = True
            self._die(answer)
        if self.dead:
            raise StaleFenceError("this worker died in a simulated crash")


async def crash_everywhere(app: App, scenario: Callable[[Harness], Awaitable[object]]) -> int:
    """Execute ``scenario`` once without a crash. Then execute the scenario twice for each of its writes: with a crash before
    the write, and with a crash after the write.

    The scenario sends prompts and answers, and asserts, for example, that a payment was made once. Each execution gets a new
    harness. If the scenario has state outside of the harness, it must reset this state. An exception of the scenario gets a
    note with the place of the crash.

    Returns the number of crashes.
    """
    from .harness import Harness

    async with Harness(app) as harness:
        await scenario(harness)
    writes = harness.writes
    for n, verb in enumerate(writes, 1):
        for moment in get_args(Moment):
            try:
                async with Harness(app) as harness:
                    harness.crash(moment, nth=n)
                    await scenario(harness)
            except BaseException as error:
                error.add_note(f"planned crash: {moment} write {n} of {len(writes)}, {verb}")
                raise
    return 2 * len(writes)
