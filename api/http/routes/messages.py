"""Messages of a thread: a path of its tree, its leaves, and messages without a run."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from runner.errors import (
    InvalidCursorError,
    LeafMovedError,
    MessageNotFoundError,
    MessageTooLargeError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from runner.models import Message

from ..idempotency import Idempotency
from ..schemas import BranchPage, MessageInput, MessagePage, StoreMessage
from .parts import (
    Cursor,
    IfNoneMatch,
    Limit,
    MessageId,
    Reads,
    Route,
    ThreadId,
    Writes,
    bounded,
    operation,
    reply,
    reply_if_changed,
    to_bytes,
)

router = APIRouter(prefix="/v1/threads/{thread_id}", tags=["messages"], route_class=Route)


@router.get(
    "/messages",
    **operation(
        "read",
        ThreadNotFoundError,
        MessageNotFoundError,
        InvalidCursorError,
        s200=(MessagePage, "The path, in order; `ETag` changes with it.", "ETag"),
        s304=(None, "Nothing changed since the `ETag` of If-None-Match.", "ETag"),
    ),
)
async def list_messages(
    caller: Reads,
    thread_id: ThreadId,
    leaf_id: Annotated[
        str | None, Query(description="Any message; without it, the newest leaf.", json_schema_extra={"format": "uuid"})
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    order: Annotated[
        Literal["oldest_first", "newest_first"], Query(description="From the root, or from the leaf.")
    ] = "oldest_first",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The path from the root to a leaf of the thread's message tree, a page at a time."""
    page = await caller.client.messages(
        thread_id, leaf_id, limit=bounded(limit, caller), cursor=cursor, newest_first=order == "newest_first"
    )
    content = to_bytes(MessagePage.model_construct(items=page.items, next=page.next))
    tag = f'"{hashlib.blake2s(content, digest_size=16).hexdigest()}"'
    return reply_if_changed(content, tag, if_none_match)


@router.post(
    "/messages",
    status_code=201,
    **operation(
        "write",
        ThreadBusyError,
        MessageNotFoundError,
        LeafMovedError,
        MessageTooLargeError,
        s201=(Message, "The message as it is stored."),
    ),
)
async def store_message(caller: Writes, thread_id: ThreadId, body: StoreMessage, key: Idempotency) -> Response:
    """Add a message without a run; the thread is made if need be, and the next run sees it. Repeat it safely under its `id`."""
    given = MessageInput(content=body.message) if isinstance(body.message, str) else body.message
    message = given.model_copy(update={"id": given.id or key.id("messages", thread_id)}).message()
    stored = await caller.client.store_message(thread_id, message, body.parent_id, expected_leaf=body.expected_leaf)
    return reply(stored, 201)


@router.get(
    "/messages/{message_id}", **operation("read", ThreadNotFoundError, MessageNotFoundError, s200=(Message, "The message."))
)
async def get_message(caller: Reads, thread_id: ThreadId, message_id: MessageId) -> Response:
    """Read one message that the thread shows, on whatever branch."""
    return reply(await caller.client.message(thread_id, message_id))


@router.get("/branches", **operation("read", ThreadNotFoundError, InvalidCursorError, s200=(BranchPage, "The oldest first.")))
async def list_branches(caller: Reads, thread_id: ThreadId, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List the leaves of the thread's message tree."""
    page = await caller.client.branches(thread_id, limit=bounded(limit, caller), cursor=cursor)
    return reply(BranchPage.model_construct(items=page.items, next=page.next))
