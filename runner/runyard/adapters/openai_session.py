"""RunyardSession: a session of the OpenAI Agents SDK whose items are the messages of a thread.

A thread's messages are never changed or removed. When items are removed from a session, the session moves to an earlier
message. The next items begin a branch at this message. Until then, a mark in the thread's ``extra`` stores the place of the
session. The mark also has the id of the last message of the session's branch. If this branch gets another message, for example
from a worker's run, the mark becomes invalid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

from ..client.client import Client
from ..domain.messages import Message
from ..domain.size_limits import JsonObject
from ..domain.validation import ROOT_ID, check_id
from ..errors import CapabilityMissingError, InvalidInputError, LeafMovedError, PreconditionFailedError, ThreadNotFoundError
from ..support.optional_imports import load
from . import openai_items
from .connections import Own
from .openai_branches import BranchCalls

if TYPE_CHECKING:
    from agents.memory import SessionSettings

T = TypeVar("T")

MARKS: Final = "openai_session"
"""The key of the marks in a thread's extra. The value maps the label of each branch to its mark.

For the head, the label is the empty text.
"""
PAGE: Final = 100
"""Number of messages that are read at once."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a thread's branches. ``version``: the thread's ``updated_at`` at the time of the read."""

    of: JsonObject
    version: datetime | None


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a session in a thread.

    ``end``: the id of the last message of the session's branch, or None if the branch has no message. ``leaf``: the id of the
    session's last message. If there is no mark, ``leaf`` is ``end``. ``dropped``: the number of items that were removed from
    the end of the message ``leaf``.
    """

    end: str | None = None
    leaf: str | None = None
    dropped: int = 0
    marks: Marks | None = None

    @property
    def marked(self) -> bool:
        return self.leaf != self.end or self.dropped > 0

    @property
    def mark(self) -> JsonObject:
        return {"over": self.end, "leaf": self.leaf, "dropped": self.dropped}

    @property
    def empty(self) -> bool:
        return self.leaf in (None, ROOT_ID)


class RunyardSession(BranchCalls):
    """A session of the OpenAI Agents SDK: ``Runner.run(agent, "hello", session=RunyardSession(client, "t1"))``.

    ``client``: a :class:`~runyard.Client`, or the URL of a store. A session for a client works only in the client's event
    loop. A session for a URL connects at its first call in each event loop, for example in each ``asyncio.run``. :meth:`close`
    closes the connections of the running loop. ``thread_id``: the id of the thread. If the thread is missing, the first added
    item creates the thread. ``branch``: the label of a branch, or None for the head. The head is the branch of the last
    message. ``session_settings``: the settings of the SDK. Their ``limit`` is the default of :meth:`get_items`.

    :meth:`get_items` returns each item unchanged, even an item without a corresponding message (:mod:`.openai_items`). The
    items of a session come from all messages of the branch, including the messages of workers' runs. A removed item stays in
    the thread, on a branch that :meth:`runyard.Client.branches` lists. To destroy content, call
    :meth:`runyard.Client.erase_thread`.

    Raises InvalidInputError for an invalid thread id.
    """

    def __init__(
        self,
        client: Client | str,
        thread_id: str,
        *,
        branch: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = check_id(thread_id, "thread_id")
        self.session_settings: SessionSettings | None = _settings(session_settings)
        self.branch = branch
        self._given = client
        self._connections = Own(client, "") if isinstance(client, str) else None
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def __aenter__(self) -> Self:
        await self.client()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """If the session was made for a URL, close the connections that it opened in the running event loop. A client that the
        caller passed stays open."""
        if self._connections is not None:
            await self._connections.aclose()

    async def client(self) -> Client:
        """Return the session's client. For a URL, return the client of the running event loop. The first call connects."""
        if isinstance(self._given, Client):
            return self._given
        assert self._connections is not None
        return Client(await self._connections.backend())

    @property
    def _lock(self) -> asyncio.Lock:
        """The asyncio lock for calls in the running event loop. The store detects conflicts with calls in other loops and
        processes."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the last ``limit`` items, the oldest first.

        If ``limit`` is None, the limit of the session's settings applies. If this limit is also None, all items are returned.

        Raises the errors of the store.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is not None and limit <= 0:
            return []
        async with self._lock:
            place = await self.place(self.branch)
            return await self._items(place, limit)

    async def add_items(self, items: Sequence[Any]) -> None:
        """Store items at the end of the session.

        The items of one message are stored in one transaction. Several messages on the head also share a transaction. On
        another branch, and over HTTP, each message has its own transaction.

        Raises MessageTooLargeError and the errors of the store. Raises InvalidInputError for an item that is not JSON. Raises
        ThreadBusyError while a run is live on the branch, except for several messages in one transaction.
        """
        messages = openai_items.to_messages(openai_items.checked(items))
        if messages:
            await _settled(self._add(messages))

    async def _add(self, messages: list[Message]) -> None:
        async with self._lock:
            while True:
                place = await self.place(self.branch)
                try:
                    if self.branch is None and not place.marked:
                        await self._continue(messages)
                    else:
                        await self._begin(place, messages)
                    return
                except LeafMovedError:
                    continue  # another session has added items: read the place again

    async def pop_item(self) -> Any:
        """Remove the last item. Return the item, or None if the session has no item.

        The message of the item stays in the thread. If several callers remove items at the same time, each caller gets a
        different item. Raises the errors of the store.
        """
        return await _settled(self._pop())

    async def _pop(self) -> JsonObject | None:
        async with self._lock:
            while True:
                place = await self.place(self.branch)
                path = [] if place.empty else await self._newest(place.leaf, 2)
                if not path:
                    return None
                items = openai_items.to_items(path[0])
                left = len(items) - place.dropped
                if left > 1:
                    moved = await self._move(place, path[0].id, place.dropped + 1)
                else:
                    moved = await self._move(place, path[1].id if len(path) > 1 else ROOT_ID, 0)
                if moved and left > 0:
                    return items[left - 1]

    async def clear_session(self) -> None:
        """Remove all items of the session's branch. The next item begins another tree in the thread.

        Other branches keep their items, and the thread keeps all messages. Raises the errors of the store.
        """
        await _settled(self._clear())

    async def _clear(self) -> None:
        async with self._lock:
            while not (place := await self.place(self.branch)).empty and not await self._move(place, ROOT_ID, 0):
                pass

    async def leaf_id(self) -> str | None:
        """Return the id of the session's last message.

        Return :data:`~runyard.models.ROOT_ID` if the thread has messages but the session has none. Return None if the thread
        has no message. Use the id as ``parent_id`` of a prompt that continues the session: ``client.enqueue(thread,
        text, parent_id=…)``. If items of the last message were removed, return the id of the previous message.
        """
        async with self._lock:
            place = await self.place(self.branch)
            if not place.dropped:
                return place.leaf
            path = await self._newest(place.leaf, 2)
            return path[1].id if len(path) > 1 else ROOT_ID

    async def place(self, branch: str | None) -> Place:
        """Return the place of a session on ``branch`` (None: the head). Raise InvalidInputError for an unknown branch."""
        client = await self.client()
        try:
            marks = await self.marks()
            end = await self._end(client, branch)
        except ThreadNotFoundError:
            if branch is None:
                return Place()
            raise
        match marks.of.get(branch or ""):
            case {"over": over, "leaf": str(leaf), "dropped": int(dropped)} if over == end:
                return Place(end, leaf, dropped, marks)
        if branch is not None and end is None:
            raise InvalidInputError(f"thread {self.session_id} has no branch {branch!r}", field="branch")
        return Place(end, end, 0, marks)

    async def marks(self) -> Marks:
        """Return the marks of the thread's branches. Raise ThreadNotFoundError for an unknown thread."""
        client = await self.client()
        thread = await client.thread(self.session_id)
        found = thread.extra.get(MARKS)
        return Marks(found if isinstance(found, dict) else {}, thread.updated_at)

    async def save_mark(self, marks: Marks, branch: str | None, mark: JsonObject | None) -> bool:
        """Set or remove the mark of a branch.

        If the thread has changed after ``marks`` were read, change nothing and return False.
        """
        kept = {name: each for name, each in marks.of.items() if name != (branch or "")}
        changed = kept if mark is None else {**kept, (branch or ""): mark}
        client = await self.client()
        try:
            await client.update_thread(self.session_id, extra={MARKS: changed}, expected=marks.version)
        except PreconditionFailedError:
            return False
        return True

    async def _move(self, place: Place, leaf: str, dropped: int) -> bool:
        """Move the session to a message.

        If the thread has changed after ``place`` was read, change nothing and return False.
        """
        assert place.marks is not None
        return await self.save_mark(place.marks, self.branch, {"over": place.end, "leaf": leaf, "dropped": dropped})

    async def _end(self, client: Client, branch: str | None) -> str | None:
        """Return the id of the last message of a branch, or None."""
        if branch is None:
            path = await self._newest(None, 1)
            return path[0].id if path else None
        leaves = await client.branches(self.session_id, labelled=True)
        return next((leaf.message_id for leaf in leaves.items if branch in leaf.labels), None)

    async def _continue(self, messages: Sequence[Message]) -> None:
        """Store messages at the end of the head."""
        client = await self.client()
        if len(messages) > 1:
            try:
                await client.backend.checkpointer.append(self.session_id, messages)
                return
            except CapabilityMissingError:
                pass  # the HTTP backend has no checkpointer
        for message in messages:
            await client.store_message(self.session_id, message)

    async def _begin(self, place: Place, messages: list[Message]) -> None:
        """Store messages at the session's place. The messages begin a branch if the place is not the end of a branch."""
        client = await self.client()
        parent = ROOT_ID if place.leaf is None else place.leaf
        if place.dropped:
            path = await self._newest(place.leaf, 2)
            kept = openai_items.to_items(path[0])
            messages = [*openai_items.to_messages(kept[: len(kept) - place.dropped]), *messages]
            parent = path[1].id if len(path) > 1 else ROOT_ID
        seen = place.end if self.branch is None or not place.marked else None
        for message in messages:
            try:
                stored = await client.store_message(self.session_id, message, parent, expected_leaf=seen)
            except LeafMovedError as moved:
                if moved.details.get("leaf_id") != parent:
                    raise
                stored = await client.store_message(self.session_id, message, parent, expected_leaf=parent)
            parent, seen = stored.id, None
        if self.branch is not None:
            await client.set_label(self.session_id, self.branch, parent)

    async def _newest(self, leaf_id: str | None, limit: int) -> list[Message]:
        """Return the last ``limit`` messages of a path, the newest first."""
        client = await self.client()
        return (await client.messages(self.session_id, leaf_id, limit=limit, newest_first=True)).items

    async def _items(self, place: Place, limit: int | None) -> list[Any]:
        """Return the last ``limit`` items. No message is read twice.

        Without a limit, one call of the store reads all messages.
        """
        if place.empty:
            return []
        client = await self.client()
        if limit is None:
            path = (await client.messages(self.session_id, place.leaf)).items
            items = [item for message in path for item in openai_items.to_items(message)]
            return items[: len(items) - place.dropped]
        newest: list[JsonObject] = []
        missing, most, cursor = limit + place.dropped, 0, None
        while missing > 0:
            most = min(PAGE, max(missing, 2 * most))  # a message may have no item
            page = await client.messages(self.session_id, place.leaf, limit=most, cursor=cursor, newest_first=True)
            found = [item for message in page.items for item in reversed(openai_items.to_items(message))]
            newest += found
            missing -= len(found)
            if (cursor := page.next) is None:
                break
        return newest[place.dropped : place.dropped + limit][::-1]


async def _settled(change: Coroutine[Any, Any, T]) -> T:
    """Wait until a change has ended, even if the caller is cancelled. Then raise the CancelledError.

    If the cancel stopped the change itself, the program could not know whether the items were stored.
    """
    task = asyncio.create_task(change)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs the exception
    raise cancelled


def _settings(given: SessionSettings | dict[str, Any] | None) -> SessionSettings:
    module = load("agents.memory")
    if isinstance(given, dict) and (unknown := given.keys() - {each.name for each in fields(module.SessionSettings)}):
        raise TypeError(f"Unknown session settings: {', '.join(sorted(unknown))}")
    settings: SessionSettings = module.SessionSettings(**(given or {})) if given is None or isinstance(given, dict) else given
    return settings
