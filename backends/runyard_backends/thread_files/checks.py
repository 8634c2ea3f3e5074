"""The check of a whole file before an import writes anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

from runyard.domain.validation import check_label
from runyard.errors import InvalidInputError
from runyard.models import check_id, check_tags, check_uuid

from .records import (
    MAX_RUNS,
    MAX_THREADS,
    BranchLine,
    CancelLine,
    ClaimLine,
    CompleteLine,
    EndLine,
    Family,
    ForkLine,
    HeadLine,
    LeafLine,
    Line,
    MessageLine,
    RequestLine,
    ThreadLine,
    lines,
    refused,
)


def check_file(file: BinaryIO) -> Family:
    """Check all lines of a file and return its first line. The memory grows with the number of threads, and with the number of
    runs of one thread. The memory does not grow with the number of messages.

    Raises InvalidInputError with the number of the ``line``.
    """
    check = FileCheck()
    family: Family | None = None
    number = 0
    for number, line in lines(file):
        if family is None:
            assert isinstance(line, Family)
            try:
                check_id(line.thread_id, "thread_id")
            except InvalidInputError as error:
                raise refused(number, error.message) from None
            family = line
        else:
            check.take(number, line)
    if family is None or not check.ended:
        raise refused(number + 1, "the file ends before its line of the type end; export it again")
    return family


@dataclass
class FileCheck:
    """The state of the check of a file. A section is the lines of one thread in the file (see :mod:`.records`). ``forks``: by
    thread id, the forks that a line ``fork`` named and whose sections have not begun. ``threads``: the ids of the threads whose
    sections have begun. ``open``: the ids of the runs that are claimed in the present section and have not ended. ``over``: the
    ids of the runs that have ended in this section. ``in_branch``: True if this section has had a line ``branch``. ``head``:
    True if this section has had a line ``head``."""

    forks: dict[str, ForkLine] = field(default_factory=dict)
    threads: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)
    in_branch: bool = False
    head: bool = False
    ended: bool = False

    def take(self, number: int, line: Line) -> None:
        """Check the next line."""
        if self.ended:
            raise refused(number, "a line follows the line of the type end")
        try:
            self._take(number, line)
        except InvalidInputError as error:
            if "line" in error.details:
                raise
            raise refused(number, error.message) from None

    def _take(self, number: int, line: Line) -> None:
        match line:
            case Family():
                raise refused(number, "only the first line has the type family")
            case EndLine():
                self._end(number, line)
            case ThreadLine():
                self._thread(number, line)
            case _ if not self.threads:
                raise refused(number, f"a line of the type {line.type} is before the first thread")
            case BranchLine(at=at):
                if at is not None:
                    check_uuid(at, "at")
                self.in_branch = True
            case LeafLine(message_id=message_id, labels=labels, labelled=labelled):
                check_uuid(message_id, "message_id")
                for label in labels:
                    check_label(label)
                if labels:
                    check_uuid(labelled, "labelled")
            case HeadLine(message_id=message_id):
                check_uuid(message_id, "message_id")
                if self.head:
                    raise refused(number, "the thread has two lines of the type head")
                self.head = True
            case ForkLine():
                self._fork(number, line)
            case RequestLine(request=request):
                if request.run_id is not None and request.run_id not in self.open and request.run_id not in self.over:
                    raise refused(number, "the request belongs to a run that the thread does not have")
            case ClaimLine() | CompleteLine() | CancelLine() | MessageLine():
                self._event(number, line)

    def _thread(self, number: int, line: ThreadLine) -> None:
        check_id(line.thread_id, "thread_id")
        check_tags(line.tags, line.title)
        self._close(number)
        fork = self.forks.pop(line.thread_id, None)
        if self.threads and fork is None:
            raise refused(
                number, f"the thread {line.thread_id!r} is not a fork of a thread above this line, or has two sections"
            )
        if fork is not None and (fork.origin, fork.agent, fork.repair) != (line.origin, line.agent, bool(line.closing)):
            raise refused(number, f"the thread {line.thread_id!r} differs from its line of the type fork")
        self.threads.add(line.thread_id)
        self.open, self.over, self.in_branch, self.head = set(), set(), False, False

    def _close(self, number: int) -> None:
        """Check that the present section is complete."""
        if self.threads and not self.head:
            raise refused(number, "the thread above this line has no line of the type head")

    def _fork(self, number: int, line: ForkLine) -> None:
        check_id(line.thread_id, "thread_id")
        if line.thread_id in self.threads or line.thread_id in self.forks:
            raise refused(number, f"the lineage has a cycle or the thread {line.thread_id!r} has two parents")
        if (line.after_run_id is None) == (line.at_message_id is None):
            raise refused(number, "a fork has either after_run_id or at_message_id")
        if line.at_message_id is not None:
            check_uuid(line.at_message_id, "at_message_id")
        if len(self.threads) + len(self.forks) >= MAX_THREADS:
            raise refused(number, f"the file has more than {MAX_THREADS} threads", most=MAX_THREADS)
        self.forks[line.thread_id] = line

    def _event(self, number: int, line: ClaimLine | CompleteLine | CancelLine | MessageLine) -> None:
        if not self.in_branch:
            raise refused(number, f"a line of the type {line.type} is before the first branch of its thread")
        run_id = line.message.run_id if isinstance(line, MessageLine) else line.run_id
        if run_id is None:
            return
        check_id(run_id, "run_id")
        if run_id in self.over:
            raise refused(number, f"the run {run_id!r} has ended above this line")
        match line:
            case ClaimLine():
                if run_id in self.open:
                    raise refused(number, f"the run {run_id!r} is claimed twice")
                if len(self.open) + len(self.over) >= MAX_RUNS:
                    raise refused(number, f"the thread has more than {MAX_RUNS} runs", most=MAX_RUNS)
                self.open.add(run_id)
            case CompleteLine() | CancelLine():
                if run_id not in self.open:
                    raise refused(number, f"the run {run_id!r} is not claimed above this line")
                self.open.discard(run_id)
                self.over.add(run_id)

    def _end(self, number: int, line: EndLine) -> None:
        if not self.threads:
            raise refused(number, "the file has no thread")
        self._close(number)
        if self.forks:
            raise refused(number, f"the fork {next(iter(self.forks))!r} has no section")
        if line.lines != number - 1:
            raise refused(
                number, f"the file has {number - 1} lines before its last line instead of {line.lines}; lines are missing"
            )
        self.ended = True
