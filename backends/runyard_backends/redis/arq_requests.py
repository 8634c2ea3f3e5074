"""The functions that producers may name in arq jobs. Each function returns the request that its job stands for.

The functions have the same arguments as the client's methods. The id of the job is the id of the run or of the response. arq's
``_defer_by`` and ``_expires`` replace ``run_at`` and ``expires_in``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from runyard.client.arguments import check_priority, check_webhook_url, options
from runyard.client.forks import fork_request
from runyard.domain.derived_ids import forked_thread_id
from runyard.domain.quoting import brief
from runyard.domain.runs import DEFAULT_OPTIONS
from runyard.domain.validation import check_aware, check_id
from runyard.errors import InvalidInputError, RunyardError
from runyard.formats.conversion import from_blob
from runyard.models import Message
from runyard.ports.commands import AcceptRequest, Cut

from .arq_codec import ArqJob


@dataclass(frozen=True, slots=True)
class JobTerms:
    """The options of a job besides its arguments. ``run_at``: the time at which the run is due, or None for a run that is due
    immediately. ``expires_in``: seconds after the due time within which the run must start, or None."""

    run_id: str
    run_at: datetime | None = None
    expires_in: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer to a pending request. The fields are the arguments of :meth:`runyard.client.runs.RunCalls.respond`."""

    thread_id: str | None
    answer: Any
    request_id: str | None
    response_id: str
    answered_by: str | None
    on_behalf_of: str | None


def prompt(
    terms: JobTerms,
    thread_id: str,
    message: Any,
    *,
    format: Any = "native",
    agent: str | None = None,
    queue: str | None = None,
    parent_id: str | None = None,
    parallel: Any = False,
    priority: Any = "normal",
    timeout: Any = None,
    max_attempts: Any = None,
    retry: Any = None,
    multitask_strategy: Any = "enqueue",
    metadata: Any = None,
    webhook: str | None = None,
) -> AcceptRequest:
    """Return the request for a prompt (:meth:`runyard.client.runs.RunCalls.enqueue`).

    ``message``: text, a message as JSON in ``format``, or None.
    """
    return AcceptRequest(
        thread_id=thread_id,
        run_id=terms.run_id,
        agent=agent,
        queue=queue,
        input=_message(message, format),
        parent_id=parent_id,
        priority=check_priority(priority),
        run_at=check_aware(terms.run_at),
        options=options(
            timeout=timeout,
            max_attempts=max_attempts,
            retry=DEFAULT_OPTIONS.retry if retry is None else retry,
            multitask_strategy=multitask_strategy,
            parallel=parallel,
            webhook=check_webhook_url(webhook),
            expires_in=terms.expires_in,
        ),
        metadata={} if metadata is None else metadata,
    )


def fork(
    terms: JobTerms,
    src: str,
    new: str | None = None,
    after_run_id: str | None = None,
    *,
    at_message_id: str | None = None,
    at_seq: int | None = None,
    repair: bool = False,
    metadata: Any = None,
    title: str | None = None,
    tags: Any = None,
    agent: str | None = None,
    reset_usage: bool = True,
    webhook: str | None = None,
) -> AcceptRequest:
    """Return the request for a fork that waits for the run at its cut (:meth:`.ForkCalls.enqueue_fork`)."""
    cut = Cut(after_run_id=after_run_id, at_message_id=at_message_id, at_seq=at_seq, repair=repair)
    new = forked_thread_id(check_id(src, "src"), terms.run_id) if new is None else new
    request = fork_request(src, new, cut, metadata, title, tags, agent, reset_usage)
    return AcceptRequest(
        thread_id=src,
        run_id=terms.run_id,
        kind="fork",
        fork=request,
        run_at=check_aware(terms.run_at),
        options=options(webhook=check_webhook_url(webhook), expires_in=terms.expires_in),
    )


def fork_once(
    terms: JobTerms,
    src: str,
    message: Any,
    after_run_id: str | None = None,
    *,
    format: Any = "native",
    agent: str | None = None,
    timeout: Any = None,
) -> AcceptRequest:
    """Return the request for a probe (:meth:`runyard.client.forks.ForkCalls.fork_once`)."""
    cut = Cut(after_run_id=after_run_id)
    return AcceptRequest(
        thread_id=src,
        run_id=terms.run_id,
        kind="fork_once",
        agent=agent,
        input=_message(message, format),
        run_at=check_aware(terms.run_at),
        options=options(timeout=timeout, expires_in=terms.expires_in),
        fork=fork_request(src, terms.run_id, cut, None, None, None, None, True),
    )


def respond(
    terms: JobTerms,
    thread_id: str | None,
    answer: Any,
    request_id: str | None = None,
    response_id: str | None = None,
    *,
    answered_by: str | None = None,
    on_behalf_of: str | None = None,
) -> Response:
    """Return an answer (:meth:`runyard.client.runs.RunCalls.respond`). ``response_id``: by default the id of the job."""
    if thread_id is None and request_id is None:
        raise InvalidInputError("give the thread_id or the request_id of the request to answer", field="thread_id")
    for name, value in {"thread_id": thread_id, "request_id": request_id, "response_id": response_id}.items():
        if value is not None:
            check_id(value, name)
    for name, value in {"answered_by": answered_by, "on_behalf_of": on_behalf_of}.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f"{name} must be text, got {brief(value)}", field=name)
    return Response(
        thread_id=thread_id,
        answer=answer,
        request_id=request_id,
        response_id=check_id(terms.run_id, "response_id") if response_id is None else response_id,
        answered_by=answered_by,
        on_behalf_of=on_behalf_of,
    )


FUNCTIONS: Final[Mapping[str, Callable[..., AcceptRequest | Response]]] = {
    "prompt": prompt,
    "fork": fork,
    "fork_once": fork_once,
    "respond": respond,
}
"""The functions, by their names in arq jobs."""


def request_of(job: ArqJob, terms: JobTerms) -> AcceptRequest | Response:
    """Return the request for ``job``. Raises InvalidInputError or another RunyardError if the job is invalid."""
    function = FUNCTIONS.get(job.function)
    if function is None:
        names = ", ".join(FUNCTIONS)
        raise InvalidInputError(f"there is no function {brief(job.function)}; use {names}", field="function")
    try:
        given = inspect.signature(function).bind(terms, *job.args, **job.kwargs)
    except TypeError as error:
        raise InvalidInputError(f"{job.function}: {brief(str(error))}", field="arguments") from None
    try:
        return function(*given.args, **given.kwargs)
    except RunyardError:
        raise
    except Exception as error:  # the function calls no server, so the cause can only be an argument of an unexpected type
        raise InvalidInputError(f"{job.function}: {type(error).__name__}: {brief(str(error))}", field="arguments") from error


def _message(value: Any, format: Any) -> Message | None:
    """Return the message of an argument: text, the JSON of a format, or None."""
    if value is None:
        return None
    return Message.user(value) if isinstance(value, str) else from_blob(format, value)
