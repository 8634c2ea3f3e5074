"""Responses for routes of FastAPI and Starlette."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from runyard import RunHandle

from .sse import HEADERS, HEARTBEAT_SECONDS, MEDIA_TYPE, opened


async def sse_response(handle: RunHandle, request: Request, *, heartbeat: float = HEARTBEAT_SECONDS) -> Response:
    """Return a response that streams the events of a run until the run ends or is suspended.

    When a browser's ``EventSource`` reconnects, it sends the id of its last event and gets the later events (E1). If no event
    can follow, the response is 204. ``heartbeat``: seconds without an event after which a comment is sent. Raises
    RunNotFoundError.
    """
    stream = await opened(handle, request.headers.get("last-event-id"), heartbeat)
    return Response(status_code=204) if stream is None else StreamingResponse(stream, media_type=MEDIA_TYPE, headers=HEADERS)
