"""Routes of HITL requests: the questions and approvals that wait for a human, and their answers."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Body, Query, Response

from runyard.errors import (
    HitlAlreadyAnsweredError,
    HitlAmbiguousError,
    HitlInvalidAnswerError,
    HitlNoPendingRequestError,
    HitlRequestNotFoundError,
    HitlStaleAnswerError,
    InvalidCursorError,
    RunNotFoundError,
    ThreadNotFoundError,
)
from runyard.models import HitlRequest, Run

from ..answers import RequestPage
from ..idempotency import BY_STATE, Idempotency, Key
from ..request_models import Abort, Respond, RespondOnThread
from ..tenant_client import Caller
from .arguments import Paging, RequestId, ThreadId
from .documentation import operation
from .replies import reply
from .route_access import Reads, Responds, Route

router = APIRouter(tags=["requests"], route_class=Route)

REFUSED: Final = (
    ThreadNotFoundError,
    HitlNoPendingRequestError,
    HitlAmbiguousError,
    HitlStaleAnswerError,
    HitlAlreadyAnsweredError,
    HitlInvalidAnswerError,
)
"""Errors of a refused answer."""


async def _respond(caller: Caller, body: Respond, thread_id: str | None, request_id: str | None, key: Key) -> Response:
    answered_by = caller.principal.name or caller.principal.id
    response_id = body.response_id or key.id("respond", thread_id or "", request_id or "")
    request = await caller.client.respond(
        thread_id, body.answer, request_id, response_id, answered_by=answered_by, on_behalf_of=body.on_behalf_of
    )
    return reply(request)


@router.get(
    "/v1/requests",
    **operation(ThreadNotFoundError, InvalidCursorError, s200=(RequestPage, "A page of requests, the oldest first.")),
)
async def list_requests(
    caller: Reads,
    paging: Paging,
    thread_id: Annotated[str | None, Query(description="Only requests of this thread.")] = None,
    pending: Annotated[bool, Query(description="True: only requests that wait. False: also answered requests.")] = True,
) -> Response:
    """List the requests of all threads that wait for a human. An entry has the agent, the question, the time and the
    deadline."""
    page = await caller.client.requests(thread_id, pending=pending, **paging)
    return reply(RequestPage.model_construct(items=page.items, next=page.next))


@router.get("/v1/requests/{request_id}", **operation(HitlRequestNotFoundError, s200=(HitlRequest, "The request.")))
async def get_request(caller: Reads, request_id: RequestId) -> Response:
    """Read one request, answered or not."""
    return reply(await caller.client.request(request_id))


@router.post("/v1/requests/{request_id}/respond", **operation(*REFUSED, s200=(HitlRequest, "The request with its answer.")))
async def respond_to_request(caller: Responds, request_id: RequestId, body: Respond, key: Idempotency) -> Response:
    """Answer a request by its id. The run of the request is queued again. A repetition of the answer changes nothing."""
    return await _respond(caller, body, None, request_id, key)


@router.post(
    "/v1/threads/{thread_id}/abort",
    dependencies=BY_STATE,
    **operation(
        ThreadNotFoundError,
        RunNotFoundError,
        HitlAmbiguousError,
        s200=(Run, "The cancelled run. Its messages are kept."),
        s204=(None, "No run waited."),
    ),
)
async def abort_pending(caller: Responds, thread_id: ThreadId, body: Annotated[Abort | None, Body()] = None) -> Response:
    """Cancel the run that waits for a human. Its open tool calls get error results, and no model is called.

    If no run waits, the response is 204. Without `run_id`, a repeated request could cancel another run that waits in the
    meantime. Give `run_id` to prevent this.
    """
    asked = body or Abort()
    run = await caller.client.abort_pending(thread_id, asked.reason, run_id=asked.run_id)
    return reply(run) if run is not None else Response(status_code=204)


@router.post("/v1/threads/{thread_id}/respond", **operation(*REFUSED, s200=(HitlRequest, "The request with its answer.")))
async def respond_on_thread(caller: Responds, thread_id: ThreadId, body: RespondOnThread, key: Idempotency) -> Response:
    """Answer the only pending request of a thread, or the request that `request_id` names."""
    return await _respond(caller, body, thread_id, body.request_id, key)
