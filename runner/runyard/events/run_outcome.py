"""Read the outcome of a run that has ended or waits for an answer: the run, its messages, and its pending requests.

``client/run_handle.py`` raises the error of a run that did not complete.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from ..domain.list_entries import request_bytes
from ..domain.messages import Message
from ..domain.requests import HitlRequest
from ..domain.runs import Run
from ..domain.size_limits import message_size
from ..domain.states import RunStatus
from ..errors import ResultExpiredError
from ..ports.queries import PageRequest, PathRequest
from ..ports.streams import Outcome

if TYPE_CHECKING:
    from ..ports.runs import RunStore
    from ..ports.stores import ThreadStore

_MESSAGES_PER_PAGE: Final = 50


async def read_outcome(threads: ThreadStore, runs: RunStore, run: Run, max_bytes: int | None = None) -> Outcome:
    """Return the outcome of a stopped run (:class:`runyard.ports.streams.Streams`). Raises ResultExpiredError."""
    if run.deleted_at is not None:
        raise ResultExpiredError(f"run {run.run_id!r} was deleted", thread_id=run.thread_id, run_id=run.run_id)
    if run.kind != "prompt" and run.kind != "external":
        if run.status is RunStatus.COMPLETED and run.result is None:
            message = f"the result of {run.kind} job {run.run_id!r} has expired; ask again under another run id"
            raise ResultExpiredError(message, thread_id=run.thread_id, run_id=run.run_id)
        return Outcome(run)
    last = await runs.last_message_id(run.thread_id, run.run_id)
    messages, messages_cut = await _messages_of(threads, run, last, max_bytes)
    requests, requests_cut = await _requests_of(runs, run, max_bytes)
    cut = {"messages": messages_cut, "requests": requests_cut}
    return Outcome(run, messages, requests, [name for name, is_cut in cut.items() if is_cut])


async def complete_outcome(threads: ThreadStore, runs: RunStore, cut: Outcome) -> Outcome:
    """Return the complete outcome, with the messages and requests that the outcome ``cut`` omits."""
    messages, requests = cut.messages, cut.requests
    if "messages" in cut.omitted:
        messages = (await _messages_of(threads, cut.run, messages[0].parent_id, None))[0] + messages
    if "requests" in cut.omitted:
        requests, _ = await _requests_of(runs, cut.run, None)
    return Outcome(cut.run, messages, requests)


async def path_to_root(threads: ThreadStore, thread_id: str, leaf_id: str | None) -> AsyncGenerator[Message]:
    """Yield the messages from ``leaf_id`` to the root. If ``leaf_id`` is None, begin at the newest message of the thread.

    Read page by page.
    """
    cursor: str | None = None
    while True:
        path = PathRequest(leaf_id=leaf_id, limit=_MESSAGES_PER_PAGE, cursor=cursor, newest_first=True)
        page = await threads.messages(thread_id, path)
        for message in page.items:
            yield message
        if page.next is None:
            return
        cursor = page.next


async def _messages_of(threads: ThreadStore, run: Run, last: str | None, max_bytes: int | None) -> tuple[list[Message], bool]:
    """Return the run's messages up to ``last``, in order.

    Also return whether earlier messages are left out because of their size.

    ``last``: the id of the run's last message. All messages of a run are next to each other on one path.
    """
    found: list[Message] = []
    left = max_bytes or 0
    if last is not None:
        async with aclosing(path_to_root(threads, run.thread_id, last)) as path:
            async for message in path:
                if message.run_id != run.run_id:
                    break
                if max_bytes is not None:
                    left -= message_size(message)
                    if found and left < 0:
                        return found[::-1], True
                found.append(message)
    return found[::-1], False


async def _requests_of(runs: RunStore, run: Run, max_bytes: int | None) -> tuple[list[HitlRequest], bool]:
    """Return the run's pending requests, the oldest first.

    Also return whether later requests are left out because of their size.
    """
    found: list[HitlRequest] = []
    left, cursor = max_bytes or 0, None
    while run.status is RunStatus.SUSPENDED:
        page = await runs.requests(thread_id=run.thread_id, pending=True, page=PageRequest(cursor=cursor))
        for request in page.items:
            if request.run_id == run.run_id:
                left -= request_bytes(request)
                if max_bytes is not None and found and left < 0:
                    return found, True
                found.append(request)
        if (cursor := page.next) is None:
            break
    return found, False
