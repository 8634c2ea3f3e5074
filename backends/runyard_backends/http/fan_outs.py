"""Fan-outs over HTTP: the reads of clients."""

from __future__ import annotations

from runyard.domain.fan_outs import Candidate, FanOutProgress
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.results import Page

from .codec import paging, read, read_page
from .transport import Transport
from .unsupported import DirectOnly


class HttpFanOutStore(DirectOnly):
    """The client's part of :class:`runyard.ports.fan_outs.FanOutStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("fan_outs")
        self._transport = transport

    async def progress(self, thread_id: str, run_id: str) -> FanOutProgress:
        """Count the candidates."""
        answer = await self._transport.ask("GET", "threads", thread_id, "runs", run_id, "progress")
        return read(FanOutProgress, answer.data)

    async def candidates(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[Candidate]:
        """Return a page of the candidates."""
        path = ("threads", thread_id, "runs", run_id, "candidates")
        return read_page(Candidate, (await self._transport.ask("GET", *path, query=paging(page))).data)
