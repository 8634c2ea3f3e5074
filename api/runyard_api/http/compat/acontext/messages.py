"""Routes of messages: store a message, read a path of the message tree, list the branches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from runyard.errors import (
    InvalidBlobError,
    InvalidCursorError,
    MessageNotFoundError,
    MessageTooLargeError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from runyard.formats.conversion import Format, to_format
from runyard.formats.pages import MessageLoss, formatted
from runyard.models import JsonObject, Message

from ...idempotency import Idempotency
from ...routes.arguments import Cursor, ThreadId, bounded
from ...routes.replies import reply, reply_lists
from ...routes.route_access import Reads, Route, Writes
from ...tenant_client import Caller
from .bodies import NewMessage
from .envelope import Answer, operation
from .uploads import UploadRoute

router = APIRouter(prefix="/api/v1/session/{thread_id}", tags=["acontext"], route_class=Route)
uploads = APIRouter(prefix=router.prefix, tags=router.tags, route_class=UploadRoute)

TRACKING: Final = "disable_tracking"
"""The status of every message. It means that the server extracts no tasks."""

MaybeLimit = Annotated[int | None, Query(ge=1, le=1000, description="Maximum number of messages. Default: a full page.")]


class StoredMessage(BaseModel):
    """A stored message in the format ``acontext``."""

    id: str
    session_id: str
    parent_id: str | None
    role: str
    meta: JsonObject
    parts: list[JsonObject]
    task_id: None = None
    session_task_process_status: str = TRACKING
    created_at: datetime
    updated_at: datetime


class MessagesPage(BaseModel):
    """A page of a path of the message tree.

    A message can have several items, or none. ``ids`` and ``metas``: for each of ``items``, the id and the metadata of its
    message. ``this_time_tokens``: an estimate. ``losses``: values of the messages that are missing in the items.
    """

    items: list[JsonObject]
    ids: list[str]
    metas: list[JsonObject]
    next_cursor: str | None
    has_more: bool
    this_time_tokens: int
    public_urls: None = None
    losses: list[MessageLoss]


class Leaf(BaseModel):
    """The end of a branch. ``depth``: the number of messages from the first message to the leaf."""

    message_id: str
    depth: int
    created_at: datetime


class Leaves(BaseModel):
    """The leaves of a message tree, the oldest first."""

    leaves: list[Leaf]
    next_cursor: str | None
    has_more: bool


@uploads.post(
    "/messages",
    status_code=201,
    **operation(
        ThreadNotFoundError,
        MessageNotFoundError,
        ThreadBusyError,
        MessageTooLargeError,
        InvalidBlobError,
        s201=(Answer[StoredMessage], "The stored message."),
    ),
)
async def acontext_store_message(caller: Writes, thread_id: ThreadId, body: NewMessage, key: Idempotency) -> Response:
    """Store a message in a session. With `parent_id`, the new message follows the message with this id. If this parent is not
    the last message of a branch, the new message opens a branch.

    In a `multipart/form-data` body, the field `payload` has the JSON. Each other field is a file. A part names the field of its
    file in `file_field`.
    """
    await caller.client.thread(thread_id)  # storing without this check would create the thread
    message = body.message()
    if not body.names_message and (id_ := key.id("messages", thread_id)) is not None:
        message.id = id_
    stored = await caller.client.store_message(thread_id, message, body.parent_id)
    [item] = to_format("acontext", stored).items
    return reply(Answer[StoredMessage](data=StoredMessage.model_validate(_whole(item, stored, thread_id))), 201)


@router.get(
    "/messages",
    **operation(
        ThreadNotFoundError, MessageNotFoundError, InvalidCursorError, s200=(Answer[MessagesPage], "A page of the path.")
    ),
)
async def acontext_get_messages(
    caller: Reads,
    thread_id: ThreadId,
    leaf_id: Annotated[
        str | None,
        Query(description="Last message of the path. Default: the newest leaf.", json_schema_extra={"format": "uuid"}),
    ] = None,
    format: Annotated[Format, Query(description="Format of the items.")] = "openai",
    limit: MaybeLimit = None,
    cursor: Cursor = None,
    time_desc: Annotated[bool, Query(description="Start at the leaf.")] = False,
    with_asset_public_url: Annotated[
        bool, Query(description="Accepted and not used. Files are in the messages and have no URLs.")
    ] = False,
) -> Response:
    """Read the messages from the first message to a leaf of the message tree, page by page."""
    most = _most(limit, caller)
    page = await caller.client.messages(thread_id, leaf_id, limit=most, cursor=cursor, newest_first=time_desc)
    made = await formatted(page.items, format, newest_first=time_desc)
    by_id = {message.id: message for message in page.items}
    messages = [by_id[id_] for id_ in made.message_ids]
    items = made.items
    if format == "acontext":
        items = [_whole(item, message, thread_id) for item, message in zip(items, messages, strict=True)]
    data = MessagesPage.model_construct(
        items=[],
        ids=made.message_ids,
        metas=[],
        next_cursor=page.next,
        has_more=page.next is not None,
        this_time_tokens=await _tokens(page.items),
        losses=[loss for loss in made.losses if (loss.format, loss.path) != ("native", "/metadata")],  # metas has the metadata
    )
    metas = [message.metadata for message in messages]
    return await reply_lists(Answer[MessagesPage].model_construct(data=data), items=items, metas=metas)


@router.get(
    "/branches",
    **operation(ThreadNotFoundError, InvalidCursorError, s200=(Answer[Leaves], "A page of leaves, the oldest first.")),
)
async def acontext_list_branches(
    caller: Reads, thread_id: ThreadId, limit: MaybeLimit = None, cursor: Cursor = None
) -> Response:
    """List the leaves of a session's message tree."""
    page = await caller.client.branches(thread_id, limit=_most(limit, caller), cursor=cursor)
    leaves = [Leaf.model_construct(**branch.model_dump(include=set(Leaf.model_fields))) for branch in page.items]
    data = Leaves.model_construct(leaves=leaves, next_cursor=page.next, has_more=page.next is not None)
    return reply(Answer[Leaves].model_construct(data=data))


def _most(limit: int | None, caller: Caller) -> int:
    """Return the maximum number of entries of a page."""
    return caller.service.settings.max_page if limit is None else bounded(limit, caller)


def _whole(item: JsonObject, message: Message, thread_id: str) -> dict[str, Any]:
    """Return a message in the format ``acontext`` with all fields of a session's message."""
    at = to_jsonable_python(message.created_at)
    about = {"session_id": thread_id, "task_id": None, "session_task_process_status": TRACKING}
    return {**item, "meta": item.get("meta") or {}, **about, "created_at": at, "updated_at": at}


CHARACTERS_PER_TOKEN: Final = 4


async def _tokens(messages: Iterable[Message]) -> int:
    """Return an estimate of the tokens of texts and tool calls: one token for CHARACTERS_PER_TOKEN characters.

    The event loop runs between two messages.
    """
    characters = 0
    for message in messages:
        characters += len(message.text) + sum(len(call.name) + len(str(call.arguments)) for call in message.tool_calls)
        characters += sum(len(str(result.content)) for result in message.tool_results)
        await asyncio.sleep(0)
    return -(-characters // CHARACTERS_PER_TOKEN)
