"""Routes of messages: paths and leaves of the message tree, and messages without a run."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from fastapi import APIRouter, Body, Path, Query, Response
from pydantic import BeforeValidator

from runyard.errors import (
    InvalidBlobError,
    InvalidCursorError,
    LeafMovedError,
    MessageNotFoundError,
    MessageTooLargeError,
    RunNotCompletedError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from runyard.formats.conversion import Format, from_blob
from runyard.models import Message
from runyard.ports.branches import BranchStore

from ..answers import BranchMessages, BranchPage, FormattedMessagePage, MessagePage
from ..idempotency import Idempotency
from ..request_models import MessageInput, SetLabel, StoreBlob, StoreBody
from .arguments import Label, Limit, MessageId, Paging, ThreadId, bounded
from .documentation import operation
from .replies import IfNoneMatch, reply, reply_lists, reply_page
from .route_access import Reads, Route, Writes

router = APIRouter(prefix="/v1/threads/{thread_id}", tags=["messages"], route_class=Route)


@router.get(
    "/messages",
    **operation(
        ThreadNotFoundError,
        MessageNotFoundError,
        InvalidCursorError,
        s200=(
            MessagePage | FormattedMessagePage,
            "A page of the path, in order. With `format`, its items are of that format. `ETag` changes with its content.",
            "ETag",
        ),
        s304=(None, "The page still has the `ETag` of If-None-Match.", "ETag"),
    ),
)
async def list_messages(
    caller: Reads,
    thread_id: ThreadId,
    paging: Paging,
    leaf_id: Annotated[
        str | None,
        Query(description="Last message of the path. Default: the newest leaf.", json_schema_extra={"format": "uuid"}),
    ] = None,
    order: Annotated[
        Literal["oldest_first", "newest_first"], Query(description="Start at the root or at the leaf.")
    ] = "oldest_first",
    format: Annotated[Format | None, Query(description="Return the messages as JSON of this format.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """List the messages from the root to a leaf of the message tree, page by page."""
    newest_first = order == "newest_first"
    if format is None:
        page = await caller.client.messages(thread_id, leaf_id, **paging, newest_first=newest_first)
        return await reply_page(MessagePage.model_construct(items=[], next=page.next), page.items, if_none_match)
    found = await caller.client.messages(thread_id, leaf_id, **paging, newest_first=newest_first, format=format)
    return await reply_page(FormattedMessagePage.model_construct(**found.__dict__ | {"items": []}), found.items, if_none_match)


@router.post(
    "/messages",
    status_code=201,
    **operation(
        ThreadBusyError,
        MessageNotFoundError,
        LeafMovedError,
        MessageTooLargeError,
        InvalidBlobError,
        s201=(Message, "The stored message."),
    ),
)
async def store_message(caller: Writes, thread_id: ThreadId, body: StoreBody, key: Idempotency) -> Response:
    """Add a message without a run. The next run sees it. The thread is created if it does not exist.

    A message that is sent again with the same `id` is stored once. With `format`, `blob` is the JSON of a message in that
    format.
    """
    if isinstance(body, StoreBlob):
        message = from_blob(body.format, body.blob)
        named = body.format == "native" and isinstance(body.blob, dict) and "id" in body.blob
        if not named and (id_ := key.id("messages", thread_id)) is not None:
            message.id = id_
    else:
        given = MessageInput(content=body.message) if isinstance(body.message, str) else body.message
        message = given.model_copy(update={"id": given.id or key.id("messages", thread_id)}).message()
    stored = await caller.client.store_message(thread_id, message, body.parent_id, expected_leaf=body.expected_leaf)
    return reply(stored, 201)


@router.get("/messages/{message_id}", **operation(ThreadNotFoundError, MessageNotFoundError, s200=(Message, "The message.")))
async def get_message(caller: Reads, thread_id: ThreadId, message_id: MessageId) -> Response:
    """Read one message of any branch of the thread."""
    return reply(await caller.client.message(thread_id, message_id))


@router.get(
    "/branches",
    **operation(ThreadNotFoundError, InvalidCursorError, s200=(BranchPage, "A page of leaves, the oldest first.")),
)
async def list_branches(
    caller: Reads,
    thread_id: ThreadId,
    paging: Paging,
    labelled: Annotated[bool, Query(description="Only the ends of labelled branches.")] = False,
) -> Response:
    """List the leaves of the thread's message tree. The end of a labelled branch is always listed."""
    page = await caller.client.branches(thread_id, **paging, labelled=labelled)
    return reply(BranchPage.model_construct(items=page.items, next=page.next))


def _digits(value: str) -> str:
    if not (value.isascii() and value.isdigit()):
        raise ValueError("must be a number in digits, such as 0")
    return value


@router.get(
    "/branches/{number}/messages",
    **operation(
        ThreadNotFoundError,
        MessageNotFoundError,
        s200=(BranchMessages, "The messages. An empty list is the end of the branch."),
    ),
)
async def list_branch_messages(
    caller: Reads,
    thread_id: ThreadId,
    number: Annotated[
        int,
        BeforeValidator(_digits),
        Path(ge=0, le=2**31, description="Number of the branch, from 0, in the order of their openings."),
    ],
    after: Annotated[int, Query(ge=0, lt=2**63, description="`seq` of the message before the first one.")] = 0,
    limit: Limit = 100,
) -> Response:
    """List the messages of one branch, without the messages before the branch begins. The messages of all runs are included,
    also of runs that failed. Branch 0 of a thread without messages is an empty list. `threads export` reads threads with this
    request."""
    store = cast(BranchStore, caller.client.backend.threads)
    key, branches = await store.branch_at(thread_id, number)
    if key is None and number > 0:
        raise MessageNotFoundError(f"the thread has {branches} branches, numbered from 0; there is no branch {number}")
    most = bounded(limit, caller)
    items = await store.branch_messages(thread_id, key, after=after, limit=most) if key is not None else []
    return await reply_lists(BranchMessages.model_construct(items=[], branches=branches), items=items)


@router.put(
    "/labels/{label}",
    status_code=204,
    **operation(ThreadNotFoundError, MessageNotFoundError, RunNotCompletedError, s204=(None, "The branch has the label.")),
)
async def set_label(
    caller: Writes, thread_id: ThreadId, label: Label, body: Annotated[SetLabel | None, Body()] = None
) -> Response:
    """Give a branch a label. The label follows the branch when messages are added. If another branch of the thread has the
    label, the label moves."""
    await caller.client.set_label(thread_id, label, body.message_id if body is not None else None)
    return Response(status_code=204)


@router.delete(
    "/labels/{label}",
    status_code=204,
    **operation(ThreadNotFoundError, s204=(None, "The thread does not have the label.")),
)
async def remove_label(caller: Writes, thread_id: ThreadId, label: Label) -> Response:
    """Remove a label from its branch. Nothing changes if the thread does not have the label."""
    await caller.client.remove_label(thread_id, label)
    return Response(status_code=204)
