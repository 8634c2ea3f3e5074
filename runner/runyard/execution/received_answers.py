"""The answers that no earlier attempt of the run has received."""

from __future__ import annotations

from ..domain.requests import HitlRequest
from ..events.writer import EventEmitter
from ..ports.results import Ledger


class ReceivedAnswers:
    """Announces each answer once. Answers that an earlier attempt has received are left out."""

    def __init__(self, stream: EventEmitter) -> None:
        self._stream = stream
        self._announced: set[str] = set()

    def announce(self, ledger: Ledger) -> list[HitlRequest]:
        """For each unannounced answer in ``ledger``, emit an event. Return the requests of these answers."""
        new = [ledger.requests[request_id] for request_id in ledger.received if request_id not in self._announced]
        for request in new:
            self._announced.add(request.request_id)
            self._stream.emit("hitl.answered", {"request_id": request.request_id, "answer": request.answer})
        return new
