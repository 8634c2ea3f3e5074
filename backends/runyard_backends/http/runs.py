"""The run store over HTTP: the calls of clients."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from runyard.domain.size_limits import check_value
from runyard.domain.waits import Signal, check_signal
from runyard.errors import (
    AccessError,
    HitlRequestNotFoundError,
    InvalidInputError,
    RunConflictError,
    RunNotFoundError,
    RunyardError,
)
from runyard.models import AttemptInfo, HitlRequest, Run, new_id
from runyard.ports.commands import AcceptRequest
from runyard.ports.queries import ALL_RUNS, FIRST_PAGE, PageRequest, RunFilter
from runyard.ports.results import Aborted, Accepted, Changed, Page, Responded, Signalled

from . import codec
from .codec import given, read, read_page
from .transport import HttpReply, Transport
from .unsupported import DirectOnly, only_direct


class HttpRunStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.RunStore`. The server applies the effects of a call. The effects of
    each result are therefore empty."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("runs")
        self._transport = transport

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted:
        """Accept a run, or a job that forks, probes or fans out. If a reply is lost, the request is repeated and finds the
        run."""
        for what, there in {
            "connection=": connection is not None,
            "app_version=": request.app_version is not None,
            "webhook= of a fork job": request.options.webhook is not None and request.kind != "prompt",
            "a run that another one starts": request.job is not None,
        }.items():
            if there:
                raise only_direct(what)
        thread = ("POST", "threads", request.thread_id)
        if request.fork is None:
            answer = await self._transport.ask(*thread, "runs", body=codec.prompt(request))
            return _accepted(answer)
        if request.kind == "fork":
            prompt = given(message=codec.message(request.input), run_id=request.fork.prompt_run_id)
            body = {**codec.fork(request.fork), **prompt, "wait": True, "job_id": request.run_id}
            return _accepted(await self._transport.ask(*thread, "fork", body=body))
        body = codec.probe(request, request.fork) if request.fork.fan is None else codec.fan_out(request, request.fork)
        before = await self.run(request.thread_id, request.run_id)
        try:
            await self._transport.ask(*thread, request.kind, query={"wait": 0}, body=body)
        except (RunConflictError, InvalidInputError, AccessError):
            raise
        except RunyardError:  # if the job has already ended without success, the API answers with the error of the job
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
        """Answer a HITL request. If a reply is lost, the call is repeated, because an equal answer has no further effect."""
        check_value(answer, "answer")
        if answered_by is not None:
            raise InvalidInputError("over HTTP the API key is the author of an answer; use on_behalf_of", field="answered_by")
        if request_id is None:  # without a response id, a repeated call could answer a later request
            response_id = response_id or new_id()
        body = {"answer": answer, **given(response_id=response_id, on_behalf_of=on_behalf_of)}
        if thread_id is not None:
            body |= given(request_id=request_id)
            found = await self._transport.ask("POST", "threads", thread_id, "respond", body=body)
        elif request_id is None:
            raise InvalidInputError("name the thread or the request to answer", field="thread_id")
        else:
            found = await self._transport.ask("POST", "requests", request_id, "respond", body=body)
        return Responded(read(HitlRequest, found.data), created=True)

    async def signal(self, thread_id: str, name: str, value: Any, *, signal_id: str, sent_by: str | None = None) -> Signalled:
        """Send a signal to a thread. If a reply is lost, the call is repeated. The id of the signal prevents a second
        signal."""
        check_signal(name, value, signal_id, sent_by)
        if sent_by is not None:
            raise InvalidInputError("over HTTP the API key is the sender of a signal", field="sent_by")
        body = {"name": name, "value": value, "signal_id": signal_id}
        answer = await self._transport.ask("POST", "threads", thread_id, "signals", body=body)
        return Signalled(read(Signal, answer.data), created=True)

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed:
        """Cancel a run. A cancelled run stays unchanged."""
        answer = await self._transport.ask("POST", "threads", thread_id, "runs", run_id, "cancel", body={"keep": keep})
        return Changed(read(Run, answer.data))

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. Without ``run_id``, the request is not repeated after a lost reply, because it
        could cancel another run."""
        body = given(reason=reason, run_id=run_id)
        answer = await self._transport.ask("POST", "threads", thread_id, "abort", repeat=run_id is not None, body=body)
        return Aborted(read(Run, answer.data) if answer.data is not None else None)

    async def redrive(self, thread_id: str, run_id: str) -> Changed:
        """Queue a failed or dead run again. The request is not repeated after a lost reply, because it could redrive the run a
        second time."""
        answer = await self._transport.ask("POST", "threads", thread_id, "runs", run_id, "redrive", repeat=False)
        return Changed(read(Run, answer.data))

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of a run. The request is not repeated after a lost reply, because a new thread may have taken the
        id."""
        await self._transport.ask("DELETE", "threads", thread_id, "runs", run_id, repeat=False)

    async def run(self, thread_id: str, run_id: str) -> Run | None:
        """Return one run, or None if it does not exist."""
        with suppress(RunNotFoundError):
            return await self._existing(thread_id, run_id)
        return None

    async def _existing(self, thread_id: str, run_id: str) -> Run:
        return read(Run, (await self._transport.ask("GET", "threads", thread_id, "runs", run_id)).data)

    async def runs(self, where: RunFilter = ALL_RUNS, page: PageRequest = FIRST_PAGE) -> Page[Run]:
        """Return runs, the newest first."""
        times = {"since": _time(where.since), "before": _time(where.before)}
        query = {"status": where.status, "agent": where.agent, **codec.paging(page), **times}
        path = ("runs",) if where.thread_id is None else ("threads", where.thread_id, "runs")
        return read_page(Run, (await self._transport.ask("GET", *path, query=query)).data)

    async def explain(self, thread_id: str, run_id: str) -> str:
        """Return one sentence about the run: why it waits, that it runs, or how it ended."""
        answer = await self._transport.ask("GET", "threads", thread_id, "runs", run_id, "explain")
        return str(answer.data["explanation"])

    async def attempts(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[AttemptInfo]:
        """Return the run's attempts, in order."""
        answer = await self._transport.ask("GET", "threads", thread_id, "runs", run_id, "attempts", query=codec.paging(page))
        return read_page(AttemptInfo, answer.data)

    async def request(self, request_id: str) -> HitlRequest | None:
        """Return one HITL request, or None if it does not exist."""
        with suppress(HitlRequestNotFoundError):
            return read(HitlRequest, (await self._transport.ask("GET", "requests", request_id)).data)
        return None

    async def requests(
        self, *, thread_id: str | None = None, pending: bool = True, page: PageRequest = FIRST_PAGE
    ) -> Page[HitlRequest]:
        """Return HITL requests, the oldest first. ``pending``: True for unanswered requests only. ``thread_id``: None for all
        threads of the tenant."""
        query = {"thread_id": thread_id, "pending": pending, **codec.paging(page)}
        return read_page(HitlRequest, (await self._transport.ask("GET", "requests", query=query)).data)


def _accepted(answer: HttpReply) -> Accepted:
    return Accepted(read(Run, answer.data), created=answer.status == 202)


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
