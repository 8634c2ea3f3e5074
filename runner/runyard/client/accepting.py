"""Accept runs for a client. A run is accepted in the store. Then the effects, spans and metrics of the run are sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from ..domain.quoting import brief
from ..errors import InvalidInputError, RunyardError
from ..ports.commands import MAX_PROMPTS_PER_CALL, AcceptRequest, PromptSeries
from ..ports.results import Accepted, outage_of
from ..ports.scheduling import Effects
from ..support import tracing
from ..support.garbage_collector import held_back
from .apply_effects import apply_effects
from .host_connections import opened
from .prompts import Prompt, accept_request_of
from .run_handle import RunHandle
from .traced_calls import accept_many_span, accept_span

if TYPE_CHECKING:
    from .runs import RunCalls


CALLS_AT_ONCE: Final = 2
"""Maximum number of calls that :func:`accept_prompts` has sent to the store and that have not returned. The second call waits
for the first.
"""


async def accept_request(client: RunCalls, request: AcceptRequest, connection: Any = None) -> RunHandle:
    """Accept ``request`` for ``client``, apply its effects, and return a handle of the run.

    ``connection``: the caller's open database connection. Raises the errors of :meth:`RunCalls.enqueue`.
    """
    with accept_span(client.backend, request) as span:
        request.record(app_version=client.app_version, trace_context=tracing.current())
        accepted = await client.backend.runs.accept(request, connection=opened(connection))
        if accepted.created:
            _count(request.kind)
        else:
            tracing.add_link(span, accepted.run.trace_context, "repeated")
        await apply_effects(accepted.effects, client.backend)
    return _handle(client, accepted)


async def accept_prompts(client: RunCalls, prompts: Sequence[Prompt]) -> list[RunHandle | RunyardError]:
    """Accept ``prompts`` in calls of MAX_PROMPTS_PER_CALL prompts. Return the outcome of each prompt, in order.

    The store executes the calls one after the other. During a call, this function checks and encodes the prompts of the next
    call. It also applies the effects of the previous call. A call to a remote store begins when the outcomes of the previous
    call have arrived.

    If the store cannot be reached, the later prompts are not sent, and their outcome is the same error. Otherwise a thread's
    later prompt could be accepted before its earlier prompt.
    """
    outcomes: list[RunHandle | RunyardError] = []
    series, calls = PromptSeries(), deque[asyncio.Task[list[RunHandle | RunyardError]]]()
    lost: RunyardError | None = None
    try:
        for first in range(0, len(prompts), MAX_PROMPTS_PER_CALL):
            checked = await _requests_of(prompts[first : first + MAX_PROMPTS_PER_CALL], client.namespace)
            while len(calls) >= (1 if client.backend.remote else CALLS_AT_ONCE):
                lost = lost or outage_of(part := await calls[0])
                outcomes += part
                calls.popleft()
            if lost is not None:
                break
            calls.append(asyncio.create_task(_accept_part(client, checked, series)))
        while calls:
            outcomes += await calls[0]
            calls.popleft()
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return outcomes + [lost] * (len(prompts) - len(outcomes)) if lost is not None else outcomes


async def _requests_of(prompts: Sequence[Prompt], namespace: str) -> list[AcceptRequest | RunyardError]:
    """Return the request of each prompt, or the error of a wrong value.

    The function lets the event loop run between two prompts.
    """
    checked: list[AcceptRequest | RunyardError] = []
    since = monotonic()
    with held_back(len(prompts)) as pause:
        for prompt in prompts:
            checked.append(_request_of(prompt, namespace))
            since = await pause.turn(since)
    return checked


async def _accept_part(
    client: RunCalls, checked: Sequence[AcceptRequest | RunyardError], series: PromptSeries
) -> list[RunHandle | RunyardError]:
    requests = [request for request in checked if isinstance(request, AcceptRequest)]
    with accept_many_span(client.backend, len(requests)):
        context = tracing.current()
        for request in requests:
            request.record(app_version=client.app_version, trace_context=context)
        accepted = await client.backend.runs.accept_many(requests, series) if requests else []
        effects = Effects()
        with held_back(len(accepted), made=0):
            for one in accepted:
                if isinstance(one, Accepted):
                    effects += one.effects
                    if one.created:
                        _count(one.run.kind)
            stored = iter(accepted)
            found = [next(stored) if isinstance(request, AcceptRequest) else request for request in checked]
            outcomes = [_handle(client, one) if isinstance(one, Accepted) else one for one in found]
        await apply_effects(effects, client.backend)
    return outcomes


def _request_of(prompt: Prompt, namespace: str) -> AcceptRequest | RunyardError:
    if not isinstance(prompt, Prompt):
        return InvalidInputError(f"enqueue_many takes runyard.Prompt values, got {brief(prompt)}", field="prompts")
    try:
        return accept_request_of(prompt, namespace)
    except RunyardError as error:
        return error


def _handle(client: RunCalls, accepted: Accepted) -> RunHandle:
    run = accepted.run
    return RunHandle(client, run.thread_id, run.run_id, created=accepted.created, accepted=run)


def _count(kind: str) -> None:
    from ..support import metrics  # prometheus-client takes half of a client's import time

    metrics.child(metrics.RUNS_ACCEPTED, kind).inc()
