"""The usage of the probes of one attempt, until the store has recorded this usage (F14)."""

from __future__ import annotations

from dataclasses import replace

from ..domain.messages import Usage, check_usage
from ..ports.refs import AttemptToken
from ..ports.runs import RunStore
from ..support.store_retries import patiently
from .remainder import Remainder


class ProbeUsage:
    """The usage of probes and judges that the store has not recorded, by run id.

    If the store's reply to a write was lost, the store has possibly recorded the usage. :meth:`left` then asks the store, so
    that the usage counts once.
    """

    def __init__(self, runs: RunStore, attempt: AttemptToken) -> None:
        self._runs, self._attempt = runs, attempt
        self._unrecorded: dict[str, Usage] = {}
        self._sent: dict[str, str] = {}

    def add(self, probe_id: str, used: Usage) -> None:
        """Keep the usage of a probe."""
        self._unrecorded[probe_id] = used

    def sent(self, probe_id: str, key: str) -> None:
        """Note that the record ``key`` of a probe is being sent to the store."""
        self._sent[probe_id] = key

    def recorded(self, probe_id: str) -> None:
        """Remove the usage of a probe, because the store has recorded this usage."""
        self._sent.pop(probe_id, None)
        self._unrecorded.pop(probe_id, None)

    async def left(self) -> Remainder:
        """Return the usage that the end of the attempt must add to the usage of the run."""
        if self._sent:
            steps = (await patiently(lambda: self._runs.ledger(self._attempt))).steps
            for probe_id, key in list(self._sent.items()):
                if key in steps and steps[key].done and steps[key].fence == self._attempt.fence:
                    self.recorded(probe_id)
        if not self._unrecorded:
            return Remainder.nothing()
        return replace(Remainder.nothing(), usage=check_usage(sum(self._unrecorded.values(), Usage())))
