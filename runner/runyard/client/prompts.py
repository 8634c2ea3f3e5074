"""A prompt as a value: the arguments of one enqueue, and the request that a store accepts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..domain.agent_names import wanted
from ..domain.messages import Message
from ..domain.runs import DEFAULT_OPTIONS, MultitaskStrategy, Priority, RetryPolicy
from ..domain.size_limits import JsonObject
from ..domain.validation import check_aware, check_name, new_id
from ..ports.commands import AcceptRequest
from .arguments import as_message, check_delay, check_priority, check_webhook_url, options


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt for :meth:`Client.enqueue_many`. The fields are the arguments of :meth:`Client.enqueue` with the same names.

    The constructor does not check the values. The call that enqueues the prompt checks them.
    """

    thread_id: str
    message: str | Message | None
    run_id: str | None = None
    agent: str | None = None
    queue: str | None = None
    parent_id: str | None = None
    parallel: bool = False
    priority: Priority = "normal"
    run_at: datetime | None = None
    delay: float | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    multitask_strategy: MultitaskStrategy = "enqueue"
    metadata: JsonObject | None = None
    webhook: str | None = None
    expires_in: float | None = None


def accept_request_of(prompt: Prompt, namespace: str) -> AcceptRequest:
    """Return the request for ``prompt`` from a client of ``namespace``.

    If the prompt has no run id, the request gets a new uuid7 as the run id.

    Raises InvalidInputError.
    """
    return AcceptRequest(
        thread_id=prompt.thread_id,
        run_id=new_id() if prompt.run_id is None else prompt.run_id,
        agent=wanted(namespace, check_name(prompt.agent, "agent")),
        queue=prompt.queue,
        input=as_message(prompt.message),
        parent_id=prompt.parent_id,
        priority=check_priority(prompt.priority),
        run_at=check_aware(prompt.run_at),
        delay=check_delay(prompt.delay, prompt.run_at),
        options=options(
            timeout=prompt.timeout,
            max_attempts=prompt.max_attempts,
            retry=prompt.retry or DEFAULT_OPTIONS.retry,
            multitask_strategy=prompt.multitask_strategy,
            parallel=prompt.parallel,
            webhook=check_webhook_url(prompt.webhook),
            expires_in=prompt.expires_in,
        ),
        metadata=prompt.metadata or {},
    )
