"""The import of the section of one thread."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import cast

from runyard.domain.size_limits import message_size
from runyard.domain.validation import check_id
from runyard.errors import (
    BackendUnavailableError,
    ForkBoundaryError,
    MessageNotFoundError,
    PreconditionFailedError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunEndedError,
    RunInUseError,
    RunyardError,
    ThreadNotFoundError,
)
from runyard.models import ROOT_ID, Message, Run, Thread
from runyard.ports.branches import BranchStore
from runyard.ports.commands import ThreadRequest
from runyard.ports.queries import PageRequest, PathRequest, RunFilter
from runyard.ports.stores import Backend

from ..import_report import Report
from ..paging import items_of
from .heads import last_visible
from .marks import TAG, Mark, microseconds, name_of
from .new_ids import Ids
from .records import (
    BranchLine,
    CancelLine,
    ClaimLine,
    CompleteLine,
    HeadLine,
    LeafLine,
    Line,
    MessageLine,
    NoteLine,
    RequestLine,
    ThreadLine,
)
from .requests import RequestImport
from .thread_values import fitting, set_config, set_extra

BATCH_MESSAGES, BATCH_BYTES = 100, 2**22
"""Maximum number of messages that one call appends, and maximum bytes of these messages."""


@dataclass
class Section:
    """The import of one thread. ``mark``: the state of the thread's imports. ``renamed``: the new ids of messages, by their ids
    in the file. ``working``: False if the section is skipped. ``number``: the number of the present line."""

    backend: Backend
    ids: Ids
    report: Report
    id: str
    line: ThreadLine
    export_id: str
    mark: Mark
    renamed: dict[str, str]
    working: bool = False
    number: int = 0
    open: set[str] = field(default_factory=set)
    """The digests of the live runs and pending requests that imports have made."""
    over: set[str] = field(default_factory=set)
    """The runs that had ended before this call."""
    again: bool = False
    """True if the thread existed before this call."""
    _inherited: int | None = None
    _head: str = ROOT_ID
    _placed: bool = True
    _first_branch: bool = True
    _leaf: str | None = None
    _leaf_number: int = 0
    _count: int = 0
    _last: dict[str, tuple[int, str]] = field(default_factory=dict)
    _claimed: set[str] = field(default_factory=set)
    _foreign: dict[str, bool] = field(default_factory=dict)
    """The runs that the thread had before this call, by run id. The value is True if no import has made the run."""
    _batch: list[tuple[int, Message]] = field(default_factory=list)
    _bytes: int = 0
    _leaves: dict[str, int] | None = None
    _labels: set[str] = field(default_factory=set)
    _unclaimed: set[str] | None = None

    def __post_init__(self) -> None:
        self.open |= self.mark.open
        self._branches = cast(BranchStore, self.backend.threads)
        self._requests = RequestImport(self)

    @property
    def added(self) -> bool:
        """True if an earlier import of the thread was completed."""
        return self.mark.export_id != ""

    async def begin(self, stored: Thread | None, *, made: bool) -> None:
        """Make the thread, unless it exists. ``stored``: the thread in the deployment, or None. ``made``: True if this import
        has made the thread as a fork."""
        check_id(self.id, "thread_id")
        self.again = stored is not None and not made
        if self.report.dry_run:
            return
        if stored is None:
            request = ThreadRequest(thread_id=self.id, agent=self.line.agent, tags=self.mark.tag())
            stored = (await self.backend.threads.create_thread(request)).thread
        self._inherited = stored.forked_at_seq
        if self.mark.began is None:
            await self._begin_again()
        await self.find_closing()
        if not self.added:
            await set_extra(self.backend, self.id, stored.extra, self.line.extra)
            if await set_config(self.backend, self.id, stored.config, self.line.config) != self.line.config:
                self.report.note(self.id, "null as a value of the config")

    async def _begin_again(self) -> None:
        """Record in the mark that another import begins. Also record the present head."""
        head = await last_visible(self.backend.threads, self.id, self._inherited)
        keep = self.mark.keep or (self.mark.head not in ("", head))
        self.mark = replace(self.mark, head=head, keep=keep)
        marked = await self._save_mark()
        self.mark = replace(self.mark, began=microseconds(marked.updated_at))
        await self._save_mark()

    async def _save_mark(self, tags: Mapping[str, str] | None = None) -> Thread:
        """Save the mark. ``tags``: the other tags of the thread. If ``tags`` is None, the present tags stay."""
        while True:
            if (stored := await self.backend.threads.thread(self.id)) is None:
                raise ThreadNotFoundError(f"the thread {self.id!r} was deleted during its import", thread_id=self.id)
            wanted = {**(stored.tags if tags is None else tags), **self.mark.tag()}
            try:
                return await self.backend.threads.update_thread(self.id, expected=stored.updated_at, tags=wanted)
            except PreconditionFailedError:
                continue

    async def find_closing(self) -> None:
        """Find the messages that close the open tool calls of a repaired fork. Their ids differ from the ids in the file."""
        if self.line.closing and not self.report.dry_run:
            for first in (await self._branches.branch_keys(self.id))[:1]:
                made = await self._branches.branch_messages(self.id, first, limit=len(self.line.closing))
                self.renamed |= {old: message.id for old, message in zip(self.line.closing, made, strict=False)}

    def message_id(self, message_id: str | None) -> str | None:
        """Return the id that a message of the file has in the deployment."""
        return self.renamed.get(message_id or "") or self.ids.message(message_id)

    async def take(self, line: Line) -> None:
        """Execute one line."""
        match line:
            case BranchLine(at=at):
                await self._branch(at)
            case ClaimLine(run_id=run_id):
                await self._claim(self.ids.run_of(run_id))
            case MessageLine(message=message):
                await self._message(self.ids.in_message(message))
            case CompleteLine(run_id=run_id):
                await self._complete(self.ids.run_of(run_id))
            case CancelLine(run_id=run_id, deleted=deleted):
                await self._cancel(self.ids.run_of(run_id), deleted)
            case RequestLine(request=request):
                await self.flush()
                await self._requests.take(self.ids.in_request(request))
            case LeafLine():
                await self._compare(line)
            case HeadLine(message_id=message_id):
                self._head = self.message_id(message_id) or ROOT_ID
            case NoteLine(what=what):
                self.report.note(self.id, f"not in the file: {what}")

    async def _branch(self, at: str | None) -> None:
        await self.flush()
        self._leaf, self._leaf_number, self._last = self.message_id(at), 0, {}
        self._placed = self._first_branch and not self.again
        self._first_branch = False

    async def _place(self) -> None:
        """Move the head to the branch of the following lines. This branch ends at the message ``_leaf``."""
        if not self._placed and not self.report.dry_run:
            await self.flush()
            await self._branches.set_head(self.id, self._leaf or ROOT_ID)
            self._placed = True

    async def _claim(self, run_id: str) -> None:
        if self.again and (known := await self.backend.runs.run(self.id, run_id)) is not None:
            self._know(known)
            return
        if not self.report.dry_run:
            await self._place()
            await self.flush()
            try:
                await self.backend.checkpointer.claim_run(self.id, run_id)
            except (RunAlreadyClaimedError, RunAlreadyCompletedError):
                if (known := await self.backend.runs.run(self.id, run_id)) is None:
                    raise
                self._know(known)
                return
        self.report.runs += 1
        self._claimed.add(run_id)
        self.open.add(name_of("run", run_id))

    def _know(self, run: Run) -> None:
        """Record a run that the thread had before this import."""
        self._foreign[run.run_id] = run.kind != "external" or not self.mark.made("run", run.run_id, run.accepted_at)
        if run.ended:
            self.over.add(run.run_id)
            self.open.discard(name_of("run", run.run_id))
        elif not self.foreign(run.run_id):
            self.open.add(name_of("run", run.run_id))

    def foreign(self, run_id: str) -> bool:
        """Return True if the thread has a run with this id that no import has made."""
        return self._foreign.get(run_id, False)

    def _refuse_foreign(self, run_id: str) -> None:
        """Raise RunAlreadyClaimedError for a live run that no import has made."""
        if self.foreign(run_id):
            raise RunAlreadyClaimedError(
                f"the deployment has a live run {run_id!r} that no import has made; wait for its end, or import with new ids",
                run_id=run_id,
            )

    async def _message(self, message: Message) -> None:
        self._count += 1
        run_id = message.run_id
        if run_id is None:
            if not await self._stored(message):
                await self._place()
                await self._append(message)
            self._leaf, self._leaf_number = message.id, self._count
            return
        self._last[run_id] = (self._count, message.id)
        if run_id in self.over:
            return
        if self.again and run_id not in self._claimed:
            if run_id not in self._foreign and await self._of_unclaimed(message):
                return
            if await self._stored(message):
                return
            self._refuse_foreign(run_id)
        await self._append(message)

    async def _of_unclaimed(self, message: Message) -> bool:
        """Return True if the thread has this message under a run that was never claimed."""
        if (known := await self.backend.runs.run(self.id, message.run_id or "")) is not None:
            self._know(known)
            return False
        if self._unclaimed is None:
            self._unclaimed = await self._read_unclaimed()
        return message.id in self._unclaimed

    async def _read_unclaimed(self) -> set[str]:
        """Return the ids of the thread's own messages of runs that were never claimed. No path shows such messages."""
        where, listed = RunFilter(thread_id=self.id), self.backend.runs.runs
        runs: set[str | None] = {None}
        runs |= {run.run_id async for run in items_of(lambda cursor: listed(where, PageRequest(limit=1000, cursor=cursor)))}
        found: set[str] = set()
        for branch in await self._branches.branch_keys(self.id):
            after = 0
            while messages := await self._branches.branch_messages(self.id, branch, after=after, limit=BATCH_MESSAGES):
                found |= {message.id for message in messages if message.run_id not in runs}
                after = messages[-1].seq or 0
        return found

    async def _stored(self, message: Message) -> bool:
        """Return True if a path of the thread had the message before this call."""
        if not self.again:
            return False
        try:
            await self.backend.threads.messages(self.id, PathRequest(leaf_id=message.id, limit=1, newest_first=True))
        except MessageNotFoundError:
            return False
        return True

    async def _append(self, message: Message) -> None:
        if self.report.dry_run:
            self.report.messages += 1
            return
        self._batch.append((self.number, message))
        self._bytes += message_size(message)
        if len(self._batch) >= BATCH_MESSAGES or self._bytes >= BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Append the collected messages. If the store refuses a message, append the messages before it, and raise the error."""
        if not self._batch:
            return
        batch, self._batch, self._bytes, number = self._batch, [], 0, self.number
        try:
            await self.backend.checkpointer.append(self.id, [message for _, message in batch])
        except BackendUnavailableError:
            raise
        except RunyardError:
            for self.number, message in batch:
                await self.backend.checkpointer.append(self.id, [message])
                self.report.messages += 1
        else:
            self.report.messages += len(batch)
        self.number = number

    async def _complete(self, run_id: str) -> None:
        number, last = self._last.get(run_id, (0, None))
        if last is not None and number > self._leaf_number:
            self._leaf, self._leaf_number = last, number
        if self.report.dry_run or run_id in self.over:
            return
        self._refuse_foreign(run_id)
        await self.flush()
        await self.backend.checkpointer.mark_run_complete(self.id, run_id)
        self.open.discard(name_of("run", run_id))

    async def _cancel(self, run_id: str, deleted: bool) -> None:
        """End a run without completion. If the run was deleted before the export, delete it here too."""
        if self.report.dry_run:
            return
        if run_id not in self.over:
            self._refuse_foreign(run_id)
            await self.flush()
            with suppress(RunEndedError):
                await self.backend.runs.cancel(self.id, run_id)
            self.open.discard(name_of("run", run_id))
        if deleted and not self.foreign(run_id):
            with suppress(RunInUseError):
                await self.backend.runs.delete_run(self.id, run_id)

    async def _compare(self, line: LeafLine) -> None:
        """Compare a leaf with the deployment, and set its labels. A label that the thread already has is not moved."""
        if self.report.dry_run:
            return
        await self.flush()
        if self._leaves is None:
            self._leaves = await self._read_leaves()
        message_id = self.message_id(line.message_id) or ROOT_ID
        depth, labelled = self._leaves.get(message_id), self.message_id(line.labelled)
        if depth is None and line.labels and not self.added:  # other branches continue the message
            with suppress(MessageNotFoundError, ForkBoundaryError):
                await self._branches.set_head(self.id, message_id)
                depth, labelled = line.depth, None
        if depth != line.depth and not self.added:
            found = f"has {depth} messages" if depth is not None else "does not exist"
            self.report.note(self.id, f"the path to message {message_id} {found}; in the file it has {line.depth}")
        for label in (each for each in line.labels if not (self.added and each in self._labels)):
            await self.backend.threads.set_label(self.id, label, labelled)

    async def _read_leaves(self) -> dict[str, int]:
        """Return the depths of the leaves."""
        found: dict[str, int] = {}
        threads = self.backend.threads
        async for leaf in items_of(lambda cursor: threads.branches(self.id, PageRequest(limit=1000, cursor=cursor))):
            found[leaf.message_id] = leaf.depth
            self._labels.update(leaf.labels)
        return found

    async def end(self) -> None:
        """Set the head, the title and the tags, and mark the thread as imported."""
        added = self.added
        await self.flush()
        if not self.report.dry_run:
            await self._set_head(self.mark.head if self.mark.keep else self._head)
            head = await last_visible(self.backend.threads, self.id, self._inherited)
            self.mark = replace(self.mark, export_id=self.export_id, began=None, head=head, open=frozenset(self.open))
            if added:
                await self._save_mark()
                self.report.note(self.id, "imported before; messages, runs and requests were added, and nothing else changed")
            else:
                await self.backend.threads.update_thread(self.id, title=self.line.title)
                tags, dropped = fitting(self.line.tags, self.mark.tag())
                for name in dropped:
                    self.report.note(self.id, f"the tag {name}, because the tags are too large together with the tag {TAG}")
                await self._save_mark(tags)
        self.report.count("added" if added else "imported")

    async def _set_head(self, message_id: str) -> None:
        if message_id != await last_visible(self.backend.threads, self.id, self._inherited):
            await self._branches.set_head(self.id, message_id)

    async def fail(self, error: RunyardError) -> None:
        """End the import of the thread because of an error. The thread keeps the head of an earlier import."""
        if not self.working:
            return
        self.working = False
        self.report.count("failed")
        self.report.note(self.id, f"not imported from line {self.number} on: {error.message}")
        if self.report.dry_run or await self.backend.threads.thread(self.id) is None:
            return
        try:
            if self.mark.head:
                await self._set_head(self.mark.head)
            head = self.mark.head or await last_visible(self.backend.threads, self.id, self._inherited)
            self.mark = replace(self.mark, began=None, head=head, open=frozenset(self.open))
            await self._save_mark()
        except BackendUnavailableError:
            raise
        except RunyardError as after:
            self.report.note(self.id, f"its state after the failure was not saved: {after.message}")
