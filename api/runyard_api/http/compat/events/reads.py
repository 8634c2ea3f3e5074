"""Reads: the list of threads, and the history, the head and the forks of a thread."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from runyard.errors import InvalidCursorError, ThreadNotFoundError
from runyard.models import Thread
from runyard.ports.results import Page

from ...routes.arguments import Paging, ThreadId
from ...routes.documentation import operation
from ...routes.replies import IfNoneMatch, reply, reply_page
from ...routes.route_access import Reads, Route
from .answers import EventHead, EventMessage, EventMessagePage, EventThread, EventThreadPage

router = APIRouter(prefix="/threads", tags=["events"], route_class=Route)


@router.get("", **operation(InvalidCursorError, s200=(EventThreadPage, "A page of threads, the oldest first.")))
async def events_list_threads(caller: Reads, paging: Paging) -> Response:
    """List threads, including forks, page by page."""
    return _listed(await caller.client.threads(**paging))


@router.get(
    "/{thread_id}/branches",
    **operation(ThreadNotFoundError, InvalidCursorError, s200=(EventThreadPage, "A page of forks, the oldest first.")),
)
async def events_list_branches(caller: Reads, thread_id: ThreadId, paging: Paging) -> Response:
    """List the forks of a thread. Forks of these forks are not in the list."""
    await caller.client.thread(thread_id)
    return _listed(await caller.client.threads(parent_thread_id=thread_id, **paging))


def _listed(page: Page[Thread]) -> Response:
    return reply(EventThreadPage.model_construct(items=[EventThread.of(each) for each in page.items], next=page.next))


@router.get(
    "/{thread_id}/messages",
    **operation(
        ThreadNotFoundError,
        InvalidCursorError,
        s200=(EventMessagePage, "A page of the history. `ETag` changes with its content.", "ETag"),
        s304=(None, "The page still has the `ETag` of If-None-Match.", "ETag"),
    ),
)
async def events_list_messages(
    caller: Reads,
    thread_id: ThreadId,
    paging: Paging,
    order: Annotated[
        Literal["oldest_first", "newest_first"], Query(description="Start at the first event or at the head.")
    ] = "oldest_first",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Read the history of a thread, in the order of event numbers: the inherited events, then the thread's own events."""
    page = await caller.client.messages(thread_id, **paging, newest_first=order == "newest_first")
    items = [EventMessage.of(message) for message in page.items]
    page.items.clear()  # emptied, so that reply_page frees the values of written items
    return await reply_page(EventMessagePage.model_construct(items=[], next=page.next), items, if_none_match)


@router.get("/{thread_id}/head", **operation(ThreadNotFoundError, s200=(EventHead, "The head.")))
async def events_get_head(caller: Reads, thread_id: ThreadId) -> Response:
    """Read the last event of a thread. The event can be inherited."""
    last = (await caller.client.messages(thread_id, limit=1, newest_first=True)).items
    message = EventMessage.of(last[0]) if last else None
    number = message.event_number if message is not None else None
    return reply(EventHead.model_construct(thread_id=thread_id, event_number=number, message=message))
