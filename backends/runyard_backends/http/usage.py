"""Usage of the API key's tenant, over HTTP."""

from __future__ import annotations

from datetime import date

from runyard.domain.usage_report import UsageReport

from .codec import read
from .transport import Transport
from .unsupported import DirectOnly


class HttpUsageStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.UsageStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("usage")
        self._transport = transport

    async def report(self, since: date | None = None, until: date | None = None, *, agent: str | None = None) -> UsageReport:
        """Return the usage of the runs that ended from the day ``since`` to the day ``until``, both included. ``until``: by
        default today. ``since``: by default 29 days before ``until``. ``agent``: count runs of this agent only."""
        query = {"since": _text(since), "until": _text(until), "agent": agent}
        return read(UsageReport, (await self._transport.ask("GET", "usage", query=query)).data)


def _text(day: date | None) -> str | None:
    return None if day is None else day.isoformat()
