"""The head of a thread: the branch on which the conversation continues."""

from __future__ import annotations

from runyard.domain.states import LIVE
from runyard.models import ROOT_ID
from runyard.ports.queries import PathRequest
from runyard.ports.stores import ThreadStore


async def last_visible(threads: ThreadStore, thread_id: str, inherited: int | None) -> str:
    """Return the id of the last visible message of the thread's head, or ROOT_ID. ``inherited``: the number of the last message
    that the thread inherited.

    The path of the head also has the messages of a run that executes there. They are not visible to other runs.
    """
    cursor: str | None = None
    while True:
        page = await threads.messages(thread_id, PathRequest(limit=100, newest_first=True, cursor=cursor))
        for message in page.items:
            if message.run_status not in LIVE or (message.seq or 0) <= (inherited or 0):
                return message.id
        if (cursor := page.next) is None:
            return ROOT_ID
