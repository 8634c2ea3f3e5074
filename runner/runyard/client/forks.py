"""Forks and probes: threads and single answers that start from a snapshot of another thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from pydantic import TypeAdapter

from ..domain.agent_names import wanted
from ..domain.derived_ids import first_prompt_id, forked_thread_id
from ..domain.messages import Message
from ..domain.runs import ForkOnceResult
from ..domain.size_limits import JsonObject
from ..domain.threads import Thread
from ..domain.validation import check_id, new_id
from ..errors import CutRunNotFoundError, InvalidInputError, RunNotCompletedError
from ..ports.commands import AcceptRequest, Cut, ForkRequest
from ..ports.results import Forked
from .accepting import accept_request
from .arguments import as_message, check_webhook_url, options
from .run_handle import RunHandle
from .runs import RunCalls
from .traced_calls import fork_span, link_source


class ForkCalls(RunCalls):
    """Fork a thread immediately or by a fork job, or probe a thread."""

    async def fork(
        self,
        src: str,
        new_thread_id: str | None = None,
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
        """Make a new thread that starts from a snapshot of ``src``, in constant time for any length of ``src`` (F1 to F8).

        ``new_thread_id``: the id of the new thread, or None for a generated id. ``after_run_id``, ``at_message_id``,
        ``at_seq``: the cut, given by at most one of these arguments. ``after_run_id`` is the id of a run. ``at_message_id``
        and ``at_seq`` are the id and the number of the last message that the fork sees. By default the cut is after the last
        completed run. ``repair``: close open tool calls at the cut. ``metadata``: a JSON object, stored as ``extra["fork"]``.
        The object may have one level of nesting less than other objects (:mod:`runyard.domain.size_limits`). ``message``: a
        first prompt to enqueue on the new thread. ``run_id``: the run id of this prompt. If ``run_id`` is None, the id is
        derived from the id of the new thread. A repetition of the call therefore finds the same run. ``wait``: if True, and
        the run at the cut has not ended, wait until this run completes, then fork. ``title``, ``tags``, ``agent``: the values
        of the new thread. The default of ``agent`` is the agent of ``src``. ``reset_usage``: start the new thread's usage
        totals at zero. If False, the totals start at the usage of the runs that the fork inherits completely. The call is then
        slower, because it reads the usage of all these runs.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError, ForkBoundaryError, MessageNotFoundError,
        InvalidInputError. With ``message``, also raises the errors of :meth:`enqueue`. In the case of these errors, the new
        thread was made before the error and is kept.
        """
        cut = Cut(after_run_id=after_run_id, at_message_id=at_message_id, at_seq=at_seq, repair=repair)
        request = fork_request(src, new_thread_id, cut, metadata, title, tags, self._agent(agent), reset_usage)
        prompt, run_id = as_message(message), prompt_id(request.new, message, run_id, "run_id")
        try:
            await make_fork(self, request, prompt, run_id)
        except RunNotCompletedError as error:
            if not wait or isinstance(error, CutRunNotFoundError):
                raise
            job = await self._accept_fork(request, None)
            (await job.result()).raise_for_status()
            await prompt_fork(self, request.new, prompt, run_id)
        return await self.thread(request.new)

    async def enqueue_fork(
        self,
        src: str,
        new_thread_id: str | None = None,
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
        message: str | Message | None = None,
        prompt_run_id: str | None = None,
    ) -> RunHandle:
        """Enqueue a fork job that waits until the run at the cut completes (F5). The completion of this run starts the job.

        ``run_id``: the job's id. Without ``new_thread_id``, the id of the new thread is derived from ``run_id``. ``webhook``:
        a URL that receives the job's end. ``message``: the first prompt of the new thread. The job enqueues this prompt.
        ``prompt_run_id``: the run id of this prompt. If ``prompt_run_id`` is None, the id is derived from the id of the new
        thread. The other arguments are as in :meth:`fork`. The ``value`` of the job's result is ``{"thread_id":
        new_thread_id}``. With a prompt, the ``value`` also has ``"run_id"``.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError, RunConflictError, InvalidInputError.
        """
        cut = Cut(after_run_id=after_run_id, at_message_id=at_message_id, at_seq=at_seq, repair=repair)
        if new_thread_id is None and run_id is not None:
            new_thread_id = forked_thread_id(src, run_id)
        request = fork_request(src, new_thread_id, cut, metadata, title, tags, self._agent(agent), reset_usage)
        request = replace(request, prompt_run_id=prompt_id(request.new, message, prompt_run_id, "prompt_run_id"))
        return await self._accept_fork(request, run_id, webhook, message)

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
        """Return the answer to ``message`` on a snapshot of ``src``, and write to no thread (F9).

        ``run_id``: the run id of the fork job. A repetition with the same id gets the same answer. ``timeout``: maximum seconds
        for the probe. ``wait``: seconds until the call raises TimeoutError. The probe continues after this error. The tools
        that the probe calls have their real side effects.

        Raises ThreadNotFoundError, RunNotCompletedError, HitlNotAllowedError, ResultExpiredError.
        """
        job = check_id(run_id, "run_id") if run_id is not None else new_id()
        handle = await accept_request(
            self,
            AcceptRequest(
                thread_id=src,
                run_id=job,
                kind="fork_once",
                agent=wanted(self.namespace, agent),
                input=as_message(message),
                options=options(timeout=timeout),
                fork=ForkRequest(src=src, new=job, cut=Cut(after_run_id=after_run_id)),
            ),
        )
        result = (await handle.result(wait)).raise_for_status()
        return _probe().validate_python(result.value, extra="ignore")

    async def _accept_fork(
        self, request: ForkRequest, run_id: str | None, webhook: str | None = None, message: str | Message | None = None
    ) -> RunHandle:
        job = new_id() if run_id is None else run_id
        return await accept_request(
            self,
            AcceptRequest(
                thread_id=request.src,
                run_id=job,
                kind="fork",
                agent=wanted(self.namespace, None),
                input=as_message(message),
                fork=request,
                options=options(webhook=check_webhook_url(webhook)),
            ),
        )


async def make_fork(
    calls: ForkCalls, request: ForkRequest, message: str | Message | None = None, run_id: str | None = None
) -> tuple[Forked, RunHandle | None]:
    """Fork according to ``request``, and enqueue ``message`` as the first prompt. Return the fork and the prompt's run.

    Without a message, the run is None.
    """
    from ..support import metrics  # prometheus-client takes half of a client's import time

    with fork_span(calls.backend, request) as span:
        began = time.perf_counter()
        forked = await calls.backend.threads.fork(request)
        metrics.observe(metrics.FORK, time.perf_counter() - began)
        await link_source(calls.backend, span, request.src, forked.thread.forked_after_run_id)
        return forked, await prompt_fork(calls, request.new, message, run_id)


async def prompt_fork(calls: ForkCalls, new: str, message: str | Message | None, run_id: str | None) -> RunHandle | None:
    """Enqueue ``message`` as the first prompt of the fork ``new``. Do nothing if ``message`` is None.

    ``run_id``: see :func:`prompt_id`.
    """
    if message is None:
        return None
    return await calls.enqueue(new, message, prompt_id(new, message, run_id, "run_id"))


def prompt_id(new: str, message: object, run_id: str | None, field: str) -> str | None:
    """Return the run id of the first prompt of the fork ``new``, or None if there is no prompt.

    By default the id is derived from ``new``. A repetition of the call therefore finds the same run. ``field``: the name of
    the argument ``run_id``. Raises InvalidInputError for an invalid id, and for an id without a prompt.
    """
    if message is not None:
        return first_prompt_id(new) if run_id is None else check_id(run_id, field)
    if run_id is not None:
        raise InvalidInputError(f"{field} is the run id of the first prompt; give a message too", field=field)
    return None


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
    """Return the request that the arguments of a fork describe. Raise InvalidInputError for more than one cut."""
    if sum(point is not None for point in (cut.after_run_id, cut.at_message_id, cut.at_seq)) > 1:
        raise InvalidInputError("give only one of after_run_id, at_message_id and at_seq as the cut", field="after_run_id")
    return ForkRequest(
        src=src,
        new=new_id() if new is None else new,
        cut=cut,
        metadata=metadata,
        title=title,
        tags=dict(tags or {}),
        agent=agent,
        reset_usage=reset_usage,
    )
