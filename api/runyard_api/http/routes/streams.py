"""Routes of a thread's stream, and of tokens for readers that cannot send headers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from runyard import Client
from runyard.errors import RunNotFoundError, ThreadNotFoundError

from ..answers import StreamToken
from ..idempotency import BY_STATE
from ..request_models import TokenRequest
from ..request_state import state_of
from ..sse import Entry, EventStream
from .arguments import LastEventId, ThreadId
from .documentation import EVENTS, operation
from .replies import reply
from .route_access import Reads, Route, Streams
from .runs import check_own

router = APIRouter(tags=["runs"], route_class=Route)


async def _entries(client: Client, thread_id: str, after: str | None) -> AsyncGenerator[Entry]:
    async with aclosing(client.stream_thread(thread_id, after)) as events:
        async for cursor, event in events:
            yield Entry(cursor, event)


@router.get("/v1/threads/{thread_id}/stream", **operation(ThreadNotFoundError, s200=EVENTS))
async def stream_thread(caller: Streams, request: Request, thread_id: ThreadId, last_event_id: LastEventId = None) -> Response:
    """Stream the events of all runs of a thread, live, until the client disconnects or the thread is deleted.

    The ids of this stream's events are not valid for the stream of a run.
    """
    place = None
    with caller.seat().taken() as seat:
        if last_event_id is None and not state_of(request.scope).get("head"):
            last_event_id = place = await caller.client.thread_cursor(thread_id)
        else:
            await caller.client.thread(thread_id)
        return EventStream(_entries(caller.client, thread_id, last_event_id), seat.kept(), place=place)


@router.post(
    "/v1/stream_tokens",
    dependencies=BY_STATE,
    status_code=201,
    **operation(ThreadNotFoundError, RunNotFoundError, s201=(StreamToken, "The token, for the query of a stream's URL.")),
)
async def create_stream_token(caller: Reads, body: TokenRequest) -> Response:
    """Create a token with which a browser's EventSource reads one stream: `…/stream?token=…`.

    A token for a fork does not read the runs that the fork inherited. The token is valid at most as long as the key that
    created it. The server stores no tokens. A repetition creates another token.
    """
    if body.run_id is not None:
        check_own(body.thread_id, await caller.client.run(body.thread_id, body.run_id))
    else:
        await caller.client.thread(body.thread_id)
    service = caller.service
    lifetime = min(body.lifetime, service.settings.token_lifetime)
    token, expires = service.gate.issue(caller.principal, body.thread_id, body.run_id, lifetime)
    return reply(StreamToken(token=token, expires_at=datetime.fromtimestamp(expires, UTC)), 201)
