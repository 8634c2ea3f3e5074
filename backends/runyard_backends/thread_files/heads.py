"""The ends of the branches of a thread. The head is the branch on which the conversation continues."""

from __future__ import annotations

from runyard.domain.states import LIVE
from runyard.models import ROOT_ID
from runyard.ports.queries import PathRequest
from runyard.ports.stores import ThreadStore


async def last_visible(threads: ThreadStore, thread_id: str, inherited: int | None, leaf_id: str | None = None) -> str:
    """Return the id of the last visible message of the path to a leaf, by default of the head, or ROOT_ID. ``inherited``: the
    number of the last message that the thread inherited.

    A path also has the messages of a run that executes at its end. They are not visible to other runs.
    """
    cursor: str | None = None
    while True:
        page = await threads.messages(thread_id, PathRequest(leaf_id=leaf_id, limit=100, newest_first=True, cursor=cursor))
        for message in page.items:
            if message.run_status not in LIVE or (message.seq or 0) <= (inherited or 0):
                return message.id
        if (cursor := page.next) is None:
            return ROOT_ID
