"""Routes of forks and probes, which start from a snapshot of another thread."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Response

from runyard.client.forks import fork_request, make_fork
from runyard.errors import (
    CutRunNotFoundError,
    ForkBoundaryError,
    HitlNotAllowedError,
    InvalidInputError,
    MessageNotFoundError,
    MessageTooLargeError,
    QueueFullError,
    ResultExpiredError,
    RunConflictError,
    RunNotCompletedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
)
from runyard.models import Run, new_id
from runyard.ports.commands import Cut

from ..answers import ForkMade, ProbeAnswer
from ..idempotency import Idempotency
from ..request_models import Fork, Probe, as_message
from ..tenant_client import Caller
from .arguments import ThreadId, Wait, patience
from .documentation import operation
from .replies import reply
from .route_access import Route, Writes
from .runs import RETRY_AFTER_SECONDS, accepted

router = APIRouter(prefix="/v1/threads/{thread_id}", tags=["forks"], route_class=Route)

REFUSED: Final = (
    ThreadNotFoundError,
    CutRunNotFoundError,
    RunNotCompletedError,
    RunConflictError,
    MessageTooLargeError,
    QueueFullError,
)
JOB: Final = (
    Run,
    "The fork job has not ended. `Location` is its path. Its `result` will have the answer.",
    "Location",
    "Retry-After",
)


@router.post(
    "/fork",
    status_code=201,
    **operation(
        *REFUSED,
        ThreadAlreadyExistsError,
        ForkBoundaryError,
        MessageNotFoundError,
        s200=(ForkMade, "The fork that an earlier request with the same content created.", "Location"),
        s201=(ForkMade, "The new thread. `Location` is its path.", "Location"),
        s202=(Run, "With `wait`: the fork job. It makes the fork when the run at the cut has completed.", "Location"),
    ),
)
async def fork_thread(caller: Writes, thread_id: ThreadId, body: Fork, key: Idempotency) -> Response:
    """Create a fork. The new thread shows the messages of the source up to the end of a run or up to a message. No message is
    copied."""
    if body.run_id is not None and body.message is None:
        raise InvalidInputError("run_id names the run of the fork's first prompt; give its message too", field="run_id")
    if body.job_id is not None and not body.wait:
        raise InvalidInputError("job_id is the id of a fork job; set wait too", field="job_id")
    new = body.new_thread_id or key.id("fork", thread_id)
    cut = Cut(after_run_id=body.after_run_id, at_message_id=body.at_message_id, at_seq=body.at_seq, repair=body.repair)
    if body.wait:
        handle = await caller.client.enqueue_fork(
            thread_id, new, body.job_id or key.id("fork_job", thread_id),
            after_run_id=cut.after_run_id, at_message_id=cut.at_message_id, at_seq=cut.at_seq, repair=cut.repair,
            metadata=body.metadata, title=body.title, tags=body.tags, agent=body.agent, reset_usage=body.reset_usage,
            message=as_message(body.message), prompt_run_id=body.run_id,
        )  # fmt: skip
        return accepted(caller, handle)
    request = fork_request(thread_id, new, cut, body.metadata, body.title, body.tags, body.agent, body.reset_usage)
    forked, prompted = await make_fork(caller.client, request, as_message(body.message), body.run_id)
    made = ForkMade.model_construct(thread=forked.thread, run=prompted.accepted if prompted is not None else None)
    return reply(made, 201 if forked.created else 200, Location=caller.location("threads", forked.thread.thread_id))


@router.post(
    "/fork_once",
    **operation(
        *REFUSED,
        HitlNotAllowedError,
        ResultExpiredError,
        s200=(ProbeAnswer, "The answer of the probe."),
        s202=JOB,
    ),
)
async def fork_once(caller: Writes, thread_id: ThreadId, body: Probe, key: Idempotency, wait: Wait = 30.0) -> Response:
    """Answer one message on a snapshot of the thread. No thread is changed. The side effects of tools that the agent calls are
    real."""
    run_id = body.run_id or key.id("fork_once", thread_id) or new_id()
    message = as_message(body.message)
    assert message is not None
    try:
        with caller.seat().permit:
            result = await caller.client.fork_once(
                thread_id, message, body.after_run_id,
                run_id=run_id, agent=body.agent, timeout=body.timeout, wait=patience(wait, caller),
            )  # fmt: skip
    except TimeoutError:
        return await later(caller, thread_id, run_id)
    return reply(ProbeAnswer.model_validate(result))


async def later(caller: Caller, thread_id: str, run_id: str) -> Response:
    """Return 202 with the fork job."""
    where = caller.location("threads", thread_id, "runs", run_id)
    return reply(await caller.client.run(thread_id, run_id), 202, Location=where, Retry_After=RETRY_AFTER_SECONDS)
