"""The ends of the branches of a thread. The head is the branch on which the conversation continues."""

from __future__ import annotations

from collections.abc import Awaitable

from runyard.domain.states import LIVE
from runyard.models import ROOT_ID, Message
from runyard.ports.queries import PathRequest
from runyard.ports.results import Page
from runyard.ports.stores import ThreadStore

from ..paging import items_of


async def last_visible(threads: ThreadStore, thread_id: str, inherited: int | None, leaf_id: str | None = None) -> str:
    """Return the id of the last visible message of the path to a leaf, or ROOT_ID. ``inherited``: the number of the last
    message that the thread inherited. ``leaf_id``: by default the leaf of the head.

    A path may end with messages of a live run. Other runs do not see these messages.
    """

    def read(cursor: str | None) -> Awaitable[Page[Message]]:
        return threads.messages(thread_id, PathRequest(leaf_id=leaf_id, limit=100, newest_first=True, cursor=cursor))

    async for message in items_of(read):
        if message.run_status not in LIVE or (message.seq or 0) <= (inherited or 0):
            return message.id
    return ROOT_ID
