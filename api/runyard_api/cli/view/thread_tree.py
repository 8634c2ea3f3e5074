"""Collect the turns of a thread, its ancestors, all their forks, and the children of their runs.

All these turns belong to one graph, which :mod:`.graph` draws.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from runyard import Client
from runyard.domain.threads import ChildRun
from runyard.errors import ThreadNotFoundError
from runyard.models import Branch, Message, Thread

from ...pages import gather
from .graph import Turn
from .output import summary

MAX_SHOWN_CHARACTERS: Final = 48
"""Maximum number of characters to show of a prompt, and of an answer."""
MAX_PATH_MESSAGES: Final = 500
"""Maximum number of messages to read of each path. The graph does not show older messages."""

MAX_CHILD_THREADS: Final = 100
"""Maximum number of threads of children in the graph."""
MAX_CHILD_RUNS: Final = 1000
"""Maximum number of children to read for the runs of one thread, at all levels."""


@dataclass
class ThreadTree:
    """The threads of one graph and their turns. The graph contains the oldest ancestor of a thread, and all forks below this
    ancestor. It also contains the threads of the children that runs of these threads started. The oldest thread is first.

    ``more_children``: True if the graph does not have all children.
    """

    threads: list[Thread] = field(default_factory=list)
    more_children: bool = False
    turns: dict[str, Turn] = field(default_factory=dict)
    turn_of: dict[str, str] = field(default_factory=dict)

    def add_path(self, thread: Thread, path: Sequence[Message]) -> None:
        """Add those turns of ``path`` that are not yet in the graph."""
        last: Turn | None = None
        for message in path:
            if key := self.turn_of.get(message.id):
                last = self.turns[key]
                continue
            if last is None or message.run_id is None or message.run_id != last.run_id:
                last = self._open(thread, message, last)
            self.turn_of[message.id] = last.key
            if message.role == "assistant" and message.text:
                last.answer = summary(message, MAX_SHOWN_CHARACTERS)

    def label(self, ref: str, path: Sequence[Message]) -> None:
        """Add ``ref`` to the turn at which ``path`` ends."""
        if path and (key := self.turn_of.get(path[-1].id)):
            self.turns[key].refs.append(ref)

    def link(self, children: Iterable[ChildRun]) -> None:
        """Connect the turns of ``children`` with the turns of the runs that started them. A turn that already has a parent
        stays unchanged."""
        of_run = {(turn.thread_id, turn.run_id): turn for turn in self.turns.values()}
        for child in children:
            turn = of_run.get((child.thread_id, child.run_id))
            starter = of_run.get((child.started_by_thread_id, child.started_by_run_id))
            if turn is not None:
                turn.started_by = (child.started_by_thread_id, child.started_by_run_id)
                if turn.parent is None and starter is not None:
                    turn.parent = starter.key

    def _open(self, thread: Thread, message: Message, before: Turn | None) -> Turn:
        turn = Turn(
            key=message.id,
            thread_id=thread.thread_id,
            created_at=message.created_at or thread.created_at,
            parent=before.key if before else None,
            run_id=message.run_id,
            status=str(message.run_status or "stored"),
            prompt="" if message.role == "assistant" else summary(message, MAX_SHOWN_CHARACTERS),
        )
        self.turns[turn.key] = turn
        return turn


async def collect(client: Client, thread_id: str) -> ThreadTree:
    """Collect the tree of ``thread_id``. Raises ThreadNotFoundError."""
    family = ThreadTree()
    children: list[ChildRun] = []
    async for thread in _eldest_first(client, await _eldest(client, thread_id)):
        await _add(client, family, thread)
        below = await client.child_runs(thread.thread_id, limit=MAX_CHILD_RUNS)
        children += below.items
        family.more_children |= below.truncated
    seen = {thread.thread_id for thread in family.threads}
    threads = list(dict.fromkeys(child.thread_id for child in children if child.thread_id not in seen))
    family.more_children |= len(threads) > MAX_CHILD_THREADS
    for child_thread in threads[:MAX_CHILD_THREADS]:
        with suppress(ThreadNotFoundError):  # the thread was deleted after the list was read
            await _add(client, family, await client.thread(child_thread))
    family.link(children)
    return family


async def _add(client: Client, family: ThreadTree, thread: Thread) -> None:
    """Add the turns of a thread's head and of its other branches."""
    head = await _path(client, thread.thread_id)
    leaves = await _leaves(client, thread.thread_id)
    tips = {head[-1].id} if head else set()
    family.threads.append(thread)
    family.add_path(thread, head)
    family.label(thread.thread_id, head)
    for leaf in leaves:
        if leaf.message_id not in tips:
            family.add_path(thread, await _path(client, thread.thread_id, leaf.message_id))


async def _leaves(client: Client, thread_id: str) -> list[Branch]:
    return (await gather(lambda _, at: client.branches(thread_id, cursor=at), sys.maxsize)).items


async def _path(client: Client, thread_id: str, leaf_id: str | None = None) -> list[Message]:
    """Return the newest MAX_PATH_MESSAGES messages of a path, in order."""
    page = await gather(
        lambda most, at: client.messages(thread_id, leaf_id, limit=most, cursor=at, newest_first=True), MAX_PATH_MESSAGES
    )
    return page.items[::-1]


async def _eldest(client: Client, thread_id: str) -> Thread:
    thread = await client.thread(thread_id)
    seen = {thread.thread_id}
    while thread.parent_thread_id is not None and thread.parent_thread_id not in seen:
        try:
            thread = await client.thread(thread.parent_thread_id)
        except ThreadNotFoundError:  # the parent was deleted, so its fork is the root
            break
        seen.add(thread.thread_id)
    return thread


async def _eldest_first(client: Client, thread: Thread) -> AsyncIterator[Thread]:
    generation = [thread]
    while generation:
        following: list[Thread] = []
        for member in generation:
            yield member
            cursor: str | None = None
            while True:
                page = await client.threads(parent_thread_id=member.thread_id, cursor=cursor)
                following += page.items
                if (cursor := page.next) is None:
                    break
        generation = following
