"""Threads and their message trees."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from ..errors import InvalidInputError, ThreadNotFoundError
from ..exchange import Created, Page, ThreadRequest
from ..models import Branch, JsonObject, Message, Thread, check_id, check_tags, new_id
from ..unset import UNSET, Unset
from .base import Calls, as_message, aware, check_limit


class ThreadCalls(Calls):
    """Read conversations, store messages without a run, delete."""

    async def thread(self, thread_id: str) -> Thread:
        """One thread. Raises ThreadNotFoundError."""
        thread = await self.backend.threads.thread(thread_id)
        if thread is None:
            raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)
        return thread

    async def create_thread(
        self,
        thread_id: str | None = None,
        *,
        agent: str | None = None,
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        extra: JsonObject | None = None,
        config: JsonObject | None = None,
    ) -> Created:
        """An empty thread, and whether it was made by this call. Not needed before a prompt, which makes its thread by itself.

        ``thread_id``: yours, or None for a uuid7; the same id with the same content again is the same thread. ``agent``: what
        answers where a prompt names none. ``config``: what forks copy, by value. It and ``extra`` hold no more
        than :mod:`runner.bounds` allows.

        Raises ThreadAlreadyExistsError, InvalidInputError.
        """
        id = new_id() if thread_id is None else check_id(thread_id, "thread_id")
        request = ThreadRequest(
            thread_id=id, agent=agent, title=title, tags=check_tags(tags or {}), extra=extra or {}, config=config or {}
        )
        return await self.backend.threads.create_thread(request)

    async def threads(
        self,
        *,
        parent_thread_id: str | None = None,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Threads, or the forks of one, the oldest first, a page at a time. ``tags``: those that carry all of them.
        Large values are left out (:attr:`runner.models.Thread.omitted`), and a page may come short: follow ``next`` until there
        is none.

        Raises InvalidInputError, InvalidCursorError.
        """
        check_limit(limit)
        return await self.backend.threads.threads(
            parent_thread_id=parent_thread_id, agent=agent, tags=tags, limit=limit, cursor=cursor
        )

    async def update_thread(
        self,
        thread_id: str,
        *,
        title: str | Unset | None = UNSET,
        tags: Mapping[str, str] | Unset | None = UNSET,
        extra: JsonObject | Unset | None = UNSET,
        expected: datetime | None = None,
    ) -> Thread:
        """Change what is given, clear what is None (RFC 7396).

        ``tags`` takes the place of all tags. ``extra`` is merged at its top level, and a key whose value is None is removed.
        ``expected``: the ``updated_at`` of the thread as the caller read it; refuse if it has changed since.

        Raises ThreadNotFoundError, PreconditionFailedError, InvalidInputError for ``extra`` that holds too
        much (:mod:`runner.bounds`).
        """
        return await self.backend.threads.update_thread(
            thread_id, title=title, tags=tags, extra=extra, expected=aware(expected, "expected")
        )

    async def messages(
        self,
        thread_id: str,
        leaf_id: str | None = None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page[Message]:
        """The path from the root to ``leaf_id``, any message of the thread; None: to the newest leaf (semantics: B2).

        ``limit``: messages per page, and about 8 MiB at most; None: the whole path. ``newest_first``: from the leaf on.

        Raises ThreadNotFoundError, MessageNotFoundError, InvalidInputError for a leaf that is no UUID, InvalidCursorError.
        """
        if limit is not None:
            check_limit(limit)
        return await self.backend.threads.messages(thread_id, leaf_id, limit=limit, cursor=cursor, newest_first=newest_first)

    async def message(self, thread_id: str, message_id: str) -> Message:
        """One message that the thread shows, on whatever branch.

        Raises ThreadNotFoundError, MessageNotFoundError, InvalidInputError for an id that is no UUID.
        """
        [message] = (await self.messages(thread_id, message_id, limit=1, newest_first=True)).items
        return message

    async def branches(self, thread_id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Branch]:
        """The leaves of the thread's message tree, the oldest first, a page at a time (semantics: B3).

        Raises ThreadNotFoundError, InvalidCursorError.
        """
        check_limit(limit)
        return await self.backend.threads.branches(thread_id, limit=limit, cursor=cursor)

    async def store_message(
        self, thread_id: str, message: str | Message, parent_id: str | None = None, *, expected_leaf: str | None = None
    ) -> Message:
        """Add a message without a run; the next run sees it (semantics: B1). A string is a message of the user. A message
        that is sent again under its id is the one that is stored.

        ``parent_id``: None appends to the newest branch; another message opens a branch there. ``expected_leaf``: refuse if the
        last message is another.

        Raises MessageNotFoundError, InvalidInputError, ThreadBusyError, LeafMovedError, MessageTooLargeError.
        """
        stored = as_message(message)
        assert stored is not None
        return await self.backend.threads.store_message(
            check_id(thread_id, "thread_id"), stored, parent_id, expected_leaf=expected_leaf
        )

    async def delete_thread(
        self, thread_id: str, *, cancel: bool = False, descendants: bool = False, expected: datetime | None = None
    ) -> None:
        """Delete a thread; its forks keep what they see. ``cancel``: end its live runs first. ``descendants``: delete its forks
        and theirs first, one by one; where that stops half-way, call again. ``expected``: the ``updated_at`` of the thread as
        the caller read it; refuse if it has changed since.

        Raises ThreadNotFoundError, ThreadBusyError, PreconditionFailedError, InvalidInputError for ``expected`` with
        ``descendants``, of which some could be gone by the time that it is refused.
        """
        if descendants and expected is not None:
            raise InvalidInputError("give expected or descendants, not both", field="expected")
        if descendants:
            for child in reversed(await self._descendants(thread_id)):
                with suppress(ThreadNotFoundError):
                    await self._apply(await self.backend.threads.delete_thread(child, cancel=cancel))
        deleted = await self.backend.threads.delete_thread(thread_id, cancel=cancel, expected=aware(expected, "expected"))
        await self._apply(deleted)

    async def _descendants(self, thread_id: str) -> list[str]:
        """The ids of the forks of ``thread_id`` and of theirs; each after the one that it was forked from."""
        found = [(await self.thread(thread_id)).thread_id]
        for parent in found:
            cursor: str | None = None
            while True:
                page = await self.threads(parent_thread_id=parent, cursor=cursor)
                found += [child.thread_id for child in page.items if child.thread_id not in found]
                if (cursor := page.next) is None:
                    break
        return found[1:]

    async def erase_thread(self, thread_id: str, *, cancel: bool = False, expected: datetime | None = None) -> None:
        """Delete a thread and blank its own messages wherever a fork still shows them. Arguments as for :meth:`delete_thread`.

        Raises ThreadNotFoundError, ThreadBusyError, PreconditionFailedError.
        """
        erased = await self.backend.threads.erase_thread(thread_id, cancel=cancel, expected=aware(expected, "expected"))
        await self._apply(erased)
