"""The import of the HITL requests of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from runyard.models import HitlRequest
from runyard.ports.queries import PageRequest
from runyard.ports.stores import RequestStore

from ..paging import items_of
from .marks import name_of

if TYPE_CHECKING:
    from .section import Section


class RequestImport:
    """Saves the requests of a section with their answers. Changes only requests that imports have made."""

    def __init__(self, section: Section) -> None:
        self._section, self._backend, self._report = section, section.backend, section.report

    async def take(self, request: HitlRequest) -> None:
        """Save a request and its answer. Skip what the deployment already has."""
        section, name = self._section, name_of("request", request.request_id)
        known = await self._backend.runs.request(request.request_id)
        if why := await self._obstacle(request, known):
            self._report.note(section.id, f"the request {request.request_id}, because {why}")
            return
        if known is None:
            if not self._report.dry_run:
                await self._save(request)
            self._report.requests += 1
        if request.answered_at is None:
            if known is None or self._made(known):
                section.open.add(name)
            return
        if known is None or known.answered_at is None:
            if not self._report.dry_run:
                await self._backend.runs.respond(
                    request.answer,
                    thread_id=section.id,
                    request_id=request.request_id,
                    response_id=request.response_id,
                    answered_by=request.answered_by,
                    on_behalf_of=request.on_behalf_of,
                )
            self._report.answers += 1
        section.open.discard(name)

    async def _obstacle(self, request: HitlRequest, known: HitlRequest | None) -> str | None:
        """Return the reason why the request cannot be imported, or None. ``known``: the request of the deployment with the same
        id, or None."""
        section = self._section
        if known is not None:
            if known.thread_id != section.id:
                return "another thread has a request with this id"
            if known.answered_at is not None:
                return None
            if known.run_id in section.over:
                return "the deployment has ended its run"
            if request.answered_at is not None and not self._made(known):
                return "the deployment has a request with this id, and no import has made this request"
            return None
        if request.run_id is not None:
            if request.run_id in section.over:
                return "the deployment has ended its run"
            return (
                "the deployment has a run with the id of its run, and no import has made this run"
                if section.foreign(request.run_id)
                else None
            )
        if section.again and await self._others_pending():
            return "the thread has a pending request that no import has made"
        return None

    def _made(self, found: HitlRequest) -> bool:
        """Return True if an import has made this pending request of the deployment."""
        name = name_of("request", found.request_id)
        return name in self._section.open or self._section.mark.made("request", found.request_id, found.created_at)

    async def _others_pending(self) -> bool:
        """Return True if the thread has a pending request that no import has made. If the import saved another request, this
        request could replace the pending one. An import has made a pending request if this file or the mark has it. The time of
        a request does not show whether an import has made it.
        """
        section, runs = self._section, self._backend.runs
        pending = items_of(
            lambda cursor: runs.requests(thread_id=section.id, pending=True, page=PageRequest(limit=1000, cursor=cursor))
        )
        names = {name_of("request", found.request_id) async for found in pending}
        return not names <= section.open

    async def _save(self, request: HitlRequest) -> None:
        answered = request.answered_at is not None
        asked = HitlRequest(
            request_id=request.request_id,
            kind=request.kind,
            payload=request.payload,
            answer_schema=None if answered else request.answer_schema,
            deadline_at=None if answered else request.deadline_at,
            on_deadline=None if answered else request.on_deadline,
        )
        if request.run_id is None:
            await self._backend.checkpointer.save_pending_request(self._section.id, asked)
        else:
            store = cast(RequestStore, self._backend.checkpointer)
            await store.save_requests(self._section.id, [asked], run_id=request.run_id)
