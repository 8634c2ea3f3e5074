"""Calls about threads and their message trees."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TypedDict, Unpack, cast, overload

from ..domain.agent_names import wanted
from ..domain.messages import Message
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.threads import Branch, Thread
from ..domain.unset import UNSET, Unset
from ..domain.validation import check_aware, check_id, check_tags, new_id
from ..errors import InvalidInputError, ThreadNotFoundError
from ..formats.conversion import Format, check_format, from_blob
from ..formats.pages import FormattedPage, formatted
from ..ports.commands import ThreadChanges, ThreadRequest
from ..ports.queries import PageRequest, PathRequest, ThreadFilter
from ..ports.results import Created, Page
from .arguments import Calls, as_message


class PathPage(TypedDict, total=False):
    """The arguments of :meth:`ThreadCalls.messages` that select a page of a path."""

    limit: int | None
    cursor: str | None
    newest_first: bool


class ThreadCalls(Calls):
    """Create, read, change and delete threads, and store messages without a run."""

    async def thread(self, thread_id: str) -> Thread:
        """Return one thread. Raises ThreadNotFoundError."""
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
        """Create an empty thread. Return the thread, and whether this call created it.

        This call is optional: a prompt creates a missing thread.

        ``thread_id``: the thread's id, or None for a uuid7. A repetition with the same id and the same content returns the
        same thread. ``agent``: the name of the agent for prompts that name no agent. If None, the thread gets the agent of its
        first run. ``config``: a JSON object that agents read in their RunContext. A fork gets a copy of this object.
        ``extra``: a JSON object for your own use. Both objects must be within the :mod:`runyard.domain.size_limits`.

        Raises ThreadAlreadyExistsError, InvalidInputError.
        """
        id = new_id() if thread_id is None else thread_id
        request = ThreadRequest(
            thread_id=id,
            agent=wanted(self.namespace, agent),
            title=title,
            tags=check_tags(tags or {}),
            extra=extra or {},
            config=config or {},
        )
        return await self.backend.threads.create_thread(request)

    async def threads(
        self,
        *,
        parent_thread_id: str | None = None,
        agent: str | None = None,
        tags: Mapping[str, str] | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Return a page of all threads, or of the forks of one thread, in the order in which they were made.

        ``tags``: return threads with all of these tags. ``newest_first``: begin at the newest thread, not at the oldest. Over
        HTTP, an API of an earlier release ignores ``newest_first``. Large values are left out
        (:attr:`runyard.models.Thread.omitted`). A page may have fewer threads than ``limit``. The ``next`` of the last page is
        None. A ``next`` is valid only for a call with the same order.

        Raises InvalidInputError, InvalidCursorError.
        """
        where = ThreadFilter(
            parent_thread_id=parent_thread_id, agent=self._agent(agent), tags=tags or {}, newest_first=newest_first
        )
        return await self.backend.threads.threads(where, PageRequest(limit=limit, cursor=cursor))

    async def update_thread(
        self,
        thread_id: str,
        *,
        agent: str | Unset | None = UNSET,
        title: str | Unset | None = UNSET,
        tags: Mapping[str, str] | Unset | None = UNSET,
        extra: JsonObject | Unset | None = UNSET,
        config: JsonObject | Unset | None = UNSET,
        expected: datetime | None = None,
    ) -> Thread:
        """Change the given fields. None clears a field (RFC 7396).

        ``agent``: the agent for later prompts that name no agent. Queued runs keep their agents. ``tags`` replaces all tags.
        ``extra`` and ``config`` are merged into the stored objects at the top level. A key whose value is None is removed.
        Attempts that begin later read the changed ``config``. ``expected``: the ``updated_at`` of the thread that the caller
        read. If the thread has changed since then, the call raises PreconditionFailedError.

        Raises ThreadNotFoundError, PreconditionFailedError. Raises InvalidInputError if ``extra`` or ``config`` exceeds the
        :mod:`runyard.domain.size_limits`.
        """
        named = agent if isinstance(agent, Unset) else wanted(self.namespace, agent)
        fields = {"agent": named, "title": title, "tags": tags, "extra": extra, "config": config}
        changes = cast(ThreadChanges, {name: value for name, value in fields.items() if value is not UNSET})
        return await self.backend.threads.update_thread(thread_id, expected=check_aware(expected, "expected"), **changes)

    @overload
    async def messages(
        self, thread_id: str, leaf_id: str | None = None, *, format: None = None, **page: Unpack[PathPage]
    ) -> Page[Message]: ...

    @overload
    async def messages(
        self, thread_id: str, leaf_id: str | None = None, *, format: Format, **page: Unpack[PathPage]
    ) -> FormattedPage: ...

    async def messages(
        self,
        thread_id: str,
        leaf_id: str | None = None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        newest_first: bool = False,
        format: Format | None = None,
    ) -> Page[Message] | FormattedPage:
        """Return the path from the root to the message ``leaf_id``, or a page of this path (B2).

        Without ``leaf_id``, the path leads to the last message of the thread's head branch. This path includes the messages of
        a run that is being executed on the head. The ``run_status`` of each message is the present status of its run.

        ``limit``: the maximum number of messages per page, or None for the whole path. With a limit, a page also ends at about
        8 MiB. ``newest_first``: begin at the leaf. ``format``: return JSON objects of this format (``"openai"``,
        ``"anthropic"``, …) instead of messages, with a list of the losses (M1).

        Raises ThreadNotFoundError, MessageNotFoundError, InvalidCursorError. Raises InvalidInputError for a leaf id that is not
        a UUID and for an unknown format.
        """
        if format is not None:
            check_format(format)
        path = PathRequest(leaf_id=leaf_id, limit=limit, cursor=cursor, newest_first=newest_first)
        page = await self.backend.threads.messages(thread_id, path)
        return page if format is None else await formatted(page.items, format, page.next, newest_first=newest_first)

    async def message(self, thread_id: str, message_id: str) -> Message:
        """Return one message that the thread shows, on any branch.

        Raises ThreadNotFoundError, MessageNotFoundError. Raises InvalidInputError for an id that is not a UUID.
        """
        [message] = (await self.messages(thread_id, message_id, limit=1, newest_first=True)).items
        return message

    async def branches(
        self, thread_id: str, *, labelled: bool = False, limit: int = 100, cursor: str | None = None
    ) -> Page[Branch]:
        """Return a page of the leaves of the thread's message tree, the oldest first (B3).

        ``head`` marks the leaf of the branch to which a message without a named parent is added. ``trunk`` marks the leaf of
        the thread's first branch. The end of a labelled branch is always listed. ``labelled``: return only the ends of labelled
        branches.

        Raises ThreadNotFoundError, InvalidInputError, InvalidCursorError.
        """
        return await self.backend.threads.branches(thread_id, PageRequest(limit=limit, cursor=cursor), labelled=labelled)

    async def set_label(self, thread_id: str, label: str, message_id: str | None = None) -> None:
        """Give a branch a label (B9).

        The label follows the branch as it grows. If another branch of the thread has this label, that branch loses the label.

        ``label``: 1 to 64 printable characters. ``message_id``: a message of the branch, or None for the head. A message that a
        fork inherited belongs to the fork's first branch.

        Raises ThreadNotFoundError, MessageNotFoundError. Raises RunNotCompletedError for a message of a run that failed or was
        cancelled. Raises InvalidInputError, for example for the 101st label of a thread.
        """
        await self.backend.threads.set_label(thread_id, label, message_id)

    async def remove_label(self, thread_id: str, label: str) -> None:
        """Remove a label. Do nothing if the thread does not have the label.

        Raises ThreadNotFoundError, InvalidInputError.
        """
        await self.backend.threads.remove_label(thread_id, label)

    async def store_message(
        self,
        thread_id: str,
        message: str | Message | JsonValue,
        parent_id: str | None = None,
        *,
        expected_leaf: str | None = None,
        format: Format | None = None,
    ) -> Message:
        """Store a message without a run. The next run sees the message (B1). Return the stored message.

        A string becomes a user message. A repetition with the same message id is not stored again.

        ``format``: the format of ``message`` (``"openai"``, ``"anthropic"``, …). If a format is given, ``message`` is a JSON
        object, or a list if the format uses several objects for one message. In the same format, :meth:`messages` returns
        ``message`` unchanged (M2). ``parent_id``: the id of the message after which a branch begins. If ``parent_id`` is
        :data:`runyard.models.ROOT_ID`, the message becomes another first message of the thread. If ``parent_id`` is None, the
        message is appended to the head. ``expected_leaf``: the id of the last message that the caller read. If the branch now
        ends at another message, the call raises LeafMovedError.

        Raises MessageNotFoundError, InvalidInputError, ThreadBusyError, LeafMovedError, MessageTooLargeError. Raises
        InvalidBlobError for a fault in a JSON object of a format.
        """
        stored = as_message(message) if format is None else from_blob(format, message)
        assert stored is not None
        return await self.backend.threads.store_message(
            check_id(thread_id, "thread_id"), stored, parent_id, expected_leaf=expected_leaf
        )

    async def delete_thread(
        self, thread_id: str, *, cancel: bool = False, descendants: bool = False, expected: datetime | None = None
    ) -> None:
        """Delete a thread. Its forks keep the messages that they show.

        ``cancel``: if True, first cancel the live runs of the thread. ``descendants``: if True, first delete the forks of the
        thread, the forks of these forks, and so on, one by one. If this call is interrupted, call this method again.
        ``expected``: the ``updated_at`` of the thread that the caller read. If the thread has changed since then, the call
        raises PreconditionFailedError.

        Raises ThreadNotFoundError, ThreadBusyError, PreconditionFailedError. Raises InvalidInputError if both ``expected`` and
        ``descendants`` are given, because the call could fail after it has deleted the descendants.
        """
        if descendants and expected is not None:
            raise InvalidInputError("give expected or descendants, not both", field="expected")
        if descendants:
            for child in reversed(await self._descendants(thread_id)):
                with suppress(ThreadNotFoundError):
                    await self._apply(await self.backend.threads.delete_thread(child, cancel=cancel))
        deleted = await self.backend.threads.delete_thread(thread_id, cancel=cancel, expected=check_aware(expected, "expected"))
        await self._apply(deleted)

    async def _descendants(self, thread_id: str) -> list[str]:
        """Return the ids of all forks below ``thread_id``. Each fork comes after its parent."""
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
        """Delete a thread, and replace its messages by tombstones in every fork that shows them.

        The arguments are as in :meth:`delete_thread`.

        The call may return before all messages are erased. This happens if another transaction holds the row lock of a fork for
        ten seconds, or if the database stops answering after the deletion. A worker then erases the remaining messages later.

        Raises ThreadNotFoundError, ThreadBusyError, PreconditionFailedError.
        """
        erased = await self.backend.threads.erase_thread(thread_id, cancel=cancel, expected=check_aware(expected, "expected"))
        await self._apply(erased)
