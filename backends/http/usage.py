"""What the key's tenant used, over HTTP."""

from __future__ import annotations

from datetime import date

from runner.usage import UsageReport

from .bodies import read
from .direct import DirectOnly
from .wire import Wire


class HttpUsageStore(DirectOnly):
    """The client's half of :class:`runner.ports.UsageStore`."""

    def __init__(self, wire: Wire) -> None:
        super().__init__("usage")
        self._wire = wire

    async def report(self, since: date | None = None, until: date | None = None, *, agent: str | None = None) -> UsageReport:
        """What the runs used that ended on these days."""
        query = {"since": _text(since), "until": _text(until), "agent": agent}
        return read(UsageReport, (await self._wire.ask("GET", "usage", query=query)).data)


def _text(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
