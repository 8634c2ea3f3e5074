"""How threads descend from each other, and what two of them say differently (semantics: F12)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from .entries import message_bytes
from .exchange import PAGE_BYTES
from .models import Message, Thread


class Lineage(BaseModel):
    """Where a thread comes from, and what was forked from it.

    ``ancestors``: the nearest first; the list ends at a thread that was deleted. ``children``: the oldest first;
    ``next_children`` continues the list as a cursor of the threads whose parent this one is.
    """

    model_config = ConfigDict(extra="forbid")

    thread: Thread
    ancestors: list[Thread] = Field(default_factory=list)
    children: list[Thread] = Field(default_factory=list)
    next_children: str | None = None


class ThreadDiff(BaseModel):
    """What two threads say after the last message that both show.

    ``common_ancestor``: the nearest thread that both descend from, or one of the two. ``common_message_id``: the last message
    that both show; None if there is none, or it lies before what was compared. ``ours`` and ``theirs``: the messages after it,
    oldest first. ``truncated``: at least one side has more than was asked for.
    """

    model_config = ConfigDict(extra="forbid")

    thread_id: str
    other_thread_id: str
    common_ancestor: str | None = None
    common_message_id: str | None = None
    ours: list[Message] = Field(default_factory=list)
    theirs: list[Message] = Field(default_factory=list)
    truncated: bool = False


@dataclass
class Side:
    """One thread's messages, read from the newest back. ``seen`` holds those that the other one was not found to show, of which
    it has ``most``, and ``left`` bytes, at most."""

    path: AsyncIterator[Message]
    most: int
    seen: list[Message] = field(default_factory=list)
    at: Message | None = None
    left: int = PAGE_BYTES // 2

    async def step(self) -> None:
        """Move to the message before."""
        if self.at is not None:
            self.seen.append(self.at)
            self.left -= message_bytes(self.at)
        self.at = await anext(self.path, None)

    @property
    def full(self) -> bool:
        return self.at is not None and (len(self.seen) >= self.most or self.left <= 0)


async def last_common(ours: Side, theirs: Side) -> Message | None:
    """The last message that both sides show. Shared messages have the same number on both, and what a thread adds to what it
    inherited has higher ones."""
    await ours.step()
    await theirs.step()
    while ours.at is not None and theirs.at is not None and not (ours.full or theirs.full):
        if ours.at.id == theirs.at.id:
            return ours.at
        mine, other = ours.at.seq or 0, theirs.at.seq or 0
        if mine >= other:
            await ours.step()
        if other >= mine:
            await theirs.step()
    while theirs.at is None and ours.at is not None and not ours.full:
        await ours.step()
    while ours.at is None and theirs.at is not None and not theirs.full:
        await theirs.step()
    return None
