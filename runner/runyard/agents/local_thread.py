"""One thread of an in-process Agent, read and written with the methods that its checkpointer has (R14)."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from ..domain.messages import Message
from ..domain.requests import ANSWERED_AT_DEADLINE, HitlRequest, check_answer
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.threads import CheckpointData
from ..domain.tool_cycles import abort_messages
from ..errors import (
    CapabilityMissingError,
    HitlAlreadyAnsweredError,
    HitlAmbiguousError,
    HitlNoPendingRequestError,
    HitlStaleAnswerError,
    HitlTimeoutError,
    RunNotCompletedError,
)
from ..ports.commands import ForkOptions
from ..ports.results import Aborted, Ledger, Responded, Step
from ..ports.stores import Checkpointer, RequestStore

RESERVED: Final = "runyard"
"""A key in a thread's extra. An Agent stores data under this key if its checkpointer has no method for the data."""

OF_REQUESTS: Final = ("save_requests", "load_requests", "answer_request", "abort_pending")
"""The methods of a RequestStore."""


def capability(checkpointer: Checkpointer, method: str, *options: str) -> Callable[..., Any]:
    """Return the checkpointer's ``method``. Raise CapabilityMissingError if the method is missing or lacks an option (R14)."""
    found = getattr(checkpointer, method, None)
    if found is None or not _takes(found, options):
        backend, named = type(checkpointer).__name__, f" with {', '.join(options)}" if options else ""
        raise CapabilityMissingError(
            f"{backend} has no {method}{named}; use a checkpointer that implements it", backend=backend, method=method
        )
    return cast("Callable[..., Any]", found)


def _takes(method: Callable[..., Any], options: Iterable[str]) -> bool:
    parameters = inspect.signature(method).parameters
    return any(each.kind is each.VAR_KEYWORD for each in parameters.values()) or parameters.keys() >= set(options)


def fork_options(*, title: str | None, tags: Mapping[str, str] | None, agent: str | None, reset_usage: bool) -> ForkOptions:
    """Return the options that differ from their defaults.

    An option with its default is left out, because a checkpointer may not have this option.
    """
    options: ForkOptions = {}
    if title is not None:
        options["title"] = title
    if tags:
        options["tags"] = dict(tags)
    if agent is not None:
        options["agent"] = agent
    if not reset_usage:
        options["reset_usage"] = False
    return options


class LocalThread:
    """One thread of a checkpointer, with the operations that an Agent's runs need."""

    def __init__(self, checkpointer: Checkpointer, thread_id: str) -> None:
        self.checkpointer = checkpointer
        self.thread_id = thread_id
        native = all(hasattr(checkpointer, name) for name in OF_REQUESTS)
        self.requests: RequestStore = cast(RequestStore, checkpointer) if native else ExtraRequests(checkpointer)
        self.announced: set[str] = set()
        """The ids of the requests whose answers were announced to the subscribers."""
        self._counted: set[str] = set()
        self._reserved = not native

    @property
    def thread_key(self) -> int:
        """A number derived from the thread's id. The ids of the thread's requests are derived from this number (I6)."""
        return int.from_bytes(hashlib.blake2b(self.thread_id.encode(), digest_size=8).digest())

    async def load(self) -> CheckpointData:
        data = await self.checkpointer.load(self.thread_id) or CheckpointData()
        self._reserved = self._reserved or RESERVED in data.extra
        return data

    async def claim(self, run_id: str) -> None:
        """Claim the run, if the checkpointer has claims. Raises RunAlreadyClaimedError, RunAlreadyCompletedError."""
        if hasattr(self.checkpointer, "claim_run"):
            await self.checkpointer.claim_run(self.thread_id, run_id)

    async def append(self, messages: Sequence[Message]) -> None:
        if messages:
            await self.checkpointer.append(self.thread_id, list(messages))

    async def complete(self, run_id: str, extra: JsonObject | None) -> None:
        """Save the changed keys of the thread's extra, and complete the run."""
        if extra:
            await self.checkpointer.save_extra(self.thread_id, extra)
        if hasattr(self.checkpointer, "mark_run_complete"):
            await self.checkpointer.mark_run_complete(self.thread_id, run_id)
        self._counted.add(run_id)
        if self._reserved:
            await _forget(self.checkpointer, self.thread_id, run_id)

    async def counts(self, data: CheckpointData, run_id: str) -> list[Message]:
        """Return the context of a run, then the run's own messages (R7). The messages are grouped by run.

        The context has the messages of runs that were completed when the run began.
        """
        own = next((n for n, message in enumerate(data.messages) if message.run_id == run_id), len(data.messages))
        earlier = data.messages[:own]
        await self._count(earlier)
        by_run: dict[object, list[Message]] = {}
        for message in earlier:
            if message.run_id is None or message.run_id in self._counted:
                by_run.setdefault(message.run_id or message.id, []).append(message)
        return [*(m for group in by_run.values() for m in group), *(m for m in data.messages if m.run_id == run_id)]

    async def _count(self, messages: Sequence[Message]) -> None:
        """Record which runs of ``messages`` completed. Examine the newest run first.

        The snapshot after a completed run contains the messages of this run and of all runs that completed before it. One
        snapshot can therefore show that several runs completed. If the checkpointer has no ``snapshot``, every run counts as
        completed.
        """
        if not hasattr(self.checkpointer, "snapshot"):
            self._counted |= {message.run_id for message in messages if message.run_id is not None}
            return
        for run_id in dict.fromkeys(message.run_id for message in reversed(messages)):
            if run_id is not None and run_id not in self._counted:
                await self.completed(run_id)

    async def completed(self, run_id: str) -> bool:
        """Return whether the run completed. Call this method only for a run that has messages."""
        try:
            snapshot = await capability(self.checkpointer, "snapshot")(self.thread_id, after_run_id=run_id)
        except RunNotCompletedError:
            return False
        self._counted |= {message.run_id for message in snapshot if message.run_id is not None} | {run_id}
        return True

    async def pending(self) -> list[HitlRequest]:
        """Return the pending requests, the oldest first."""
        return [request for request in await self.requests.load_requests(self.thread_id) if request.answered_at is None]

    async def ledger(self, run_id: str, data: CheckpointData) -> Ledger:
        """Return the steps and requests of earlier attempts of the run (H5).

        Raises HitlTimeoutError if the deadline of a request without a default answer has passed.
        """
        requests = await self.requests.load_requests(self.thread_id, run_id=run_id)
        for request in requests:
            if request.answered_by == ANSWERED_AT_DEADLINE and "answer" not in (request.on_deadline or {}):
                raise HitlTimeoutError(
                    f"request {request.request_id} got no answer before {request.deadline_at}", request_id=request.request_id
                )
        steps = _part(data.extra, "steps").get(run_id) or {}
        assert isinstance(steps, dict)
        return Ledger(
            steps={key: Step(key, **cast("dict[str, Any]", step)) for key, step in steps.items()},
            requests={request.request_id: request for request in requests},
        )

    async def save_step(self, run_id: str, step: Step) -> None:
        extra = (await self.load()).extra
        steps = _part(extra, "steps")
        own = cast(JsonObject, steps.get(run_id) or {})
        own[step.key] = {"done": step.done, "result": step.result, "fence": step.fence}
        await _save(self.checkpointer, self.thread_id, extra, "steps", {**steps, run_id: own})
        self._reserved = True


async def _forget(checkpointer: Checkpointer, thread_id: str, run_id: str) -> None:
    """Delete the run's steps and requests from the thread's extra."""
    data = await checkpointer.load(thread_id) or CheckpointData()
    for part in ("steps", "requests"):
        if run_id in (kept := _part(data.extra, part)):
            kept.pop(run_id)
            await _save(checkpointer, thread_id, data.extra, part, kept)
            if part == "requests":
                await capability(checkpointer, "save_pending_request")(thread_id, None)


class ExtraRequests:
    """A RequestStore on a checkpointer that can store only one pending request.

    The ``extra`` of the thread contains all requests. If two processes answer a request at the same time, both answers may be
    accepted. A checkpointer that implements RequestStore accepts only one answer.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        capability(self.checkpointer, "save_pending_request")
        extra, kept = await self._load(thread_id)
        known = {request.request_id for request in kept}
        now = datetime.now(UTC)
        for request in requests:
            if request.request_id not in known:
                due = now + timedelta(seconds=request.timeout) if request.timeout is not None else None
                update = {"run_id": run_id, "created_at": now, "deadline_at": due, "timeout": None}
                kept.append(request.model_copy(update=update))
        await self._store(thread_id, extra, kept)

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        _, kept = await self._load(thread_id)
        return [request for request in kept if run_id in (None, request.run_id)]

    async def answer_request(
        self,
        thread_id: str,
        answer: Any,
        *,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
    ) -> Responded:
        extra, kept = await self._load(thread_id)
        request = _chosen(kept, thread_id, request_id, response_id)
        if request.answered_at is not None:
            if request.answer == answer and response_id in (None, request.response_id):
                return Responded(request, False)
            raise HitlAlreadyAnsweredError(
                f"request {request.request_id} already has another answer", request_id=request.request_id
            )
        check_answer(request, answer)
        update = {"answer": answer, "response_id": response_id, "answered_by": answered_by, "answered_at": datetime.now(UTC)}
        answered = request.model_copy(update=update)
        await self._store(thread_id, extra, [answered if kept_one is request else kept_one for kept_one in kept])
        others = (each for each in kept if each is not request and each.run_id == request.run_id)
        return Responded(answered, True, last=all(each.answered_at is not None for each in others))

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Complete the run with ``reason`` in its last message (H8). A checkpointer has no status for cancelled runs."""
        _, kept = await self._load(thread_id)
        open_runs = {request.run_id for request in kept if request.answered_at is None} - {None}
        data = await self.checkpointer.load(thread_id) or CheckpointData()
        for waiting in open_runs if run_id is None else open_runs & {run_id}:
            assert waiting is not None
            said = abort_messages([message for message in data.messages if message.run_id == waiting], reason)
            await self.checkpointer.append(thread_id, [m.model_copy(update={"run_id": waiting}) for m in said])
            if hasattr(self.checkpointer, "mark_run_complete"):
                await self.checkpointer.mark_run_complete(thread_id, waiting)
            await _forget(self.checkpointer, thread_id, waiting)
        return Aborted(None)

    async def _load(self, thread_id: str) -> tuple[JsonObject, list[HitlRequest]]:
        data = await self.checkpointer.load(thread_id) or CheckpointData()
        kept = (HitlRequest.model_validate(each) for run in _part(data.extra, "requests").values() for each in _list(run))
        # A fork inherits the extra, but not the questions in it (I6).
        return data.extra, [_overdue(request) for request in kept if request.thread_id == thread_id]

    async def _store(self, thread_id: str, extra: JsonObject, kept: Iterable[HitlRequest]) -> None:
        """Store the requests in extra, then the pending request.

        After a crash between the two writes, all requests can be answered (H6).
        """
        by_run: dict[str, JsonValue] = {}
        for request in kept:
            _list(by_run.setdefault(request.run_id or "", [])).append(request.model_dump(mode="json", exclude_none=True))
        await _save(self.checkpointer, thread_id, extra, "requests", by_run)
        waiting = next((request for request in kept if request.answered_at is None), None)
        await self.checkpointer.save_pending_request(thread_id, waiting, run_id=waiting.run_id if waiting else None)


def _overdue(request: HitlRequest) -> HitlRequest:
    """Return the request. If the deadline of the request has passed, the returned request has the default answer (H7)."""
    if request.answered_at is not None or request.deadline_at is None or request.deadline_at > datetime.now(UTC):
        return request
    choice = request.on_deadline or {}
    answer = choice.get("answer")
    return request.model_copy(
        update={"answer": answer, "answered_at": request.deadline_at, "answered_by": ANSWERED_AT_DEADLINE}
    )


def _chosen(kept: Sequence[HitlRequest], thread_id: str, request_id: str | None, response_id: str | None) -> HitlRequest:
    waiting = [request for request in kept if request.answered_at is None]
    ids = [request.request_id for request in waiting]
    for request in kept:
        if request_id == request.request_id and request.answered_by != ANSWERED_AT_DEADLINE:
            return request
        if request_id is None and response_id is not None and response_id == request.response_id:
            return request
    if request_id is not None and kept:
        raise HitlStaleAnswerError(
            f"request {request_id} is not pending; pending: {', '.join(ids) or 'none'}",
            request_id=request_id,
            pending=ids,
        )
    if not waiting:
        raise HitlNoPendingRequestError(f"thread {thread_id!r} has no pending request", thread_id=thread_id)
    if len(waiting) > 1:
        raise HitlAmbiguousError(f"thread {thread_id!r} has {len(ids)} pending requests; give a request_id", request_ids=ids)
    return waiting[0]


def _part(extra: JsonObject, part: str) -> JsonObject:
    reserved = extra.get(RESERVED)
    found = reserved.get(part) if isinstance(reserved, dict) else None
    return found if isinstance(found, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    assert isinstance(value, list)
    return value


async def _save(checkpointer: Checkpointer, thread_id: str, extra: JsonObject, part: str, value: JsonObject) -> None:
    reserved = extra.get(RESERVED)
    kept: JsonObject = {**(reserved if isinstance(reserved, dict) else {}), part: value}
    extra[RESERVED] = kept
    await capability(checkpointer, "save_extra")(thread_id, {RESERVED: kept})
