"""Runs over HTTP: what clients ask."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from runner.bounds import check_value
from runner.errors import (
    AccessError,
    HitlRequestNotFoundError,
    InvalidInputError,
    RunConflictError,
    RunNotFoundError,
    RunyardError,
)
from runner.exchange import Aborted, Accepted, AcceptRequest, Changed, Page, Responded
from runner.models import AttemptInfo, HitlRequest, Run, new_id
from runner.states import RunStatus

from . import bodies
from .bodies import given, page, read
from .direct import DirectOnly, only_direct
from .wire import Answer, Wire


class HttpRunStore(DirectOnly):
    """The client's half of :class:`runner.ports.RunStore`. Effects are the server's business, so none are returned."""

    def __init__(self, wire: Wire) -> None:
        super().__init__("runs")
        self._wire = wire

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted:
        """Accept a run, or a job that forks, probes or fans out. One whose answer was lost is sent again, and then found."""
        for what, there in {
            "connection=": connection is not None,
            "app_version=": request.app_version is not None,
            "webhook= of a job": request.options.webhook is not None and request.kind != "prompt",
            "a run that another one starts": request.job is not None,
        }.items():
            if there:
                raise only_direct(what)
        headers = {"traceparent": request.trace_context} if request.trace_context is not None else {}
        thread = ("POST", "threads", request.thread_id)
        if request.fork is None:
            answer = await self._wire.ask(*thread, "runs", body=bodies.prompt(request), headers=headers)
            return _accepted(answer)
        if request.kind == "fork":
            body = {**bodies.fork(request.fork), "wait": True, "job_id": request.run_id}
            return _accepted(await self._wire.ask(*thread, "fork", body=body, headers=headers))
        body = bodies.probe(request, request.fork) if request.fork.fan is None else bodies.fan_out(request, request.fork)
        before = await self.run(request.thread_id, request.run_id)
        try:
            await self._wire.ask(*thread, request.kind, query={"wait": 0}, body=body, headers=headers)
        except (RunConflictError, InvalidInputError, AccessError):
            raise
        except RunyardError:  # of the job itself, if it ended before
            run = await self.run(request.thread_id, request.run_id)
            if run is None or not run.ended:
                raise
        else:
            run = await self._existing(request.thread_id, request.run_id)
        return Accepted(run, created=before is None)

    async def respond(
        self,
        answer: Any,
        *,
        thread_id: str | None = None,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Responded:
        """Answer a request. The same answer again changes nothing, so that it can be sent again."""
        check_value(answer, "answer")
        if answered_by is not None:
            raise InvalidInputError("over HTTP the API key says who answers; say in on_behalf_of for whom", field="answered_by")
        if request_id is None:  # by the time that it is sent again another request may wait, and this is no answer to that one
            response_id = response_id or new_id()
        body = {"answer": answer, **given(response_id=response_id, on_behalf_of=on_behalf_of)}
        if thread_id is not None:
            body |= given(request_id=request_id)
            found = await self._wire.ask("POST", "threads", thread_id, "respond", body=body)
        elif request_id is None:
            raise InvalidInputError("name the thread or the request to answer", field="thread_id")
        else:
            found = await self._wire.ask("POST", "requests", request_id, "respond", body=body)
        return Responded(read(HitlRequest, found.data), created=True)

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed:
        """Cancel a run; a cancelled one stays as it is."""
        answer = await self._wire.ask("POST", "threads", thread_id, "runs", run_id, "cancel", body={"keep": keep})
        return Changed(read(Run, answer.data))

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Give up the run that waits for a human. Not sent again: another one may wait by then."""
        body = given(reason=reason, run_id=run_id)
        answer = await self._wire.ask("POST", "threads", thread_id, "abort", repeat=run_id is not None, body=body)
        return Aborted(read(Run, answer.data) if answer.data is not None else None)

    async def redrive(self, thread_id: str, run_id: str) -> Changed:
        """Queue a failed or dead run again. Not sent again: it may have failed once more by then."""
        answer = await self._wire.ask("POST", "threads", thread_id, "runs", run_id, "redrive", repeat=False)
        return Changed(read(Run, answer.data))

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of a run. Not sent again: another thread may have the id by then."""
        await self._wire.ask("DELETE", "threads", thread_id, "runs", run_id, repeat=False)

    async def run(self, thread_id: str, run_id: str) -> Run | None:
        """One run, or None."""
        with suppress(RunNotFoundError):
            return await self._existing(thread_id, run_id)
        return None

    async def _existing(self, thread_id: str, run_id: str) -> Run:
        return read(Run, (await self._wire.ask("GET", "threads", thread_id, "runs", run_id)).data)

    async def runs(
        self,
        *,
        thread_id: str | None = None,
        status: RunStatus | None = None,
        agent: str | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """Runs, the newest first."""
        times = {"since": _time(since), "before": _time(before)}
        query = {"status": status, "agent": agent, "limit": limit, "cursor": cursor, **times}
        path = ("runs",) if thread_id is None else ("threads", thread_id, "runs")
        return page(Run, (await self._wire.ask("GET", *path, query=query)).data)

    async def explain(self, thread_id: str, run_id: str) -> str:
        """One sentence about the run."""
        answer = await self._wire.ask("GET", "threads", thread_id, "runs", run_id, "explain")
        return str(answer.data["explanation"])

    async def attempts(self, thread_id: str, run_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[AttemptInfo]:
        """The run's attempts, in order."""
        query = {"limit": limit, "cursor": cursor}
        answer = await self._wire.ask("GET", "threads", thread_id, "runs", run_id, "attempts", query=query)
        return page(AttemptInfo, answer.data)

    async def request(self, request_id: str) -> HitlRequest | None:
        """One request, or None."""
        with suppress(HitlRequestNotFoundError):
            return read(HitlRequest, (await self._wire.ask("GET", "requests", request_id)).data)
        return None

    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, limit: int = 100, cursor: str | None = None
    ) -> Page[HitlRequest]:
        """The inbox, the oldest first."""
        query = {"thread_id": thread_id, "pending": pending, "limit": limit, "cursor": cursor}
        return page(HitlRequest, (await self._wire.ask("GET", "requests", query=query)).data)


def _accepted(answer: Answer) -> Accepted:
    return Accepted(read(Run, answer.data), created=answer.status == 202)


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
