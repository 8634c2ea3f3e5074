"""Import a file of threads through the ports of the connected store (``runyard threads import``).

The import executes the lines in their order. A step that an earlier import has done has no effect. Therefore a repeated import
continues an interrupted one. A repeated import of the same file changes nothing. :mod:`.section` executes the lines of one
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, cast

from runyard.errors import BackendUnavailableError, CapabilityMissingError, RunyardError
from runyard.ports.branches import BranchStore, ImportLock
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.stores import Backend

from ..import_report import Report
from .marks import Mark
from .new_ids import Ids
from .records import EndLine, ForkLine, Line, ThreadLine
from .section import Section

CHECK_SECONDS: Final = 5.0
"""Seconds between two checks that the import still has the lock of the tenant's imports."""


class FileImport:
    """One import of the lines of a file into ``backend``. ``export_id``: the id of the file's export."""

    def __init__(self, backend: Backend, export_id: str, ids: Ids, report: Report) -> None:
        self._backend, self._export_id, self._ids, self.report = backend, export_id, ids, report
        self._forks: set[str] = set()
        """The forks that this call has made, or would make."""
        self._renamed: dict[str, dict[str, str]] = {}
        """For each fork: the messages of its ancestors whose ids in the deployment differ from those in the file."""
        self._missing: set[str] = set()
        """The threads that this import has refused or could not make."""

    async def run(self, lines: Iterator[tuple[int, Line]]) -> None:
        """Execute all lines under the lock of the tenant's imports. An error of the store ends the import of one thread. The
        report then has a note with the line. Raises LockedError if another import holds the lock. Raises
        BackendUnavailableError."""
        if self.report.dry_run:
            await self._repeat(lines)
            return
        lock = await cast(BranchStore, self._backend.threads).lock_imports()
        try:
            await self._repeat_under(lock, lines)
        finally:
            await lock.release()

    async def _repeat_under(self, lock: ImportLock, lines: Iterator[tuple[int, Line]]) -> None:
        """Execute all lines. At the same time, check ``lock`` repeatedly. Stop when the lock is lost."""
        done = asyncio.Event()
        checking, repeating = asyncio.create_task(_check(lock, done)), asyncio.create_task(self._repeat(lines))
        try:
            await asyncio.wait((checking, repeating), return_when=asyncio.FIRST_COMPLETED)
            if repeating.done():
                await repeating
            done.set()
            await checking
        finally:
            checking.cancel()
            repeating.cancel()
            await asyncio.gather(checking, repeating, return_exceptions=True)

    async def _repeat(self, lines: Iterator[tuple[int, Line]]) -> None:
        section: Section | None = None
        for number, line in lines:
            if isinstance(line, ThreadLine):
                await self._end(section)
                section = await self._begin(number, line, first=section is None)
            elif isinstance(line, ForkLine):
                await self._fork(number, section, line)
            elif section is not None and section.working and not isinstance(line, EndLine):
                await self._guarded(number, section, partial(section.take, line))
        await self._end(section)

    async def _guarded(self, number: int, section: Section, step: Callable[[], Awaitable[None]]) -> None:
        """Execute a step of a section. An error of the store ends the import of the thread. ``number``: the number of the
        line."""
        section.number = number
        try:
            await step()
        except (BackendUnavailableError, CapabilityMissingError):
            raise
        except RunyardError as error:
            await section.fail(error)

    async def _begin(self, number: int, line: ThreadLine, *, first: bool) -> Section:
        thread_id = self._ids.thread(line.thread_id)
        made = thread_id in self._forks
        stored = await self._backend.threads.thread(thread_id)
        mark = Mark.of(stored.tags) if stored is not None else Mark(line.origin, began=0)
        renamed = self._renamed.pop(thread_id, {})
        section = Section(self._backend, self._ids, self.report, thread_id, line, self._export_id, mark, dict(renamed))
        if mark.origin != line.origin:
            self.report.count("refused")
            self.report.note(thread_id, "not imported: the deployment has another thread with this id")
            self._missing.add(thread_id)
        elif mark.began is None and mark.export_id == self._export_id:
            await self._unchanged(section)
        elif stored is None and not first and not made:
            self.report.count("failed")
            self.report.note(thread_id, "not imported: its parent was not imported up to the fork")
            self._missing.add(thread_id)
        else:
            section.working = True
            await self._guarded(number, section, lambda: section.begin(stored, made=made))
        return section

    async def _unchanged(self, section: Section) -> None:
        """Read the data that the import of a thread's forks needs. The thread itself is unchanged."""
        try:
            await section.find_closing()
        except (BackendUnavailableError, CapabilityMissingError):
            raise
        except RunyardError as error:
            self.report.count("failed")
            self.report.note(section.id, f"not compared: {error.message}")
        else:
            self.report.count("unchanged")

    async def _fork(self, number: int, section: Section | None, line: ForkLine) -> None:
        """Fork the thread of the section, unless the fork exists. Even an unchanged thread may need a fork, because the earlier
        fork may have been deleted."""
        if section is None or section.id in self._missing:
            return
        child = self._ids.thread(line.thread_id)
        self._renamed[child] = section.renamed
        if await self._backend.threads.thread(child) is not None:
            return
        if not self.report.dry_run:
            await self._guarded(number, section, section.flush)
            cut = Cut(
                after_run_id=self._ids.run(line.after_run_id),
                at_message_id=section.message_id(line.at_message_id),
                repair=line.repair,
            )
            tags = Mark(line.origin, began=0).tag()
            try:
                await self._backend.threads.fork(ForkRequest(src=section.id, new=child, cut=cut, tags=tags, agent=line.agent))
            except (BackendUnavailableError, CapabilityMissingError):
                raise
            except RunyardError as error:
                self.report.note(child, f"not forked at line {number}: {error.message}")
                return
        self.report.forks += 1
        self._forks.add(child)

    async def _end(self, section: Section | None) -> None:
        if section is not None and section.working:
            await self._guarded(section.number, section, section.end)


async def _check(lock: ImportLock, done: asyncio.Event) -> None:
    """Check ``lock`` every CHECK_SECONDS, and once more when ``done`` is set. Raises BackendUnavailableError if the lock was
    lost."""
    last = False
    while not last:
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), CHECK_SECONDS)
        last = done.is_set()
        await lock.check()
