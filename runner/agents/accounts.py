"""What a run used: counted once, whatever became of the attempt that used it."""

from __future__ import annotations

from ..models import Usage, check_usage


class Accounts:
    """The usage of one attempt, to be written with its end (``uncounted``: None if there is none).

    An attempt that crashed wrote the messages and steps that it paid for, and not what they cost: what a later one finds stored
    beyond ``written``, which the run's record has, is written by that one.
    """

    def __init__(self, written: Usage) -> None:
        self.uncounted: Usage | None = None
        self._written = written
        self._found = Usage()
        self._made_up = Usage()
        self._seen: set[str] = set()

    def add(self, usage: Usage | None, id: str | None = None) -> None:
        """Count what this attempt used, once for the message ``id`` that carries it. Raises InvalidInputError for what is no
        amount."""
        if usage is not None and id not in self._seen:
            check_usage(usage)
            self.uncounted = usage if self.uncounted is None else self.uncounted + usage
        if id is not None:
            self._seen.add(id)

    def found(self, usage: Usage | None, id: str) -> None:
        """An earlier attempt stored the message ``id`` with its usage."""
        if usage is None or id in self._seen:
            return
        self._seen.add(id)
        self._found += usage
        missing = less(self._found, self._written + self._made_up)
        if missing != Usage():
            self._made_up += missing
            self.add(missing)


def less(usage: Usage, other: Usage) -> Usage:
    """What ``usage`` has beyond ``other``, field by field and never less than nothing."""
    return Usage(**{name: max(0, getattr(usage, name) - getattr(other, name)) for name in Usage.model_fields})
