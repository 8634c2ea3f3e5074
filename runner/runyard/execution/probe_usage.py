"""The usage of the probes of one attempt, until the store has it (F14)."""

from __future__ import annotations

from dataclasses import replace

from ..domain.messages import Usage, check_usage
from .remainder import Remainder


class ProbeUsage:
    """The usage of probes and judges that is not yet in a record of the store. The key is the run id."""

    def __init__(self) -> None:
        self._unrecorded: dict[str, Usage] = {}

    def add(self, probe_id: str, used: Usage) -> None:
        self._unrecorded[probe_id] = used

    def recorded(self, probe_id: str) -> None:
        """Drop the usage of a probe, because the record of the probe now contains the usage."""
        self._unrecorded.pop(probe_id, None)

    def left(self) -> Remainder:
        """Return the usage that the end of the attempt has to add to the usage of the run."""
        if not self._unrecorded:
            return Remainder.nothing()
        return replace(Remainder.nothing(), usage=check_usage(sum(self._unrecorded.values(), Usage())))
