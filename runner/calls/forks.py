"""Threads and probes that start from a snapshot of another thread."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cache
from typing import Final

from pydantic import TypeAdapter

from ..errors import InvalidInputError
from ..exchange import AcceptRequest, Cut, Forked, ForkRequest
from ..handle import RunHandle
from ..models import ForkOnceResult, JsonObject, Message, Thread, check_id, new_id
from .base import as_message, options, told
from .runs import RunCalls

_FORKS: Final = uuid.UUID("8a0d8f52-3a7e-5b0c-9c36-6a1c2c0f7b1d")
_FIRST_PROMPTS: Final = uuid.UUID("0e2f1e0c-7a55-5d8f-9b51-3f3f7d6a4f10")


def first_prompt_id(new: str) -> str:
    """The run id of the first prompt of a fork, where nobody gave one."""
    return str(uuid.uuid5(_FIRST_PROMPTS, new))


class ForkCalls(RunCalls):
    """Fork now, fork as a job, probe once."""

    async def fork(
        self,
        src: str,
        new: str | None = None,
        after_run_id: str | None = None,
        *,
        at_message_id: str | None = None,
        at_seq: int | None = None,
        repair: bool = False,
        metadata: JsonObject | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        agent: str | None = None,
        reset_usage: bool = True,
        message: str | Message | None = None,
        run_id: str | None = None,
        wait: bool = False,
    ) -> Thread:
        """A new thread that sees ``src`` as it was after a run, whatever its length, in constant time (semantics: F1 to F8).

        ``new``: the new thread's id; None makes one. The cut: ``after_run_id``, or ``at_message_id`` or ``at_seq``
        (inclusive), or none of them for the last completed run. ``repair``: close open tool calls at the cut. ``metadata``:
        kept as ``extra["fork"]``, so it may be nested one level less than :data:`~runner.bounds.MAX_NESTING`. ``message``:
        enqueue this first prompt too, as ``run_id`` (None: an id derived from ``new``, so that a repetition is the same run).
        ``wait``: if the run of the cut has not ended yet, fork when it completes.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError, ForkBoundaryError, MessageNotFoundError,
        InvalidInputError.
        """
        cut = Cut(after_run_id=after_run_id, at_message_id=at_message_id, at_seq=at_seq, repair=repair)
        request = fork_request(src, new, cut, metadata, title, tags, agent, reset_usage)
        if wait:
            job = await self._accept_fork(request, None)
            (await job.result()).raise_for_status()
            await prompt_fork(self, request.new, message, run_id)
        else:
            await make_fork(self, request, message, run_id)
        return await self.thread(request.new)

    async def enqueue_fork(
        self,
        src: str,
        new: str | None = None,
        run_id: str | None = None,
        *,
        after_run_id: str | None = None,
        at_message_id: str | None = None,
        at_seq: int | None = None,
        repair: bool = False,
        metadata: JsonObject | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        agent: str | None = None,
        reset_usage: bool = True,
        webhook: str | None = None,
    ) -> RunHandle:
        """Fork as a job, which waits for the run of the cut to complete (semantics: F5). Arguments as for :meth:`fork`.

        ``run_id``: the job's own id; with it and without ``new``, the new thread's id is derived from it. The result's
        ``value`` is ``{"thread_id": new}``. ``webhook``: a URL that is told when the job ends. Nothing polls.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError, RunConflictError.
        """
        cut = Cut(after_run_id=after_run_id, at_message_id=at_message_id, at_seq=at_seq, repair=repair)
        if new is None and run_id is not None:
            new = str(uuid.uuid5(_FORKS, f"{src}/{run_id}"))
        request = fork_request(src, new, cut, metadata, title, tags, agent, reset_usage)
        return await self._accept_fork(request, run_id, webhook)

    async def fork_once(
        self,
        src: str,
        message: str | Message,
        after_run_id: str | None = None,
        *,
        run_id: str | None = None,
        agent: str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> ForkOnceResult:
        """Ask a snapshot of ``src`` one question; nothing is written to any thread (semantics: F9).

        ``run_id``: the job's own id, so that a repetition gets the same answer. ``timeout``: seconds for the probe. ``wait``:
        seconds until the caller gives up with TimeoutError; the probe goes on. Side effects of tools are real.

        Raises ThreadNotFoundError, RunNotCompletedError, HitlNotAllowedError, ResultExpiredError.
        """
        job = check_id(run_id, "run_id") if run_id is not None else new_id()
        handle = await self._accept(
            AcceptRequest(
                thread_id=check_id(src, "thread_id"),
                run_id=job,
                kind="fork_once",
                agent=agent,
                input=as_message(message),
                options=options(timeout=timeout),
                fork=ForkRequest(src=src, new=job, cut=Cut(after_run_id=after_run_id)),
            )
        )
        result = (await handle.result(wait)).raise_for_status()
        return _probe().validate_python(result.value)

    async def _accept_fork(self, request: ForkRequest, run_id: str | None, webhook: str | None = None) -> RunHandle:
        job = check_id(run_id, "run_id") if run_id is not None else new_id()
        how = options(webhook=told(webhook))
        return await self._accept(AcceptRequest(thread_id=request.src, run_id=job, kind="fork", fork=request, options=how))


async def make_fork(
    calls: ForkCalls, request: ForkRequest, message: str | Message | None = None, run_id: str | None = None
) -> tuple[Forked, RunHandle | None]:
    """What ``fork`` does, from a request: the thread, whether this call made it, and the run of its first prompt."""
    from .. import metrics  # prometheus-client: half of a light client's import time

    with metrics.FORK.time():
        forked = await calls.backend.threads.fork(request)
    return forked, await prompt_fork(calls, request.new, message, run_id)


async def prompt_fork(calls: ForkCalls, new: str, message: str | Message | None, run_id: str | None) -> RunHandle | None:
    """The first prompt of a fork, if there is one. ``run_id`` None: derived from ``new``, so that a repetition is the same
    run."""
    if message is None:
        return None
    return await calls.enqueue(new, message, run_id or first_prompt_id(new))


@cache
def _probe() -> TypeAdapter[ForkOnceResult]:
    return TypeAdapter(ForkOnceResult)


def fork_request(
    src: str,
    new: str | None,
    cut: Cut,
    metadata: JsonObject | None,
    title: str | None,
    tags: Mapping[str, str] | None,
    agent: str | None,
    reset_usage: bool,
) -> ForkRequest:
    """The request that the arguments of a fork make. Raises InvalidInputError."""
    if sum(point is not None for point in (cut.after_run_id, cut.at_message_id, cut.at_seq)) > 1:
        raise InvalidInputError("cut after a run, at a message or at a seq: give one of them", field="after_run_id")
    return ForkRequest(
        src=check_id(src, "src"),
        new=new_id() if new is None else check_id(new, "new"),
        cut=cut,
        metadata=metadata,
        title=title,
        tags=dict(tags or {}),
        agent=agent,
        reset_usage=reset_usage,
    )
