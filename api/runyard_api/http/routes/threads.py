"""Routes of threads: create, list, read, update, delete, lineage and diff."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from runyard.domain.etags import EPOCH, etag_of, moment_of
from runyard.domain.quoting import brief
from runyard.domain.threads import Lineage, ThreadDiff
from runyard.errors import (
    InvalidCursorError,
    InvalidInputError,
    PreconditionFailedError,
    ThreadAlreadyExistsError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from runyard.models import Thread
from runyard.ports.results import Created

from ..answers import ThreadPage
from ..idempotency import Idempotency
from ..request_models import CreateThread, UpdateThread
from ..tenant_client import Caller
from .arguments import Limit, Paging, ThreadId, bounded
from .documentation import operation
from .replies import ANY, IfMatch, IfNoneMatch, reply, reply_if_changed, to_bytes
from .route_access import Reads, Route, Writes

router = APIRouter(prefix="/v1/threads", tags=["threads"], route_class=Route)


@router.post(
    "",
    status_code=201,
    **operation(
        ThreadAlreadyExistsError,
        s200=(Thread, "The thread that an earlier request with the same content created.", "Location"),
        s201=(Thread, "The new thread. `Location` is its path.", "Location"),
    ),
)
async def create_thread(caller: Writes, body: CreateThread, key: Idempotency) -> Response:
    """Create a thread without messages. A repetition with the same id and fields returns the thread that exists."""
    made = await make(caller, body, body.thread_id or key.id("threads"))
    return reply(made.thread, 201 if made.created else 200, Location=caller.location("threads", made.thread.thread_id))


async def make(caller: Caller, body: CreateThread, thread_id: str | None) -> Created:
    """Create the thread of a body. ``thread_id``: the id of the thread, or None for a generated id. Raises
    ThreadAlreadyExistsError."""
    return await caller.client.create_thread(
        thread_id, agent=body.agent, title=body.title, tags=body.tags, extra=body.extra, config=body.config
    )


@router.get("", **operation(InvalidCursorError, s200=(ThreadPage, "A page of threads.")))
async def list_threads(
    caller: Reads,
    paging: Paging,
    parent_thread_id: Annotated[str | None, Query(description="Only forks of this thread.")] = None,
    agent: Annotated[str | None, Query(description="Only threads of this agent.")] = None,
    tag: Annotated[list[str] | None, Query(description="Only threads with this tag, as name:value. May be repeated.")] = None,
    order: Annotated[
        Literal["oldest_first", "newest_first"], Query(description="Start at the oldest or at the newest thread.")
    ] = "oldest_first",
) -> Response:
    """List threads, page by page, in the order in which they were made, or the newest first."""
    page = await caller.client.threads(
        parent_thread_id=parent_thread_id,
        agent=agent,
        tags=_tags(tag or []),
        newest_first=order == "newest_first",
        **paging,
    )
    return reply(ThreadPage.model_construct(items=page.items, next=page.next))


def _tags(given: list[str]) -> dict[str, str] | None:
    tags = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not (name and colon):
            raise InvalidInputError(f"a tag is name:value, got {brief(text)}", field="tag")
        tags[name] = value
    return tags or None


@router.get(
    "/{thread_id}",
    **operation(
        ThreadNotFoundError,
        s200=(Thread, "The thread. `ETag` is its version.", "ETag"),
        s304=(None, "The thread still has the `ETag` of If-None-Match.", "ETag"),
    ),
)
async def get_thread(caller: Reads, thread_id: ThreadId, if_none_match: IfNoneMatch = None) -> Response:
    """Read one thread."""
    thread = await caller.client.thread(thread_id)
    return reply_if_changed(to_bytes(thread), etag_of(thread.updated_at), if_none_match)


async def _expected(caller: Caller, thread_id: str, if_match: list[str] | None) -> datetime | None:
    """Return the time of the last change that ``if_match`` names. The store compares this time while it holds the row lock of
    the thread."""
    if if_match is None:
        return None
    current = etag_of((await caller.client.thread(thread_id)).updated_at)
    if if_match == ANY:
        return None
    return moment_of(current if current in if_match else if_match[0]) or EPOCH


@router.patch(
    "/{thread_id}",
    **operation(ThreadNotFoundError, PreconditionFailedError, s200=(Thread, "The thread after the change.", "ETag")),
)
async def update_thread(caller: Writes, thread_id: ThreadId, body: UpdateThread, if_match: IfMatch = None) -> Response:
    """Change the agent, the title, the tags, the extra or the config of a thread. If you give tags, they replace all tags. If
    you give an extra or a config, it is merged. Null clears a value.

    With If-Match, the thread is changed only if its ETag is the given ETag.
    """
    expected = await _expected(caller, thread_id, if_match)
    thread = await caller.client.update_thread(thread_id, **body.given(), expected=expected)
    return reply(thread, ETag=etag_of(thread.updated_at))


@router.delete(
    "/{thread_id}",
    status_code=204,
    **operation(ThreadNotFoundError, ThreadBusyError, PreconditionFailedError, s204=(None, "The thread is deleted.")),
)
async def delete_thread(
    caller: Writes,
    thread_id: ThreadId,
    cancel: Annotated[bool, Query(description="Cancel the live runs of the thread first.")] = False,
    descendants: Annotated[bool, Query(description="Delete the thread's forks and their forks first.")] = False,
    erase: Annotated[bool, Query(description="Erase the thread's messages in every fork that shows them.")] = False,
    if_match: IfMatch = None,
) -> Response:
    """Delete a thread. Its forks still show its messages. With `erase`, the forks show these messages without content. With
    `descendants`, the forks and their forks are also deleted."""
    if erase and descendants:
        raise InvalidInputError("give erase or descendants, not both", field="erase")
    expected = await _expected(caller, thread_id, if_match)
    if erase:
        await caller.client.erase_thread(thread_id, cancel=cancel, expected=expected)
    else:
        await caller.client.delete_thread(thread_id, cancel=cancel, descendants=descendants, expected=expected)
    return Response(status_code=204)


@router.get(
    "/{thread_id}/lineage", **operation(ThreadNotFoundError, s200=(Lineage, "The ancestors, forks and children of the thread."))
)
async def get_lineage(caller: Reads, thread_id: ThreadId, limit: Limit = 100) -> Response:
    """Return at most `limit` ancestors of a thread, `limit` forks, and `limit` children of its runs."""
    return reply(await caller.client.lineage(thread_id, limit=bounded(limit, caller)))


@router.get(
    "/{thread_id}/diff",
    **operation(ThreadNotFoundError, s200=(ThreadDiff, "The messages of each thread after the last common one.")),
)
async def diff_threads(
    caller: Reads,
    thread_id: ThreadId,
    other: Annotated[str, Query(min_length=1, max_length=255, description="The thread to compare with.")],
    limit: Limit = 200,
) -> Response:
    """Return the last message that both threads show. For each thread, also return the messages after this message."""
    return reply(await caller.client.diff(thread_id, other, limit=bounded(limit, caller)))
