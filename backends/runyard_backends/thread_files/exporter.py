"""Export a thread with its ancestors, and optionally with its forks, through the ports of the connected store."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import BinaryIO, Final, cast

from runyard.domain.states import LIVE
from runyard.domain.tool_cycles import FORKED
from runyard.errors import DataCorruptedError, InvalidInputError, ThreadNotFoundError
from runyard.models import ROOT_ID, Branch, HitlRequest, Message, Run, Thread, new_id
from runyard.ports.branches import BranchStore
from runyard.ports.queries import PageRequest, PathRequest, RunFilter, ThreadFilter
from runyard.ports.results import Page
from runyard.ports.stores import Backend

from ..paging import items_of
from .heads import last_visible
from .marks import origin_of
from .order import ENDED_WITHOUT_COMPLETION, BranchOrder, ForkPoint, Forks, RunFacts, survey
from .records import (
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_NOTE,
    MAX_RUNS,
    MAX_THREADS,
    BranchLine,
    CancelLine,
    CompleteLine,
    EndLine,
    Family,
    ForkLine,
    HeadLine,
    LeafLine,
    Line,
    NoteLine,
    RequestLine,
    ThreadLine,
    shortened,
    text_of,
)

MESSAGES_PER_READ: Final = 100


@dataclass
class Exported:
    """The numbers of an export. ``notes``: a thread and a text for each piece of data that the file lacks."""

    threads: int = 0
    messages: int = 0
    runs: int = 0
    requests: int = 0
    notes: list[tuple[str, str]] = field(default_factory=list)


class Export:
    """Writes the lines of a family to ``file``. A family is a thread with its ancestors and forks. The export changes nothing
    in the store. If a thread changes during its export, the file can contain a part of the change."""

    def __init__(self, backend: Backend, file: BinaryIO) -> None:
        self._backend, self._file = backend, file
        self._lines, self._thread_id = 0, ""
        self.report = Exported()

    async def family(self, thread_id: str, *, forks: bool) -> Exported:
        """Export a thread and its ancestors. ``forks``: True to export also the forks of the thread, the forks of these forks,
        and so on.

        Raises InvalidInputError if the family exceeds the bounds of a file. Raises ThreadNotFoundError, DataCorruptedError.
        """
        lineage = [await self._known(thread_id)]
        while (parent_id := lineage[-1].parent_thread_id) is not None:
            if (parent := await self._parent(lineage[-1], parent_id)) is None:
                break
            lineage.append(parent)
        lineage.reverse()
        self._write(Family(export_id=new_id(), thread_id=thread_id))
        for thread, child in itertools.pairwise(lineage):
            if await self._section(thread, [child], thread is lineage[0]):
                raise DataCorruptedError(
                    f"the cut of the fork {child.thread_id!r} was not found in its parent {thread.thread_id!r}",
                    thread_id=child.thread_id,
                )
        waiting = [(lineage[-1], len(lineage) == 1)]
        while waiting:
            thread, first = waiting.pop()
            children = await self._children(thread) if forks else []
            lost = await self._section(thread, children, first)
            waiting += [(child, False) for child in children if child.thread_id not in lost]
        self._write(EndLine(lines=self._lines))
        return self.report

    async def _known(self, thread_id: str) -> Thread:
        thread = await self._backend.threads.thread(thread_id)
        if thread is None:
            raise ThreadNotFoundError(f"there is no thread {thread_id!r}", thread_id=thread_id)
        return thread

    async def _parent(self, child: Thread, parent_id: str) -> Thread | None:
        """Return the parent of a thread. Return None if the parent was deleted, even if a later thread has the parent's id."""
        parent = await self._backend.threads.thread(parent_id)
        return parent if parent is not None and parent.created_at <= child.created_at else None

    async def _children(self, thread: Thread) -> list[Thread]:
        where, threads = ThreadFilter(parent_thread_id=thread.thread_id), self._backend.threads
        children = items_of(lambda cursor: threads.threads(where, PageRequest(cursor=cursor)))
        return [child async for child in children if child.created_at >= thread.created_at]

    def _write(self, line: Line) -> None:
        text = text_of(line)
        self._check("bytes of a line", len(text), MAX_LINE_BYTES)
        self._check("lines", self._lines, MAX_LINES)
        self._file.write(text)
        self._lines += 1

    def _check(self, what: str, got: int, most: int) -> None:
        """Raise InvalidInputError if ``got`` exceeds ``most``, because an import would refuse the file."""
        if got > most:
            raise InvalidInputError(
                f"the thread {self._thread_id!r} cannot be exported, because a file has at most {most} {what}",
                thread_id=self._thread_id,
                most=most,
            )

    async def _section(self, thread: Thread, children: list[Thread], first: bool) -> set[str]:
        """Write the lines of a thread. Return the ids of the ``children`` whose cuts were not found. ``first``: True if the
        thread has no parent in the file."""
        self._thread_id = thread.thread_id
        self._check("threads", self.report.threads + 1, MAX_THREADS)
        thread = await self._known(thread.thread_id)  # entries of a list lack large values
        section = _Section(self._backend, thread, first)
        closing = [] if first else await section.closing()
        runs = self.report.runs
        self._write(
            ThreadLine(
                thread_id=thread.thread_id,
                origin=origin_of(thread),
                agent=thread.agent,
                title=thread.title,
                tags=thread.tags,
                extra=thread.extra,
                config=thread.config,
                closing=closing,
            )
        )
        async for line in section.lines(children, closing):
            match line.type:
                case "message":
                    self.report.messages += 1
                case "claim":
                    self.report.runs += 1
                    self._check("runs of a thread", self.report.runs - runs, MAX_RUNS)
                case "request":
                    self.report.requests += 1
            if isinstance(line, NoteLine):
                self.report.notes.append((thread.thread_id, line.what))
            self._write(line)
        self.report.threads += 1
        return section.lost


class _Section:
    """The lines of one thread after its first line."""

    def __init__(self, backend: Backend, thread: Thread, first: bool) -> None:
        self._backend, self._thread, self._id = backend, thread, thread.thread_id
        self._branches = cast(BranchStore, backend.threads)
        self._first = first
        self._runs: dict[str, RunFacts] = {}
        self._unclaimed: set[str] = set()
        self._notes: list[str] = []
        self.lost: set[str] = set()
        """The ids of the forks whose cuts were not found."""

    async def lines(self, children: list[Thread], closing: list[str]) -> AsyncIterator[Line]:
        """Yield the lines of the thread. ``children``: the forks with a section. ``closing``: if the thread is a repaired fork,
        the id of the message that closes open tool calls. The file does not have this message."""
        await self._read_runs()
        flat = self._first and self._thread.parent_thread_id is not None
        forks = Forks([await self._fork_point(child, flat, closing) for child in children])
        answered = await self._read_answered()
        base = await self.cut()
        if flat:
            self._notes.append(
                f"the lineage to thread {self._thread.parent_thread_id}, which was deleted; its messages are the thread's own"
            )
        keys = await self._branches.branch_keys(self._id)
        readers = [
            self._reader(key, base if flat and n == 0 else None, len(closing) if n == 0 else 0) for n, key in enumerate(keys)
        ]
        runs = [await survey(read(), self._find_run) for read in readers]
        if runs:  # a run without messages is repeated on the first branch
            runs[0] += [run for run in self._runs.values() if run.first is None]
        for n, (read, mine) in enumerate(zip(readers, runs, strict=True)):
            begin = [message.parent_id async for message in _first(read())]
            if begin or n == 0:
                at = begin[0] if begin else closing[-1] if closing else base
                yield BranchLine(at=None if flat and n == 0 else at)
                async for line in BranchOrder(read, self._runs, mine, forks).lines():
                    if isinstance(line, CompleteLine | CancelLine):
                        for request_id in answered.get(line.run_id, ()):  # the end of a run closes its pending requests
                            if (request := await self._backend.runs.request(request_id)) is not None:
                                yield RequestLine(request=request)
                    yield line
        self.lost = forks.lost
        self._notes += [f"the fork {thread_id}: its cut was not found" for thread_id in sorted(self.lost)]
        async for line in self._ending():
            yield line

    def _reader(self, branch: int, inherited: str | None, skipped: int) -> Callable[[], AsyncIterator[Message]]:
        """Return a function that reads a branch. ``inherited``: the last inherited message to read before the messages of the
        branch, or None. ``skipped``: the number of messages to omit at the beginning."""

        async def read() -> AsyncIterator[Message]:
            if inherited is not None:
                async for message in self._inherited(inherited):
                    yield message
            number = after = 0
            while page := await self._branches.branch_messages(self._id, branch, after=after, limit=MESSAGES_PER_READ):
                for message in page:
                    number += 1
                    if number > skipped:
                        yield message
                after = page[-1].seq or 0

        return read

    async def _inherited(self, last: str) -> AsyncIterator[Message]:
        """Yield the messages that the thread inherited. ``last``: the id of the last message to yield."""

        def read(cursor: str | None) -> Awaitable[Page[Message]]:
            path = PathRequest(leaf_id=last, limit=MESSAGES_PER_READ, cursor=cursor)
            return self._backend.threads.messages(self._id, path)

        async for message in items_of(read):
            if message.run_id is not None:  # the file completes inherited runs, in the order of their last messages
                run = self._runs.setdefault(message.run_id, RunFacts(message.run_id, "completed", None, None, None))
                run.place = (0, message.seq or 0)
            yield message

    async def cut(self) -> str | None:
        """Return the id of the last message that the thread inherited, or None.

        The method searches for this message among the parents of the branches' first messages, and then at the leaf of the
        first branch.
        """
        if (last := self._thread.forked_at_seq) is None:
            return None
        async for message_id in self._bases():
            path = PathRequest(leaf_id=message_id, limit=1, newest_first=True)
            page = await self._backend.threads.messages(self._id, path)
            if page.items and page.items[0].seq == last:
                return message_id
        return None

    async def _bases(self) -> AsyncIterator[str]:
        for key in await self._branches.branch_keys(self._id):
            for message in await self._branches.branch_messages(self._id, key, limit=1):
                if message.parent_id is not None:
                    yield message.parent_id
        async for leaf in self._leaves():
            if leaf.trunk:
                yield leaf.message_id

    def _leaves(self) -> AsyncIterator[Branch]:
        return items_of(lambda cursor: self._backend.threads.branches(self._id, PageRequest(cursor=cursor)))

    async def _read_runs(self) -> None:
        where, runs = RunFilter(thread_id=self._id), self._backend.runs
        async for run in items_of(lambda cursor: runs.runs(where, PageRequest(limit=1000, cursor=cursor))):
            self._take_run(run)

    async def _find_run(self, run_id: str) -> RunFacts | None:
        """Return the run of a message, or None for a run that was never claimed. To search the list of runs would not be
        enough, because the list leaves out deleted runs, and forks may show their messages."""
        if run_id not in self._runs and run_id not in self._unclaimed:
            run = await self._backend.runs.run(self._id, run_id)
            if run is None or run.deleted_at is None:
                self._unclaimed.add(run_id)
            else:
                self._runs[run_id] = RunFacts(run_id, "cancelled", run.started_at, run.finished_at, None, deleted=True)
        return self._runs.get(run_id)

    def _take_run(self, run: Run) -> None:
        if run.kind not in ("prompt", "external"):
            return
        if run.started_at is None:
            self._notes.append(f"the run {run.run_id}, which is {run.status} and has not started")
            return
        place = (1, run.completion_seq) if run.completion_seq is not None else None
        self._runs[run.run_id] = RunFacts(run.run_id, str(run.status), run.started_at, run.finished_at, place)
        if run.status in ("failed", "dead"):
            self._notes.append(f"the error of run {run.run_id}, which is {run.status}; an import cancels the run")
        elif run.status == "cancelled" and place is not None:
            self._notes.append(
                f"the status cancelled of run {run.run_id}, whose messages are kept; an import completes the run"
            )
        elif run.status in LIVE and run.kind == "prompt":
            self._notes.append(f"run {run.run_id} is {run.status} and becomes an external run that is not completed")

    async def _fork_point(self, child: Thread, flat: bool, closing: list[str]) -> ForkPoint:
        """Return the cut of a fork of this thread. ``flat``: True if the file has the inherited messages as the thread's
        own."""
        line = ForkLine(thread_id=child.thread_id, origin=origin_of(child), agent=child.agent)
        if child.forked_after_run_id is not None:
            line.after_run_id = child.forked_after_run_id
            return ForkPoint(line, child.created_at, not flat and child.forked_after_run_id not in self._runs)
        section = _Section(self._backend, child, False)
        line.repair = bool(await section.closing())
        line.at_message_id = await section.cut()
        inherited = line.at_message_id is not None and (child.forked_at_seq or 0) <= (self._thread.forked_at_seq or 0)
        return ForkPoint(line, child.created_at, (inherited and not flat) or line.at_message_id in closing)

    async def closing(self) -> list[str]:
        """If the thread is a repaired fork, return the id of the message that closes open tool calls."""
        if self._thread.forked_after_run_id is not None:
            return []
        keys = await self._branches.branch_keys(self._id)
        first = await self._branches.branch_messages(self._id, keys[0], limit=1) if keys else []
        return [message.id for message in first if message.run_id is None and _repairs(message)]

    async def _ending(self) -> AsyncIterator[Line]:
        async for request in self._requests():
            yield RequestLine(request=request)
        async for leaf in self._leaves():
            at = leaf.message_id
            if leaf.labels and leaf.run_status in LIVE:  # an import leaves the run without visible messages
                at = await last_visible(self._backend.threads, self._id, self._thread.forked_at_seq, at)
            if at == ROOT_ID:
                self._notes.append(f"the labels {', '.join(leaf.labels)} of a branch without visible messages")
            labels = [] if at == ROOT_ID else leaf.labels
            yield LeafLine(message_id=leaf.message_id, depth=leaf.depth, labels=labels, labelled=at if labels else None)
        yield HeadLine(message_id=await last_visible(self._backend.threads, self._id, self._thread.forked_at_seq))
        for note in self._notes:
            yield NoteLine(what=shortened(note, MAX_NOTE))

    def _ends(self, run_id: str | None) -> bool:
        """Return True if the file has the end of a run."""
        run = self._runs.get(run_id or "")
        return run is not None and (run.place is not None or run.status in ENDED_WITHOUT_COMPLETION)

    async def _read_answered(self) -> dict[str, list[str]]:
        """Return the ids of the answered requests of the runs that have ended, by run."""
        found: dict[str, list[str]] = {}
        async for request in self._all_requests(pending=False):
            if request.run_id is not None and self._ends(request.run_id) and request.answered_at is not None:
                found.setdefault(request.run_id, []).append(request.request_id)
        return found

    async def _requests(self) -> AsyncIterator[HitlRequest]:
        """Yield the requests of the thread. Requests of ended runs are left out. Requests without a run come first. Answered
        requests come before pending ones."""
        pending = {request.request_id async for request in self._all_requests(pending=True)}
        for of_run in (False, True):
            for waits in (False, True):
                async for request in self._all_requests(pending=waits):
                    if (request.run_id is not None) is not of_run or (not waits and request.answered_at is None):
                        continue
                    if self._ends(request.run_id):
                        continue
                    if request.run_id is not None and request.run_id not in self._runs:
                        self._notes.append(f"the request {request.request_id} of a run that the file lacks")
                        continue
                    yield request
        async for request in self._all_requests(pending=False):
            if request.answered_at is None and request.request_id not in pending:
                self._notes.append(f"the request {request.request_id}, which was closed without an answer")

    def _all_requests(self, *, pending: bool) -> AsyncIterator[HitlRequest]:
        runs = self._backend.runs
        return items_of(lambda cursor: runs.requests(thread_id=self._id, pending=pending, page=PageRequest(cursor=cursor)))


def _repairs(message: Message) -> bool:
    return bool(message.tool_results) and all(result.content == FORKED for result in message.tool_results)


async def _first(messages: AsyncIterator[Message]) -> AsyncIterator[Message]:
    """Yield only the first message."""
    async for message in messages:
        yield message
        return
