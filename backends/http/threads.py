"""Threads and their messages over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from runner.bounds import check_value
from runner.errors import InvalidInputError, ThreadNotFoundError
from runner.etags import etag_of
from runner.exchange import Created, Effects, Forked, ForkRequest, Page, ThreadRequest
from runner.legible import brief
from runner.models import Branch, JsonObject, Message, Thread
from runner.unset import UNSET, Unset

from . import bodies
from .bodies import given, page, read
from .direct import DirectOnly
from .wire import Wire

PAGE: Final = 500
"""Messages per request where a whole path is asked for."""


class HttpThreadStore(DirectOnly):
    """The client's half of :class:`runner.ports.ThreadStore`."""

    def __init__(self, wire: Wire) -> None:
        super().__init__("threads")
        self._wire = wire

    async def thread(self, thread_id: str) -> Thread | None:
        """One thread, or None."""
        with suppress(ThreadNotFoundError):
            return read(Thread, (await self._wire.ask("GET", "threads", thread_id)).data)
        return None

    async def threads(
        self,
        *,
        parent_thread_id: str | None = None,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Threads, the oldest first."""
        if name := next((name for name in tags or {} if ":" in name), None):
            raise InvalidInputError(f"over HTTP, threads cannot be asked for by a tag with a colon in its name: {brief(name)}")
        tag = [f"{name}:{value}" for name, value in (tags or {}).items()]
        query = {"parent_thread_id": parent_thread_id, "agent": agent, "tag": tag, "limit": limit, "cursor": cursor}
        return page(Thread, (await self._wire.ask("GET", "threads", query=query)).data)

    async def create_thread(self, request: ThreadRequest) -> Created:
        """Make a thread, or find the one that the same request made."""
        body = given(
            thread_id=request.thread_id,
            agent=request.agent,
            title=request.title,
            tags=dict(request.tags),
            extra=request.extra,
            config=request.config,
        )
        answer = await self._wire.ask("POST", "threads", body=body)
        return Created(read(Thread, answer.data), created=answer.status == 201)

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | Unset | None = UNSET,
        tags: Mapping[str, str] | Unset | None = UNSET,
        extra: JsonObject | Unset | None = UNSET,
        expected: datetime | None = None,
    ) -> Thread:
        """Change what is given, clear what is None. With ``expected`` not sent again: what was done is no longer expected."""
        if extra is not UNSET:
            check_value(extra, "extra")
        patch: dict[str, Any] = {"title": title, "tags": dict(tags) if isinstance(tags, Mapping) else tags, "extra": extra}
        body: JsonObject = {name: value for name, value in patch.items() if not isinstance(value, Unset)}
        headers = _if_match(expected)
        answer = await self._wire.ask("PATCH", "threads", thread_id, repeat=expected is None, body=body, headers=headers)
        return read(Thread, answer.data)

    async def messages(
        self,
        thread_id: str,
        leaf_id: str | None = None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page[Message]:
        """A path of the tree; without ``limit``, all of it."""
        order = "newest_first" if newest_first else "oldest_first"
        query = {"leaf_id": leaf_id, "limit": PAGE if limit is None else limit, "order": order}
        found: list[Message] = []
        while True:
            answer = await self._wire.ask("GET", "threads", thread_id, "messages", query={**query, "cursor": cursor})
            part = page(Message, answer.data)
            found += part.items
            cursor = part.next
            if limit is not None or cursor is None:
                return Page(found, cursor)

    async def branches(self, thread_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Branch]:
        """The leaves, the oldest first."""
        query = {"limit": limit, "cursor": cursor}
        return page(Branch, (await self._wire.ask("GET", "threads", thread_id, "branches", query=query)).data)

    async def store_message(
        self, thread_id: str, message: Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Store a message without a run. One whose answer was lost is sent again, and then found by its id."""
        body = given(message=bodies.message(message), parent_id=parent_id, expected_leaf=expected_leaf)
        return read(Message, (await self._wire.ask("POST", "threads", thread_id, "messages", body=body)).data)

    async def fork(self, request: ForkRequest) -> Forked:
        """Fork, or find the fork that the same request made."""
        answer = await self._wire.ask("POST", "threads", request.src, "fork", body=bodies.fork(request))
        return Forked(read(Thread, answer.data["thread"]), created=answer.status == 201)

    async def delete_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete a thread. Not sent again: another one may have its id by then."""
        query = {"cancel": cancel}
        await self._wire.ask("DELETE", "threads", thread_id, repeat=False, query=query, headers=_if_match(expected))
        return Effects()

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> Effects:
        """Delete a thread and blank its messages. Not sent again."""
        query = {"cancel": cancel, "erase": True}
        await self._wire.ask("DELETE", "threads", thread_id, repeat=False, query=query, headers=_if_match(expected))
        return Effects()


def _if_match(expected: datetime | None) -> dict[str, str]:
    return {"If-Match": etag_of(expected)} if expected is not None else {}
