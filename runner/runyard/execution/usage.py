"""Usage of a run. Each amount is counted once, even if an attempt crashed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..domain.messages import Message, Usage, check_usage, model_name

_NONE: Final = Usage()


class UsageMeter:
    """The usage of one attempt, which is written with the attempt's end.

    ``written``: the usage in the run's record. ``uncounted``: the usage to add to this record, or None. ``on_used``: a
    function that is called with usage of this attempt and the name of its model. The name is the empty text if it is unknown.

    A crashed attempt may have stored messages and steps whose usage is not in the record. The next attempt reads these
    messages and steps, and adds their usage.
    """

    def __init__(self, written: Usage, on_used: Callable[[Usage, str], None] | None = None) -> None:
        self.uncounted: Usage | None = None
        self._on_used = on_used
        self._written = written
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
        """Count the usage of a message that an earlier attempt stored, unless the run's record includes that usage."""
        if usage is None or id in self._seen:
            return
        self._seen.add(id)
        self._found += usage
        missing = less(self._found, self._written + self._made_up)
        if missing != _NONE:
            self._made_up += missing
            self._add(missing)

    def _add(self, usage: Usage) -> None:
        check_usage(usage)
        self.uncounted = usage if self.uncounted is None else check_usage(self.uncounted + usage)


def less(usage: Usage, other: Usage) -> Usage:
    """Return ``usage`` minus ``other``, field by field. Negative differences become 0."""
    return Usage(**{name: max(0, getattr(usage, name) - getattr(other, name)) for name in Usage.model_fields})
