"""Map the ids in a file to the ids in the deployment."""

from __future__ import annotations

from dataclasses import dataclass

from runyard.domain.derived_ids import derived_id
from runyard.models import ROOT_ID, HitlRequest, Message


@dataclass(frozen=True, slots=True)
class Ids:
    """Maps the ids of a file. ``export_id``: the id of the file's export, from which new ids are derived. If ``export_id`` is
    None, all ids are kept. A repeated import of the same file gets the same new ids."""

    export_id: str | None = None

    def _of(self, kind: str, given: str) -> str:
        return given if self.export_id is None else derived_id(f"imported {kind}", self.export_id, given)

    def thread(self, thread_id: str) -> str:
        return self._of("thread", thread_id)

    def run_of(self, run_id: str) -> str:
        return self._of("run", run_id)

    def run(self, run_id: str | None) -> str | None:
        return self.run_of(run_id) if run_id is not None else None

    def message_of(self, message_id: str) -> str:
        return message_id if message_id == ROOT_ID else self._of("message", message_id)

    def message(self, message_id: str | None) -> str | None:
        return self.message_of(message_id) if message_id is not None else None

    def in_message(self, message: Message) -> Message:
        """Return a message with its new ids."""
        ids = {"id": self.message_of(message.id), "run_id": self.run(message.run_id), "parent_id": None, "created_at": None}
        return message.model_copy(update=ids)

    def in_request(self, request: HitlRequest) -> HitlRequest:
        """Return a request with its new ids."""
        ids = {"request_id": self._of("request", request.request_id), "run_id": self.run(request.run_id)}
        if request.response_id is not None:
            ids["response_id"] = self._of("response", request.response_id)
        return request.model_copy(update=ids)
