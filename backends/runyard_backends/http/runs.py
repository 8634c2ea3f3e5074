"""The run store over HTTP: the calls of clients."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from runyard.domain.size_limits import check_value
from runyard.domain.waits import Signal, check_signal
from runyard.errors import (
    AccessError,
    HitlRequestNotFoundError,
    InvalidInputError,
    InvalidRequestError,
    RequestTooLargeError,
    RunConflictError,
    RunNotFoundError,
    RunyardError,
)
from runyard.models import AttemptInfo, HitlRequest, JsonObject, Run, new_id
from runyard.ports.commands import AcceptRequest, PromptSeries
from runyard.ports.queries import ALL_RUNS, FIRST_PAGE, PageRequest, RunFilter
from runyard.ports.results import OUTAGES, Aborted, Accepted, Changed, Page, Responded, Signalled, outage_of

from . import codec
from .codec import given, read, read_page
from .transport import HttpReply, Transport, from_problem
from .unsupported import DirectOnly, only_direct

MAX_BATCH_BYTES: Final = 4 * 2**20
"""Maximum number of bytes of the prompts in one request of ``accept_many``. A larger prompt has its own request. The default of
the setting ``max_body`` of the API is larger."""


class HttpRunStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.RunStore`. The server applies the effects of a call. The effects of
    each result are therefore empty."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("runs")
        self._transport = transport

    async def accept(self, request: AcceptRequest, *, connection: Any = None) -> Accepted:
        """Accept a run: a prompt, a fork, a probe or a fan-out. If a reply is lost, the request is repeated and finds the
        run."""
        if connection is not None:
            raise only_direct("connection=")
        _check_remote(request)
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
        except RunyardError:  # if the fork job has already ended without success, the API answers with its error
            run = await self.run(request.thread_id, request.run_id)
            if run is None or not run.ended:
                raise
        else:
            run = await self._existing(request.thread_id, request.run_id)
        return Accepted(run, created=before is None)

    async def accept_many(
        self, requests: Sequence[AcceptRequest], series: PromptSeries | None = None
    ) -> list[Accepted | RunyardError]:
        """Accept prompts in requests of at most MAX_BATCH_BYTES, one after the other. If a reply is lost, the request is
        repeated.

        If the server or a proxy refuses the size of a request, its halves are sent. If the server cannot be reached, the later
        prompts are not sent and get the same error. Otherwise they could overtake earlier prompts of their threads. An error
        that concerns the caller is raised, for example ForbiddenError.
        """
        outcomes: dict[int, Accepted | RunyardError] = {}
        parts: list[list[tuple[int, JsonObject]]] = [[]]
        size = 0
        for place, request in enumerate(requests):
            try:
                body = _batched(request)
                length = len(json.dumps(body, allow_nan=False))
            except RunyardError as error:
                outcomes[place] = error
                continue
            except (TypeError, ValueError) as error:
                outcomes[place] = InvalidInputError(f"the value cannot be sent as JSON: {error}")
                continue
            if parts[-1] and size + length > MAX_BATCH_BYTES:
                parts.append([])
                size = 0
            parts[-1].append((place, body))
            size += length
        waiting = [part for part in reversed(parts) if part]
        lost: RunyardError | None = None
        while waiting:
            part = waiting.pop()
            found: list[Accepted | RunyardError]
            try:
                found = [lost] * len(part) if lost is not None else await self._accept_part([body for _, body in part])
            except (InvalidRequestError, RequestTooLargeError) as error:  # too many values or bytes
                if len(part) > 1:
                    half = len(part) // 2
                    waiting += [part[half:], part[:half]]
                    continue
                found = [error]
            outcomes |= zip((place for place, _ in part), found, strict=True)
            lost = lost or outage_of(found)
        return [outcomes[place] for place in range(len(requests))]

    async def _accept_part(self, bodies: Sequence[JsonObject]) -> list[Accepted | RunyardError]:
        try:
            answer = await self._transport.ask("POST", "runs", body={"items": bodies})
        except OUTAGES as error:
            return [error] * len(bodies)
        return [
            Accepted(read(Run, item["run"]), item["created"]) if item["problem"] is None else from_problem(item["problem"])
            for item in answer.data["items"]
        ]

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
            words = "over HTTP the API key is the author of an answer; give on_behalf_of instead of answered_by"
            raise InvalidInputError(words, field="answered_by")
        if request_id is None:  # without a response id, a repeated call could answer a later request
            response_id = response_id or new_id()
        body = {"answer": answer, **given(response_id=response_id, on_behalf_of=on_behalf_of)}
        if thread_id is not None:
            body |= given(request_id=request_id)
            found = await self._transport.ask("POST", "threads", thread_id, "respond", body=body)
        elif request_id is None:
            raise InvalidInputError("give the thread_id or the request_id of the request to answer", field="thread_id")
        else:
            found = await self._transport.ask("POST", "requests", request_id, "respond", body=body)
        return Responded(read(HitlRequest, found.data), created=True)

    async def signal(self, thread_id: str, name: str, value: Any, *, signal_id: str, sent_by: str | None = None) -> Signalled:
        """Send a signal to a thread. If a reply is lost, the call is repeated. The id of the signal prevents a second
        signal."""
        check_signal(name, value, signal_id, sent_by)
        if sent_by is not None:
            raise InvalidInputError("over HTTP the API key is the sender of a signal; leave sent_by out", field="sent_by")
        body = {"name": name, "value": value, "signal_id": signal_id}
        answer = await self._transport.ask("POST", "threads", thread_id, "signals", body=body)
        return Signalled(read(Signal, answer.data), created=True)

    async def cancel(self, thread_id: str, run_id: str, *, keep: bool = False) -> Changed:
        """Cancel a run. A cancelled run stays unchanged."""
        answer = await self._transport.ask("POST", "threads", thread_id, "runs", run_id, "cancel", body={"keep": keep})
        return Changed(read(Run, answer.data))

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Cancel the run that waits for a human. A repetition without ``run_id`` could cancel another run. Such a request is
        therefore not repeated after a lost reply."""
        body = given(reason=reason, run_id=run_id)
        answer = await self._transport.ask("POST", "threads", thread_id, "abort", repeat=run_id is not None, body=body)
        return Aborted(read(Run, answer.data) if answer.data is not None else None)

    async def redrive(self, thread_id: str, run_id: str) -> Changed:
        """Queue a failed or dead run again. The request is not repeated after a lost reply, because a repetition could redrive
        the run a second time."""
        answer = await self._transport.ask("POST", "threads", thread_id, "runs", run_id, "redrive", repeat=False)
        return Changed(read(Run, answer.data))

    async def delete_run(self, thread_id: str, run_id: str) -> None:
        """Delete the content of a run. The request is not repeated after a lost reply, because meanwhile a new thread may have
        the same thread id and a run with the same run id."""
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


def _check_remote(request: AcceptRequest) -> None:
    """Raise CapabilityMissingError if the API cannot accept ``request``."""
    for what, there in {
        "app_version=": request.app_version is not None,
        "webhook= of a fork job": request.options.webhook is not None and request.kind != "prompt",
        "a run that another one starts": request.job is not None,
    }.items():
        if there:
            raise only_direct(what)


def _batched(request: AcceptRequest) -> JsonObject:
    _check_remote(request)
    return {"thread_id": request.thread_id, **codec.prompt(request)}


def _accepted(answer: HttpReply) -> Accepted:
    return Accepted(read(Run, answer.data), created=answer.status == 202)


def _time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None
