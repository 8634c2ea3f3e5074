"""Usage of a run. Each amount is counted once, even if an attempt crashed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..domain.messages import Message, Usage, check_usage, model_name
from ..errors import BackendUnavailableError

_NONE: Final = Usage()


class UsageMeter:
    """The usage of one attempt. The usage is written with the messages, with the results of steps, and with the attempt's end.

    ``written``: the usage in the run's record at the start of the attempt. ``used``: the usage of the attempt, or None.
    ``uncounted``: the usage of the attempt that the record lacks, or None. ``in_doubt``: True if the store has not answered a
    write of usage. ``on_used`` is called with usage of this attempt and the name of its model. An unknown name is the empty
    text.

    A crashed attempt of an older release may have stored messages and steps without adding their usage to the record. The next
    attempt that reads these messages and steps adds their usage.
    """

    def __init__(self, written: Usage, on_used: Callable[[Usage, str], None] | None = None) -> None:
        self.used: Usage | None = None
        self.uncounted: Usage | None = None
        self.in_doubt = False
        self._on_used = on_used
        self._written = self._recorded = written
        self._found = self._made_up = _NONE
        self._seen: set[str] = set()

    def add(self, usage: Usage, model: str = "") -> None:
        """Count usage of this attempt. Raises InvalidInputError for an invalid amount."""
        self._add(usage)
        if self._on_used is not None:
            self._on_used(usage, model)

    def add_message(self, message: Message) -> None:
        """Count the usage of a message of this attempt. Count each message once.

        Raises InvalidInputError for an invalid amount.
        """
        if message.usage is not None and message.id not in self._seen:
            self.add(message.usage, model_name(message))
        self._seen.add(message.id)

    def found(self, usage: Usage | None, id: str) -> None:
        """Count the usage of a message of an earlier attempt, if this usage is missing in the run's record."""
        if usage is None or id in self._seen:
            return
        self._seen.add(id)
        self._found += usage
        missing = less(self._found, self._written + self._made_up)
        if missing != _NONE:
            self._made_up += missing
            self._add(missing)

    @contextmanager
    def recording(self) -> Iterator[Usage | None]:
        """Yield the usage of the run so far, for a write. Yield None if the run's record already has this usage. Only one block
        of ``recording`` may be executed at a time."""
        uncounted, self.uncounted = self.uncounted, None
        total = self._recorded + uncounted if uncounted is not None else None
        try:
            yield total
        except BaseException as error:
            self.in_doubt = self.in_doubt or isinstance(error, BackendUnavailableError)
            self.uncounted = _sum(uncounted, self.uncounted)
            raise
        if total is not None:
            self._recorded, self.in_doubt = total, False

    def settle(self, recorded: Usage) -> None:
        """Set ``in_doubt`` to False after a read of the run's record. ``recorded``: the usage in this record."""
        missing = less(_sum(self._recorded, self.uncounted) or _NONE, recorded)
        self.uncounted = missing if missing != _NONE else None
        self._recorded, self.in_doubt = recorded, False

    def _add(self, usage: Usage) -> None:
        check_usage(usage)
        check_usage(_sum(self.used, usage) or _NONE)
        self.used, self.uncounted = _sum(self.used, usage), _sum(self.uncounted, usage)


def less(usage: Usage, other: Usage) -> Usage:
    """Return ``usage`` minus ``other``, field by field. Negative differences become 0."""
    return Usage(**{name: max(0, getattr(usage, name) - getattr(other, name)) for name in Usage.model_fields})


def _sum(usage: Usage | None, other: Usage | None) -> Usage | None:
    return usage + other if usage is not None and other is not None else usage or other
