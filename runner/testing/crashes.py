"""Workers that die at a chosen write, and what they leave behind."""

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

Write = Literal["claim", "append", "start_step", "finish_step", "complete", "suspend", "fail", "release"]
"""What a worker commits for a run, in the words of the store."""
Moment = Literal["before", "after"]

WRITES: Final = frozenset(get_args(Write))


@dataclass
class Crash:
    """The worker dies ``moment`` the ``nth`` write that is made from now on; of ``verb`` only, if there is one."""

    moment: Moment
    verb: Write | None
    nth: int

    def __str__(self) -> str:
        return f"the worker was to die {self.moment} the {self.verb or 'write'} that is {self.nth} away"


class Fuse:
    """Where the workers of a harness die. ``writes``: what they made or were about to make, in order; ``changed``: one was."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.writes: list[Write] = []
        self.armed: list[Crash] = []

    def blows(self, verb: Write, moment: Moment) -> bool:
        """Whether this is the place; each crash happens once."""
        if moment == "before":
            self.writes.append(verb)
            for crash in self.armed:
                crash.nth -= crash.verb in (None, verb)
        here = [crash for crash in self.armed if not crash.nth and crash.moment == moment and crash.verb in (None, verb)]
        self.armed = [crash for crash in self.armed if crash not in here]
        return bool(here)


class Wire:
    """A port as one worker reaches it. Once the worker is dead nothing passes, as if its fence were stale. ``die``: called with
    the answer that the worker did not live to hear, None if it died before its write."""

    def __init__(self, inner: Any, fuse: Fuse, die: Callable[[Any], None]) -> None:
        self._inner, self._fuse, self._die = inner, fuse, die
        self.cut = False

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
                self._fuse.changed.set()
            self._pass(verb, "after", answer)
            return answer

        return call

    def _pass(self, verb: str, moment: Moment, answer: Any = None) -> None:
        if not self.cut and verb in WRITES and self._fuse.blows(verb, moment):  # type: ignore[arg-type]
            self.cut = True
            self._die(answer)
        if self.cut:
            raise StaleFenceError("this worker died, as the test wants it")


async def crash_everywhere(app: App, scenario: Callable[[Harness], Awaitable[object]]) -> int:
    """Execute ``scenario`` once as it is, then again and again with a worker that dies: before and after each of its writes.

    The scenario prompts, answers and asserts, for example that a payment was made once; it gets a fresh harness each time, and
    sets back what it keeps outside. What it raises has a note that says where the worker died. Returns how many crashes there
    were.
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
                error.add_note(f"the worker was to die {moment} write {n} of {len(writes)}: {verb}")
                raise
    return 2 * len(writes)
