"""A history, arranged for the checks of its rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tests.chaos.history import Accept, History, Key, MessageRow, RunRow
from tests.support.agents.chaos import Note


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: its number in docs/reference/rules.md, and the run that broke it."""

    rule: str
    what: str
    key: Key | None = None


class Reading:
    """A history, arranged for the checks of the rules."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def lanes(self) -> dict[tuple[str, str], list[RunRow]]:
        """Return the admitted runs by lane, in the order of their admission."""
        found: defaultdict[tuple[str, str], list[RunRow]] = defaultdict(list)
        for run in self.history.runs.values():
            if run.lane is not None and run.lane_seq is not None:
                found[run.key[0], run.lane].append(run)
        return {lane: sorted(runs, key=lambda run: run.lane_seq or 0) for lane, runs in found.items()}

    @cached_property
    def messages(self) -> dict[Key, list[MessageRow]]:
        found: defaultdict[Key, list[MessageRow]] = defaultdict(list)
        for thread, rows in self.history.messages.items():
            for row in rows:
                found[thread, row.run].append(row)
        return found

    @cached_property
    def notes(self) -> dict[str, list[Note]]:
        found: defaultdict[str, list[Note]] = defaultdict(list)
        for note in self.history.notes:
            found[note.what].append(note)
        return found

    @cached_property
    def accepts(self) -> dict[Key, Accept]:
        return {accept.key: accept for accept in self.history.seen.accepts}

    def counted(self, thread: str, below: Callable[[RunRow], bool]) -> list[str]:
        """Return the ids of the messages of a thread's own counted runs on its main branch for which ``below`` is true."""
        return [
            row.id
            for row in self.history.messages.get(thread, [])
            if (run := self.history.runs.get((thread, row.run))) is not None and run.counts and not run.parallel and below(run)
        ]

    def snapshot(self, thread: str, cutoff: int) -> list[str]:
        """Return the ids of the messages that the thread's main branch shows up to a completion."""
        return self.bases.get(thread, []) + self.counted(thread, lambda run: (run.completion_seq or 0) <= cutoff)

    @cached_property
    def bases(self) -> dict[str, list[str]]:
        """Return the ids of the messages that each fork inherits, computed from the rows of its source."""
        found: dict[str, list[str]] = {}
        for fork in self.history.seen.forks:  # a fork of a fork was made after its source
            at, inherited = fork.source, found.get(fork.source, [])
            while (at, fork.after) not in self.history.runs:
                at = next(one.source for one in self.history.seen.forks if one.new == at)
                inherited = found.get(at, [])
            cut = self.history.runs[at, fork.after].completion_seq or 0
            found[fork.new] = inherited + self.counted(at, lambda run, cut=cut: (run.completion_seq or 0) <= cut)  # type: ignore[misc]
        return found
