"""The thread store over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Unpack

from runyard.domain.etags import etag_of
from runyard.domain.quoting import brief
from runyard.domain.size_limits import check_value
from runyard.domain.threads import Lineage
from runyard.errors import InvalidInputError, ThreadNotFoundError
from runyard.models import Branch, JsonObject, Message, Thread
from runyard.ports.commands import ForkRequest, ThreadChanges, ThreadRequest
from runyard.ports.queries import ALL_THREADS, FIRST_PAGE, WHOLE_PATH, PageRequest, PathRequest, ThreadFilter
from runyard.ports.results import Created, Forked, Page
from runyard.ports.scheduling import Effects

from . import codec
from .codec import given, read, read_page
from .transport import Transport
from .unsupported import DirectOnly

PAGE_SIZE: Final = 500
"""Messages per request when a whole path is read."""


class HttpThreadStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.ThreadStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("threads")
        self._transport = transport

    async def thread(self, thread_id: str) -> Thread | None:
        """Return one thread, or None if it does not exist."""
        with suppress(ThreadNotFoundError):
            return read(Thread, (await self._transport.ask("GET", "threads", thread_id)).data)
        return None

    async def threads(self, where: ThreadFilter = ALL_THREADS, page: PageRequest = FIRST_PAGE) -> Page[Thread]:
        """Return threads, in the order in which they were made, or the newest first."""
        if name := next((name for name in where.tags if ":" in name), None):
            raise InvalidInputError(f"over HTTP, a tag with a colon in its name cannot be a filter: {brief(name)}")
        tag = [f"{name}:{value}" for name, value in where.tags.items()]
        query = {
            "parent_thread_id": where.parent_thread_id,
            "agent": where.agent,
            "tag": tag,
            "order": "newest_first" if where.newest_first else None,
            **codec.paging(page),
        }
        return read_page(Thread, (await self._transport.ask("GET", "threads", query=query)).data)

    async def ancestors(self, thread_id: str, limit: int) -> Page[Thread]:
        """Return at most ``limit`` ancestors of the thread, and the deleted ancestors between them. The nearest ancestor is
        first."""
        found: list[Thread] = []
        following: str | None = thread_id
        while following is not None and len(found) < limit:
            query = {"limit": min(limit - len(found), PAGE_SIZE)}
            part = read(Lineage, (await self._transport.ask("GET", "threads", following, "lineage", query=query)).data)
            found += part.ancestors if following == thread_id else [part.thread, *part.ancestors]
            following = part.next_ancestor
        # The first thread of a later page is not counted by the limit of that page.
        for n, thread in enumerate(found[limit:], limit):
            if thread.deleted_at is None:
                return Page(found[:n], thread.thread_id)
        return Page(found, following)

    async def create_thread(self, request: ThreadRequest) -> Created:
        """Make a thread, or return the thread that an equal request made before."""
        body = given(
            thread_id=request.thread_id,
            agent=request.agent,
            title=request.title,
            tags=dict(request.tags),
            extra=request.extra,
            config=request.config,
        )
        answer = await self._transport.ask("POST", "threads", body=body)
        return Created(read(Thread, answer.data), created=answer.status == 201)

    async def update_thread(
        self, thread_id: str, *, expected: datetime | None = None, **changes: Unpack[ThreadChanges]
    ) -> Thread:
        """Set the given fields, and clear the fields that are None. ``expected``: the ``updated_at`` that the thread must have.
        With ``expected``, the request is not repeated after a lost reply, because the first request may have changed
        ``updated_at``."""
        for name in ("extra", "config"):
            check_value(changes.get(name), name)
        body: JsonObject = {name: dict(value) if isinstance(value, Mapping) else value for name, value in changes.items()}
        headers = _if_match(expected)
        answer = await self._transport.ask("PATCH", "threads", thread_id, repeat=expected is None, body=body, headers=headers)
        return read(Thread, answer.data)

    async def messages(self, thread_id: str, path: PathRequest = WHOLE_PATH) -> Page[Message]:
        """Return a page of a path of the tree. Without ``limit``, return the whole path."""
        order = "newest_first" if path.newest_first else "oldest_first"
        query = {"leaf_id": path.leaf_id, "limit": PAGE_SIZE if path.limit is None else path.limit, "order": order}
        found: list[Message] = []
        cursor = path.cursor
        while True:
            answer = await self._transport.ask("GET", "threads", thread_id, "messages", query={**query, "cursor": cursor})
            part = read_page(Message, answer.data)
            found += part.items
            cursor = part.next
            if path.limit is not None or cursor is None:
                return Page(found, cursor)

    async def branches(self, thread_id: str, page: PageRequest = FIRST_PAGE, *, labelled: bool = False) -> Page[Branch]:
        """Return the branches, each with its leaf, the oldest first."""
        query = {"labelled": labelled, **codec.paging(page)}
        return read_page(Branch, (await self._transport.ask("GET", "threads", thread_id, "branches", query=query)).data)

    async def branch_keys(self, thread_id: str) -> list[int]:
        """Return the numbers of the thread's branches, in the order in which they were opened."""
        return [*range((await self._branch(thread_id, 0, 0, 1))["branches"])]

    async def branch_messages(self, thread_id: str, branch: int, *, after: int = 0, limit: int = PAGE_SIZE) -> list[Message]:
        """Return the branch's own messages of all runs, in order."""
        return [read(Message, item) for item in (await self._branch(thread_id, branch, after, limit))["items"]]

    async def _branch(self, thread_id: str, branch: int, after: int, limit: int) -> Any:
        query = {"after": after, "limit": limit}
        return (await self._transport.ask("GET", "threads", thread_id, "branches", str(branch), "messages", query=query)).data

    async def set_label(self, thread_id: str, label: str, message_id: str | None = None) -> None:
        """Give a label to the branch that stores a message, or to the head."""
        await self._transport.ask("PUT", "threads", thread_id, "labels", label, body=given(message_id=message_id))

    async def remove_label(self, thread_id: str, label: str) -> None:
        """Remove a label."""
        await self._transport.ask("DELETE", "threads", thread_id, "labels", label)

    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Store a message without a run. If a reply is lost, the request is repeated and finds the message by its id."""
        body = given(message=codec.message(message), parent_id=parent_id, expected_leaf=expected_leaf)
        return read(Message, (await self._transport.ask("POST", "threads", thread_id, "messages", body=body)).data)

    async def fork(self, request: ForkRequest) -> Forked:
        """Fork a thread, or return the fork that an equal request made before."""
        answer = await self._transport.ask("POST", "threads", request.src, "fork", body=codec.fork(request))
        return Forked(read(Thread, answer.data["thread"]), created=answer.status == 201)

    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete a thread. The request is not repeated after a lost reply, because meanwhile a new thread may have taken the id
        of the deleted thread."""
        query = {"cancel": cancel}
        await self._transport.ask("DELETE", "threads", thread_id, repeat=False, query=query, headers=_if_match(expected))
        return Effects()

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete a thread and erase its messages. The request is not repeated after a lost reply, because meanwhile a new
        thread may have taken the id of the deleted thread."""
        query = {"cancel": cancel, "erase": True}
        await self._transport.ask("DELETE", "threads", thread_id, repeat=False, query=query, headers=_if_match(expected))
        return Effects()


def _if_match(expected: datetime | None) -> dict[str, str]:
    return {"If-Match": etag_of(expected)} if expected is not None else {}
