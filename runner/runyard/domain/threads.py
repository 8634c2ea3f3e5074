"""Threads, their branches, and their lineage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from .base_models import StrictModel
from .messages import Message, Usage
from .size_limits import JsonObject
from .states import RunStatus


class Thread(StrictModel):
    """One conversation.

    ``omitted``: the names of the fields (``extra``, ``config``) that a list leaves empty because their values have more than 8
    KiB (:data:`~runyard.domain.runs.LARGE_VALUE_BYTES`). A read of the thread by its id returns these fields. ``damaged``: the
    names of the fields that a list leaves empty because their stored value cannot be decoded. ``deleted_at``: the time of the
    deletion. Only an ancestor in a :class:`Lineage` can have this time. A deleted ancestor has only its ids, its cut and its
    times.
    """

    thread_id: str
    parent_thread_id: str | None = None
    forked_after_run_id: str | None = None
    forked_at_seq: int | None = None
    agent: str | None = None
    title: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    extra: JsonObject = Field(default_factory=dict)
    config: JsonObject = Field(default_factory=dict)
    usage: Usage = Field(default_factory=Usage)
    created_at: datetime
    updated_at: datetime
    omitted: list[str] = Field(default_factory=list)
    damaged: list[str] = Field(default_factory=list)
    deleted_at: datetime | None = None

    def tombstone(self, deleted_at: datetime) -> Thread:
        """Return the thread with only the fields that remain after its deletion."""
        return Thread(
            thread_id=self.thread_id,
            parent_thread_id=self.parent_thread_id,
            forked_after_run_id=self.forked_after_run_id,
            forked_at_seq=self.forked_at_seq,
            created_at=self.created_at,
            updated_at=deleted_at,
            deleted_at=deleted_at,
        )


class PathSegment(StrictModel):
    """A part of a path whose messages are stored together. ``segment``: the name of the part. The paths of a thread and of its
    forks use the same name for a shared part. ``until_seq``: the number of the last message of this segment that the path
    shows, or None if the path shows all messages of the segment."""

    segment: str
    until_seq: int | None = None


def segments(path: Iterable[Sequence[int | None]]) -> list[PathSegment]:
    """Return the segments of a path.

    ``path``: for each segment from the root on, the key of its branch and its ``until_seq``.
    """
    return [PathSegment(segment=str(key), until_seq=until) for key, until in path]


class Branch(StrictModel):
    """One branch of a thread, by its leaf ``message_id``. ``depth``: the number of messages from the root to the leaf.

    ``head``: True for the leaf to which a message without a named parent is added. ``trunk``: True for the leaf of the
    thread's first branch. A leaf can be a message of a run that is still running. ``labels``: the labels of the branches that
    end here, in order. ``path``: the segments of the path from the root to the leaf. To find where two paths separate, take
    the last segment that both paths contain. The paths separate after the smaller ``until_seq`` of this segment.
    """

    message_id: str
    depth: int
    created_at: datetime
    run_id: str | None = None
    run_status: RunStatus | None = None
    head: bool = False
    trunk: bool = False
    labels: list[str] = Field(default_factory=list)
    path: list[PathSegment] = Field(default_factory=list)


@dataclass
class CheckpointData:
    """A thread as a checkpointer loads it (R15)."""

    messages: list[Message] = field(default_factory=list)
    extra: JsonObject = field(default_factory=dict)
    parent_thread_id: str | None = None
    config: JsonObject = field(default_factory=dict)


class ChildRun(BaseModel):
    """A run that another run started (K3). The run that started the child waits until the child has ended.

    ``depth``: 1 for a child of a run of the thread, 2 for a child of such a child, and so on. ``started_by_thread_id``,
    ``started_by_run_id``: the run that started the child.
    """

    model_config = ConfigDict(extra="forbid")

    depth: int
    thread_id: str
    run_id: str
    agent: str | None = None
    status: RunStatus
    started_by_thread_id: str
    started_by_run_id: str
    accepted_at: datetime
    finished_at: datetime | None = None


class ChildRuns(BaseModel):
    """The children of a thread's runs, the children of these children, and so on.

    ``items``: the children, level by level. Within a level, the children of a run are together, in the order of their
    acceptance. ``truncated``: whether children are missing because there are more than the limit.
    """

    model_config = ConfigDict(extra="forbid")

    items: list[ChildRun] = Field(default_factory=list)
    truncated: bool = False


class Lineage(BaseModel):
    """The ancestors of a thread, its forks, and the children of its runs.

    ``ancestors``: the ancestors, the nearest first. A deleted ancestor has ``deleted_at``. A deleted ancestor is left out if
    no thread shows its messages. The list ends after a thousand deleted ancestors. ``next_ancestor``: the id of the next
    ancestor, or None at the end. ``children``: the forks of the thread, the oldest first. ``next_children``: the cursor that
    continues the list of children, or None at its end. ``child_runs``: the runs that runs of the thread started. These runs
    are on other threads, which are not forks of this thread.
    """

    model_config = ConfigDict(extra="forbid")

    thread: Thread
    ancestors: list[Thread] = Field(default_factory=list)
    next_ancestor: str | None = None
    children: list[Thread] = Field(default_factory=list)
    next_children: str | None = None
    child_runs: ChildRuns = Field(default_factory=ChildRuns)


class ThreadDiff(BaseModel):
    """The messages of two threads after the last message that the two threads share.

    ``common_ancestor``: the id of the nearest common ancestor, or None. A thread counts as an ancestor of itself. The
    comparison covers the nearest 1000 ancestors of each thread. ``common_message_id``: the id of the last message that the two
    threads share, or None if the comparison found no such message. ``ours`` and ``theirs``: the messages of each thread after
    the shared message, the oldest first. ``truncated``: True if the messages of one thread reached the limit before the
    comparison found a shared message.
    """

    model_config = ConfigDict(extra="forbid")

    thread_id: str
    other_thread_id: str
    common_ancestor: str | None = None
    common_message_id: str | None = None
    ours: list[Message] = Field(default_factory=list)
    theirs: list[Message] = Field(default_factory=list)
    truncated: bool = False
