"""The report of an import of threads: numbers of imported entries, and notes about data that was not imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Outcome: TypeAlias = Literal["imported", "unchanged", "added", "refused", "failed"]

MAX_NOTES: Final = 1000
"""Maximum number of notes in a report. Further notes are only counted."""


@dataclass(frozen=True, slots=True)
class Note:
    """A note about data of a thread that the import left out, or the reason why the thread was not imported."""

    thread_id: str
    what: str


@dataclass(slots=True)
class Report:
    """The result of an import: numbers and notes.

    ``outcomes``: the number of threads by outcome. ``imported``: the thread is new in this deployment. ``unchanged``: an
    earlier import has made the thread. ``added``: this import has added messages to a thread of an earlier import. ``refused``:
    another thread has the id, or the id is invalid. ``failed``: a row cannot be read or stored, and the rest of the thread was
    not imported. ``forks``: the number of threads that became forks.
    """

    dry_run: bool
    version: int
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    messages: int = 0
    runs: int = 0
    forks: int = 0
    requests: int = 0
    answers: int = 0
    notes: list[Note] = field(default_factory=list)
    more_notes: int = 0

    def count(self, outcome: Outcome) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def note(self, thread_id: str, what: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(Note(thread_id, what))
        else:
            self.more_notes += 1

    @property
    def complete(self) -> bool:
        """True if the deployment has every thread of the source."""
        return not (self.outcomes.get("refused") or self.outcomes.get("failed"))
