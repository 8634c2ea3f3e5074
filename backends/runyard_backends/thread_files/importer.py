"""The import of a file of threads through the ports of the connected store (``runyard threads import``).

The lines are repeated in their order. Each step has no effect if it was done before. An import that was interrupted therefore
continues, and a repeated import changes nothing. An imported thread has a tag with the state of the import.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from runyard.domain.size_limits import message_size
from runyard.domain.validation import check_id
from runyard.errors import (
    MessageNotFoundError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunEndedError,
    RunyardError,
)
from runyard.models import ROOT_ID, HitlRequest, JsonObject, Message, Thread
from runyard.ports.branches import BranchStore
from runyard.ports.commands import Cut, ForkRequest, ThreadRequest
from runyard.ports.queries import PageRequest, PathRequest
from runyard.ports.stores import Backend, RequestStore

from ..import_report import Report
from .new_ids import Ids
from .records import (
    BranchLine,
    CancelLine,
    ClaimLine,
    CompleteLine,
    ForkLine,
    HeadLine,
    LeafLine,
    Line,
    MessageLine,
    NoteLine,
    RequestLine,
    ThreadLine,
)

TAG: Final = "runyard.import"
"""The tag of an imported thread: the origin of the thread, and after the end of an import the id of the export."""
BATCH_MESSAGES: Final = 100
BATCH_BYTES: Final = 2**22
"""Number and bytes of the messages that one call appends."""


class FileImport:
    """One import of the lines of a file into ``backend``. ``export_id``: the id of the file's export."""

    def __init__(self, backend: Backend, export_id: str, ids: Ids, report: Report) -> None:
        self._backend, self._export_id, self._ids, self.report = backend, export_id, ids, report
        self._forked: set[str] = set()
        self._refused: set[str] = set()

    async def run(self, lines: Iterator[tuple[int, Line]]) -> None:
        """Repeat all lines. An error of the store ends the import of its thread, and the report has a note with the line."""
        section: _Section | None = None
        first = True
        for number, line in lines:
            if isinstance(line, ThreadLine):
                await self._end(section)
                section = await self._begin(number, line, first)
                first = False
            elif isinstance(line, ForkLine):
                await self._guarded(number, section, partial(self._fork, section, line))
            elif section is not None and section.working:
                await self._guarded(number, section, partial(section.take, line))
        await self._end(section)

    async def _guarded(self, number: int, section: _Section | None, step: Callable[[], Awaitable[None]]) -> None:
        if section is None:
            return
        try:
            await step()
        except RunyardError as error:
            if error.code in ("backend_unavailable", "locked", "capability_missing"):
                raise
            if section.working:
                section.working = False
                self.report.count("failed")
                self.report.note(section.id, f"not imported from line {number} on: {error.message}")

    async def _begin(self, number: int, line: ThreadLine, first: bool) -> _Section:
        thread_id = self._ids.thread(line.thread_id)
        section = _Section(self._backend, self._ids, self.report, thread_id, line, self._export_id)
        stored = await self._backend.threads.thread(thread_id)
        mark = stored.tags.get(TAG, "").partition(":") if stored is not None else None
        if mark is not None and mark[0] != line.origin:
            self.report.count("refused")
            self.report.note(thread_id, "not imported: the deployment has another thread with this id")
            self._refused.add(thread_id)
        elif mark is not None and mark[2] == self._export_id:
            self.report.count("unchanged")
        elif stored is None and not first and not (thread_id in self._forked or self.report.dry_run):
            self.report.count("failed")
            self.report.note(thread_id, "not imported: its parent was not imported up to the fork")
        else:
            section.working = True
            await self._guarded(number, section, lambda: section.begin(stored, made=thread_id in self._forked))
        return section

    async def _fork(self, section: _Section | None, line: ForkLine) -> None:
        """Fork the thread of the section, unless the fork exists. The section of an unchanged thread may lack a fork that was
        deleted."""
        if section is None or section.id in self._refused:
            return
        child = self._ids.thread(line.thread_id)
        self.report.forks += 1
        if self.report.dry_run or await self._backend.threads.thread(child) is not None:
            return
        await section.flush()
        cut = Cut(
            after_run_id=self._ids.run(line.after_run_id),
            at_message_id=self._ids.message(line.at_message_id),
            repair=line.repair,
        )
        tags = {TAG: line.origin}
        await self._backend.threads.fork(ForkRequest(src=section.id, new=child, cut=cut, tags=tags, agent=line.agent))
        self._forked.add(child)

    async def _end(self, section: _Section | None) -> None:
        if section is not None and section.working:
            await self._guarded(0, section, section.end)


@dataclass
class _Section:
    """The import of one thread. ``working``: False if its lines are skipped."""

    backend: Backend
    ids: Ids
    report: Report
    id: str
    line: ThreadLine
    export_id: str
    working: bool = False
    _again: bool = False
    _ended_before: bool = False
    _placed: bool = True
    _first_branch: bool = True
    _leaf: str | None = None
    _leaf_number: int = 0
    _number: int = 0
    _last: dict[str, tuple[int, str]] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _batch: list[Message] = field(default_factory=list)
    _bytes: int = 0
    _depths: dict[str, int] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)

    async def begin(self, stored: Thread | None, *, made: bool) -> None:
        """Make the thread if it is not a fork that this import has made. ``stored``: the thread in the deployment."""
        check_id(self.id, "thread_id")
        self._again = stored is not None and not made
        self._ended_before = stored is not None and ":" in stored.tags.get(TAG, "")
        if self.report.dry_run:
            return
        if stored is None:
            config = self.line.config
            request = ThreadRequest(thread_id=self.id, agent=self.line.agent, tags={TAG: self.line.origin}, config=config)
            stored = (await self.backend.threads.create_thread(request)).thread
        if self.line.closing:
            await self._find_closing()
        if not self._ended_before:
            await self._set_extra(stored.extra, self.line.extra)
            await self._set_config(stored.config, self.line.config)

    async def _find_closing(self) -> None:
        """Find the messages with which the fork to this thread was repaired. They have new ids."""
        store = cast(BranchStore, self.backend.threads)
        [first, *_] = await store.branch_keys(self.id)
        made = await store.branch_messages(self.id, first, limit=len(self.line.closing))
        self._renamed = {old: message.id for old, message in zip(self.line.closing, made, strict=False)}

    def _message_id(self, message_id: str | None) -> str | None:
        return self._renamed.get(message_id or "") or self.ids.message(message_id)

    async def _set_extra(self, present: JsonObject, wanted: JsonObject) -> None:
        """Set the thread's extra. The runs that complete later save this extra for forks."""
        if gone := {key: None for key in present if key not in wanted}:
            await self.backend.threads.update_thread(self.id, extra=gone)
        for key, value in wanted.items():
            if key not in present or present[key] != value:
                await self.backend.checkpointer.save_extra(self.id, {key: value})

    async def _set_config(self, present: JsonObject, wanted: JsonObject) -> None:
        """Set the thread's config. A fork begins with the config of its parent."""
        keys = present.keys() | wanted.keys()
        if changed := {key: wanted.get(key) for key in keys if present.get(key) != wanted.get(key)}:
            present = (await self.backend.threads.update_thread(self.id, config=changed)).config
        if present != wanted:
            self.report.note(self.id, "null as a value of the config")

    async def take(self, line: Line) -> None:
        """Repeat one line."""
        match line:
            case BranchLine(at=at):
                await self._branch(at)
            case ClaimLine(run_id=run_id):
                await self._claim(self.ids.run_of(run_id))
            case MessageLine(message=message):
                await self._message(self.ids.in_message(message))
            case CompleteLine(run_id=run_id):
                await self._complete(self.ids.run_of(run_id))
            case CancelLine(run_id=run_id):
                await self._cancel(self.ids.run_of(run_id))
            case RequestLine(request=request):
                await self._request(self.ids.in_request(request))
            case LeafLine():
                await self._compare(line)
            case HeadLine(message_id=message_id):
                await self._head(self._message_id(message_id) or ROOT_ID)
            case NoteLine(what=what):
                self.report.note(self.id, f"not in the file: {what}")

    async def _branch(self, at: str | None) -> None:
        await self.flush()
        self._leaf, self._leaf_number, self._last = self._message_id(at), 0, {}
        self._placed = self._first_branch and not self._again
        self._first_branch = False

    async def _place(self) -> None:
        """Make the branch of the lines the head. A branch that has some of its lines ends at the last of them."""
        if not self._placed and not self.report.dry_run:
            await self.flush()
            await cast(BranchStore, self.backend.threads).set_head(self.id, self._leaf or ROOT_ID)
            self._placed = True

    async def _claim(self, run_id: str) -> None:
        self.report.runs += 1
        if self.report.dry_run:
            return
        if self._again and (known := await self.backend.runs.run(self.id, run_id)) is not None:
            if known.ended:
                self._done.add(run_id)
            return
        await self._place()
        await self.flush()
        try:
            await self.backend.checkpointer.claim_run(self.id, run_id)
        except RunAlreadyClaimedError:
            return
        except RunAlreadyCompletedError:
            self._done.add(run_id)

    async def _message(self, message: Message) -> None:
        self._number += 1
        if message.run_id is None:
            if not await self._stored(message):
                await self._place()
                await self._append(message)
            self._leaf, self._leaf_number = message.id, self._number
            return
        self._last[message.run_id] = (self._number, message.id)
        if message.run_id not in self._done:
            await self._append(message)

    async def _stored(self, message: Message) -> bool:
        """Return whether an earlier import has stored a message without a run."""
        if not self._again:
            return False
        try:
            path = PathRequest(leaf_id=message.id, limit=1, newest_first=True)
            await self.backend.threads.messages(self.id, path)
        except MessageNotFoundError:
            return False
        return True

    async def _append(self, message: Message) -> None:
        self.report.messages += 1
        if self.report.dry_run:
            return
        self._batch.append(message)
        self._bytes += message_size(message)
        if len(self._batch) >= BATCH_MESSAGES or self._bytes >= BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Append the messages that wait."""
        if self._batch:
            batch, self._batch, self._bytes = self._batch, [], 0
            await self.backend.checkpointer.append(self.id, batch)

    async def _complete(self, run_id: str) -> None:
        number, last = self._last.get(run_id, (0, None))
        if last is not None and number > self._leaf_number:
            self._leaf, self._leaf_number = last, number
        if not self.report.dry_run and run_id not in self._done:
            await self.flush()
            await self.backend.checkpointer.mark_run_complete(self.id, run_id)

    async def _cancel(self, run_id: str) -> None:
        if self.report.dry_run or run_id in self._done:
            return
        await self.flush()
        try:
            await self.backend.runs.cancel(self.id, run_id)
        except RunEndedError:
            return

    async def _request(self, request: HitlRequest) -> None:
        """Save a request and its answer, unless the deployment has them."""
        await self.flush()
        known = await self.backend.runs.request(request.request_id)
        if known is not None and known.thread_id != self.id:
            self.report.note(self.id, f"the request {request.request_id}, because another thread has a request with this id")
            return
        if known is None:
            self.report.requests += 1
            if not self.report.dry_run:
                await self._save(request)
        if request.answered_at is None or (known is not None and known.answered_at is not None):
            return
        self.report.answers += 1
        if not self.report.dry_run:
            await self.backend.runs.respond(
                request.answer,
                thread_id=self.id,
                request_id=request.request_id,
                response_id=request.response_id,
                answered_by=request.answered_by,
                on_behalf_of=request.on_behalf_of,
            )

    async def _save(self, request: HitlRequest) -> None:
        answered = request.answered_at is not None
        asked = HitlRequest(
            request_id=request.request_id,
            kind=request.kind,
            payload=request.payload,
            answer_schema=None if answered else request.answer_schema,
            deadline_at=None if answered else request.deadline_at,
            on_deadline=None if answered else request.on_deadline,
        )
        if request.run_id is None:
            await self.backend.checkpointer.save_pending_request(self.id, asked)
        else:
            store = cast(RequestStore, self.backend.checkpointer)
            await store.save_requests(self.id, [asked], run_id=request.run_id)

    async def _compare(self, line: LeafLine) -> None:
        """Compare a leaf with that of the deployment, and set its labels."""
        if self.report.dry_run:
            return
        if not self._depths:
            await self.flush()
            await self._read_depths()
        message_id = self._message_id(line.message_id) or ROOT_ID
        depth = self._depths.get(message_id)
        if depth != line.depth and not self._ended_before:
            found = f"{depth} messages" if depth is not None else "no path"
            self.report.note(self.id, f"the path to message {message_id} has {found} instead of {line.depth}")
        for label in line.labels if depth is not None else ():
            await self.backend.threads.set_label(self.id, label, message_id)

    async def _read_depths(self) -> None:
        cursor: str | None = None
        while True:
            page = await self.backend.threads.branches(self.id, PageRequest(limit=1000, cursor=cursor))
            self._depths |= {leaf.message_id: leaf.depth for leaf in page.items}
            if (cursor := page.next) is None:
                return

    async def _head(self, message_id: str) -> None:
        """Make the branch of the message the head, unless the conversation went on after an earlier import."""
        if not self.report.dry_run and not self._ended_before:
            await self.flush()
            await cast(BranchStore, self.backend.threads).set_head(self.id, message_id)

    async def end(self) -> None:
        """Set the title and the tags, and mark the thread as imported."""
        again = self._ended_before
        self.report.count("added" if again else "imported")
        if self.report.dry_run:
            return
        await self.flush()
        mark = {TAG: f"{self.line.origin}:{self.export_id}"}
        if again:
            stored = await self.backend.threads.thread(self.id)
            assert stored is not None
            await self.backend.threads.update_thread(self.id, tags={**stored.tags, **mark})
            self.report.note(self.id, "imported before; messages, runs and requests were added, and other values kept")
        else:
            tags = {name: value for name, value in self.line.tags.items() if name != TAG}
            await self.backend.threads.update_thread(self.id, title=self.line.title, tags={**tags, **mark})
