"""Questions and approvals that wait for a human: the inbox, and its answers."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Body, Query, Response

from runner.errors import (
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
from runner.models import HitlRequest, Run

from ..idempotency import BY_STATE, Idempotency, Key
from ..schemas import Abort, RequestPage, Respond, RespondOnThread
from ..service import Caller
from .parts import Cursor, Limit, Reads, RequestId, Responds, Route, ThreadId, bounded, operation, reply

router = APIRouter(tags=["requests"], route_class=Route)

REFUSED: Final = (
    ThreadNotFoundError,
    HitlNoPendingRequestError,
    HitlAmbiguousError,
    HitlStaleAnswerError,
    HitlAlreadyAnsweredError,
    HitlInvalidAnswerError,
)
"""How an answer may be refused."""


async def _respond(caller: Caller, body: Respond, thread_id: str | None, request_id: str | None, key: Key) -> Response:
    answered_by = caller.principal.name or caller.principal.id
    response_id = body.response_id or key.id("respond", thread_id or "", request_id or "")
    request = await caller.client.respond(
        thread_id, body.answer, request_id, response_id, answered_by=answered_by, on_behalf_of=body.on_behalf_of
    )
    return reply(request)


@router.get(
    "/v1/requests", **operation("read", ThreadNotFoundError, InvalidCursorError, s200=(RequestPage, "The oldest first."))
)
async def list_requests(
    caller: Reads,
    limit: Limit = 100,
    cursor: Cursor = None,
    thread_id: Annotated[str | None, Query(description="Only those of this thread.")] = None,
    pending: Annotated[bool, Query(description="Only those that wait; otherwise the answered ones too.")] = True,
) -> Response:
    """The inbox: what waits for a human on any thread: who asks, what, since when and until when."""
    page = await caller.client.requests(thread_id, pending=pending, limit=bounded(limit, caller), cursor=cursor)
    return reply(RequestPage.model_construct(items=page.items, next=page.next))


@router.get("/v1/requests/{request_id}", **operation("read", HitlRequestNotFoundError, s200=(HitlRequest, "The request.")))
async def get_request(caller: Reads, request_id: RequestId) -> Response:
    """Read one request, whether it waits or not."""
    return reply(await caller.client.request(request_id))


@router.post(
    "/v1/requests/{request_id}/respond", **operation("respond", *REFUSED, s200=(HitlRequest, "The request with its answer."))
)
async def respond_to_request(caller: Responds, request_id: RequestId, body: Respond, key: Idempotency) -> Response:
    """Answer a request by its id; its run goes on. The same answer again is answered alike."""
    return await _respond(caller, body, None, request_id, key)


@router.post(
    "/v1/threads/{thread_id}/abort",
    dependencies=BY_STATE,
    **operation(
        "respond",
        ThreadNotFoundError,
        RunNotFoundError,
        HitlAmbiguousError,
        s200=(Run, "The run that was given up: cancelled, with what it said kept."),
        s204=(None, "Nothing waited."),
    ),
)
async def abort_pending(caller: Responds, thread_id: ThreadId, body: Annotated[Abort | None, Body()] = None) -> Response:
    """Give up the run that waits for a human: its open calls get error results, and no model is called.

    A repetition finds nothing that waits (204); name `run_id`, so that it cannot mean another run that waits by then.
    """
    asked = body or Abort()
    run = await caller.client.abort_pending(thread_id, asked.reason, run_id=asked.run_id)
    return reply(run) if run is not None else Response(status_code=204)


@router.post(
    "/v1/threads/{thread_id}/respond", **operation("respond", *REFUSED, s200=(HitlRequest, "The request with its answer."))
)
async def respond_on_thread(caller: Responds, thread_id: ThreadId, body: RespondOnThread, key: Idempotency) -> Response:
    """Answer the thread's only pending request, or the one that is named."""
    return await _respond(caller, body, thread_id, body.request_id, key)
