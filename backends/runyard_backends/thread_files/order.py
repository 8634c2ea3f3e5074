"""Find the order in which an import must repeat the claims, messages and completions of a branch.

Messages are ordered by message number, and completions by completion number. The store records no common order of messages and
completions. The parents of messages show this order. The parent of a message without a run is the last visible message at its
append. The parent of a run's first message is the last visible message at the run's claim. An import must therefore claim a
run while this parent is the last visible message. A completion may change the last visible message. The line of such a
completion comes directly before the first line that needs the change. If the parents leave the order of two lines open, the
lines are ordered by their times.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from runyard.models import Message

from .records import CancelLine, ClaimLine, CompleteLine, ForkLine, Line, MessageLine

ENDED_WITHOUT_COMPLETION: Final = frozenset({"failed", "cancelled", "dead"})


@dataclass(slots=True)
class RunFacts:
    """The facts about one run by which its lines are ordered in the file. ``place``: the place among the completed runs of the
    thread, or None. ``deleted``: True if the run was deleted. ``first`` and the following fields describe the run's messages on
    the branch."""

    run_id: str
    status: str
    began: datetime | None
    ended: datetime | None
    place: tuple[int, int] | None
    deleted: bool = False
    first: int | None = None
    last: int = 0
    last_id: str = ""
    parent: str | None = None
    claimed: bool = False


@dataclass(slots=True)
class ForkPoint:
    """A fork of the thread. ``inherited``: True if the cut is at a message or a run that the thread inherited."""

    line: ForkLine
    made: datetime
    inherited: bool = False


class Forks:
    """The forks of a thread that have no line yet. The line of a fork must come after the lines of its cut."""

    def __init__(self, forks: Iterable[ForkPoint]) -> None:
        self._waiting: dict[str | None, list[ForkPoint]] = {}
        self._passed: list[tuple[datetime, str, ForkPoint]] = []
        for fork in forks:
            if fork.inherited:
                self._pass(fork)
            else:
                self._waiting.setdefault(fork.line.after_run_id or fork.line.at_message_id, []).append(fork)

    def _pass(self, fork: ForkPoint) -> None:
        heapq.heappush(self._passed, (fork.made, fork.line.thread_id, fork))

    def passed(self, cut: str) -> None:
        """Record that the line of a message, or the line that completes a run, was written. ``cut``: the id of the message or
        run. The lines of the forks with this cut may follow."""
        for fork in self._waiting.pop(cut, ()):
            self._pass(fork)

    def before(self, moment: datetime | None) -> list[ForkLine]:
        """Return the lines of the forks that were made before ``moment`` and may follow now: the cut of such a fork is
        inherited, or :meth:`passed` was called with the cut. If ``moment`` is None, the time does not matter. Each line is
        returned once."""
        made: list[ForkLine] = []
        while self._passed and (moment is None or self._passed[0][0] < moment):
            made.append(heapq.heappop(self._passed)[2].line)
        return made

    @property
    def lost(self) -> set[str]:
        """The ids of the forks that have no line."""
        waiting = {fork.line.thread_id for forks in self._waiting.values() for fork in forks}
        return waiting | {thread_id for _, thread_id, _ in self._passed}


@dataclass
class BranchOrder:
    """Makes the lines of one branch. ``read``: a function that returns the branch's messages from the beginning, in order.
    ``runs``: the runs of the thread, by id. ``mine``: the runs of the branch. ``forks``: the forks of the thread."""

    read: Callable[[], AsyncIterator[Message]]
    runs: Mapping[str, RunFacts]
    mine: Sequence[RunFacts]
    forks: Forks
    _leaf: str | None = None
    _leaf_seq: int = 0
    _waiting: deque[RunFacts] = field(default_factory=deque)
    _claims: dict[str | None, list[RunFacts]] = field(default_factory=dict)

    async def lines(self) -> AsyncIterator[Line]:
        """Yield the lines of the branch. Only one page of the messages is in memory."""
        completed = (run for run in self.mine if run.place is not None)
        self._waiting = deque(sorted(completed, key=lambda run: run.place or (0, 0)))
        for run in sorted((run for run in self.mine if run.first is not None), key=lambda run: run.first or 0):
            self._claims.setdefault(run.parent, []).append(run)
        began = False
        async for message in self.read():
            if not began:
                self._leaf, began = message.parent_id, True
            for line in self._before(message):
                yield line
            yield MessageLine(message=message.model_copy(update={"seq": None, "run_status": None}))
            self.forks.passed(message.id)
            if message.run_id is None:
                self._leaf, self._leaf_seq = message.id, message.seq or 0
        for line in self._rest():
            yield line

    def _before(self, message: Message) -> Sequence[Line]:
        """Return the lines that come directly before a message."""
        run = self.runs.get(message.run_id) if message.run_id is not None else None
        if message.run_id is not None and (run is None or run.claimed):
            return []
        seq, at = message.seq or 0, message.created_at
        if run is not None and run.began is not None:
            at = run.began
        made = self._until(message.parent_id, seq)
        while (ready := self._ready(seq)) is not None and ready.last < self._leaf_seq and _earlier(ready.ended, at):
            made += self._complete()
        if run is None:
            return [*made, *self._claim_here()]
        return [*made, *self._claim(run)]

    def _until(self, parent: str | None, seq: int) -> list[Line]:
        """Complete runs until ``parent`` is the last visible message."""
        made: list[Line] = []
        while self._leaf != parent and self._ready(seq) is not None:
            made += self._complete()
        return made

    def _ready(self, seq: int) -> RunFacts | None:
        """Return the next run to complete, or None if one of its messages has the number ``seq`` or a higher number."""
        first = self._waiting[0] if self._waiting else None
        return first if first is not None and first.last < seq else None

    def _complete(self) -> list[Line]:
        run = self._waiting.popleft()
        made = self._claim_here() if run.last > self._leaf_seq else []
        made += self._claim(run)
        made += self.forks.before(run.ended)
        made.append(CompleteLine(run_id=run.run_id))
        self.forks.passed(run.run_id)
        if run.last > self._leaf_seq:
            self._leaf, self._leaf_seq = run.last_id, run.last
        return made

    def _claim_here(self) -> list[Line]:
        """Claim the runs whose first message has the present last visible message as its parent. Call this method before the
        last visible message changes."""
        return [line for run in self._claims.pop(self._leaf, ()) for line in self._claim(run)]

    def _claim(self, run: RunFacts) -> list[Line]:
        """Claim a run, unless it is claimed already."""
        claimed, run.claimed = run.claimed, True
        return [] if claimed else [ClaimLine(run_id=run.run_id)]

    def _rest(self) -> list[Line]:
        made: list[Line] = []
        while self._waiting:
            made += self._complete()
        for run in self.mine:
            made += self._claim(run)
        made += self.forks.before(None)
        for run in self.mine:
            if run.place is None and run.status in ENDED_WITHOUT_COMPLETION:
                made.append(CancelLine(run_id=run.run_id, deleted=run.deleted))
        return made


async def survey(messages: AsyncIterator[Message], find: Callable[[str], Awaitable[RunFacts | None]]) -> list[RunFacts]:
    """Return the runs that have some of the ``messages``. In each run, set the fields that describe these messages. ``find``:
    returns the run with an id, or None if no run of the thread has this id."""
    found: dict[str, RunFacts] = {}
    async for message in messages:
        if message.run_id is None or (run := await find(message.run_id)) is None:
            continue
        if run.first is None:
            run.first, run.parent = message.seq, message.parent_id
            found[run.run_id] = run
        run.last, run.last_id = message.seq or 0, message.id
    return list(found.values())


def _earlier(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and other is not None and one <= other
