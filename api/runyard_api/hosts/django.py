"""Responses for views of Django: :func:`sse_response` for async views, :func:`blocking_sse_response` for sync views."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from runyard import RunHandle
from runyard.client.sync import SyncRunHandle

from .sse import HEADERS, HEARTBEAT_SECONDS, MEDIA_TYPE, opened


async def sse_response(handle: RunHandle, request: HttpRequest, *, heartbeat: float = HEARTBEAT_SECONDS) -> HttpResponseBase:
    """Return a response for ASGI that streams the events of a run until the run ends or is suspended.

    When a browser's ``EventSource`` reconnects, it sends the id of its last event and gets the later events (E1). If no event
    can follow, the response is 204. ``heartbeat``: seconds without an event after which a comment is sent. Raises
    RunNotFoundError.
    """
    stream = await opened(handle, request.headers.get("Last-Event-ID"), heartbeat)
    return HttpResponse(status=204) if stream is None else StreamingHttpResponse(stream, MEDIA_TYPE, headers=HEADERS)


def blocking_sse_response(
    handle: SyncRunHandle, request: HttpRequest, *, heartbeat: float = HEARTBEAT_SECONDS
) -> HttpResponseBase:
    """Return the response of :func:`sse_response` for a sync view. Each open stream occupies a thread of the server."""
    stream = handle.portal.wait(opened(handle.handle, request.headers.get("Last-Event-ID"), heartbeat))
    if stream is None:
        return HttpResponse(status=204)
    return StreamingHttpResponse(handle.portal.iterate(stream), MEDIA_TYPE, headers=HEADERS)
