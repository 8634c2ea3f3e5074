"""Import threads, one after the other, through the ports of the connected deployment. Any store can be the target.

Every step can be repeated. The id of a message is derived from its row. A claimed run is not claimed again, and a completed run
is skipped. Therefore an interrupted import continues when it is repeated. A repeated import of the same data changes nothing.
An imported thread has a tag with the state of the import.

The messages of a thread are appended in the order of their rows. A run is claimed before its first message. The run is
completed after its last message, and after the runs with lower completion numbers. Contexts and forks therefore show the same
messages as in the source.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from runyard.adapters.cubeloop_messages import decode, encode
from runyard.adapters.cubeloop_requests import STATE, RequestLedger, to_request
from runyard.domain.derived_ids import derived_id, digest
from runyard.domain.threads import Thread
from runyard.errors import DataCorruptedError, InvalidInputError, RunAlreadyClaimedError, RunyardError
from runyard.models import JsonObject, JsonValue, Message, check_id, new_id
from runyard.ports.commands import Cut, ForkRequest, ThreadRequest
from runyard.ports.stores import Backend

from ..import_report import Report
from .marks import NO_MESSAGE, TAG, Mark
from .source import Source, SourceMessage, SourceRun, SourceThread

THREADS_PER_READ: Final = 500
MESSAGES_PER_APPEND: Final = 100


@dataclass
class Import:
    """One import from ``source`` into ``backend``. ``report``: gets the counts and notes of the import."""

    source: Source
    backend: Backend
    report: Report
    _seen: set[str] = field(default_factory=set)

    async def all(self) -> None:
        """Import every thread. A parent is imported before its forks."""
        after = ""
        while ids := await self.source.thread_ids(after, THREADS_PER_READ):
            for thread_id in ids:
                await self.one(thread_id)
            after = ids[-1]

    async def one(self, thread_id: str) -> None:
        """Import a thread after its ancestors. A second call changes nothing."""
        line: list[SourceThread] = []
        following: str | None = thread_id
        while following is not None and following not in self._seen:
            self._seen.add(following)  # also ends a cycle of parents
            try:
                found = await self.source.thread(following)
            except Exception as error:
                self._failed(following, error)
                break
            if found is None:
                break
            line.append(found)
            following = found.parent_thread_id
        for thread in reversed(line):
            await self._import(thread)

    async def _import(self, thread: SourceThread) -> None:
        try:
            check_id(thread.thread_id, "thread_id")
            stored = await self.backend.threads.thread(thread.thread_id)
            mark = Mark.read(stored.tags.get(TAG, "")) if stored is not None else None
            origin = await self._origin(thread)
            if stored is not None and (mark is None or not mark.is_of(origin)):
                self.report.count("refused")
                whose = "another thread" if mark is None else "a thread of another database"
                self.report.note(thread.thread_id, f"not imported: the deployment has {whose} with this id")
            elif mark is not None and mark.data == thread.digest:
                self.report.count("unchanged")
            else:
                await _ThreadImport(self, thread, stored, mark or Mark(0, origin), origin).run()
        except Exception as error:  # an unexpected row must not end the import of the other threads
            self._failed(thread.thread_id, error)

    async def _origin(self, thread: SourceThread) -> str:
        """Return a digest of the first message of a thread. The digest distinguishes threads with the same id in two
        databases."""
        first = await self.source.page(thread.thread_id, 0, min((each.first_row for each in thread.bounds.values()), default=0))
        return digest([first[0].row, first[0].fields]) if first else NO_MESSAGE

    def _failed(self, thread_id: str, error: Exception) -> None:
        if not isinstance(error, RunyardError):
            why, field_ = f"a row has an unexpected value ({type(error).__name__})", None
        elif error.code in ("backend_unavailable", "locked"):
            raise error
        else:
            why, field_ = error.message, error.details.get("field")
        self.report.count("refused" if field_ == "thread_id" else "failed")
        self.report.note(thread_id, f"not imported as a whole: {why}")


class _ThreadImport:
    """The import of one thread. ``stored``: the thread in the deployment, if an earlier import made it."""

    def __init__(self, owner: Import, thread: SourceThread, stored: Thread | None, mark: Mark, origin: str) -> None:
        self._source, self._backend, self._report = owner.source, owner.backend, owner.report
        self._thread, self._stored, self._id = thread, stored, thread.thread_id
        self._mark, self._origin = mark, origin
        self._runs = {run.run_id: run for run in thread.runs}
        self._claimed: set[str] = set()
        self._done: set[str] = set()
        self._batch: list[Message] = []
        self._ids: set[str] = set()
        self._new_messages = 0

    async def run(self) -> None:
        dry, again = self._report.dry_run, self._mark.ended
        cut, inherited = await self._cut()
        if not dry and self._stored is None:
            inherited = await self._make(cut, inherited)
        elif self._stored is not None:
            inherited = self._mark.inherited
        if self._stored is not None and self._stored.parent_thread_id is None:
            cut = None  # an earlier import made a thread that is not a fork
        for run_id in self._inherited_runs(cut):
            del self._runs[run_id]
        self._report.forks += cut is not None
        if not dry and not (again and self._extra_changed()):
            await self._save_extra()
        await self._replay(inherited)
        await self._save_requests(again)
        self._note_losses(cut, again)
        if not dry:
            await self._end(inherited)
        self._report.count("added" if again else "imported")

    async def _cut(self) -> tuple[SourceRun | None, int]:
        """Return the run after which the thread was forked from its parent. Also return the approximate number of inherited
        messages.

        For a fork, cubepi copies the messages and the runs of the parent. The copied runs have the completion numbers and times
        of the parent's runs.
        """
        parent_id = self._thread.parent_thread_id
        parent = await self._source.thread(parent_id) if parent_id is not None else None
        if parent is None:
            return None, 0
        theirs = {(run.run_id, run.completion_seq, run.completed_at) for run in parent.runs if run.completion_seq is not None}
        shared = [
            run
            for run in self._thread.runs
            if run.completion_seq is not None and (run.run_id, run.completion_seq, run.completed_at) in theirs
        ]
        last = max(shared, key=lambda run: run.completion_seq or 0, default=None)
        if last is None or len(shared) != sum((seq or 0) <= (last.completion_seq or 0) for _, seq, _ in theirs):
            return None, 0
        ours, before = self._thread.bounds, parent.bounds.get(None)
        legacy = min(ours[None].messages, before.messages) if before is not None and None in ours else 0
        return last, legacy + sum(ours[run.run_id].messages for run in shared if run.run_id in ours)

    def _inherited_runs(self, cut: SourceRun | None) -> list[str]:
        if cut is None:
            return []
        last = cut.completion_seq or 0
        return [run.run_id for run in self._thread.runs if run.completion_seq is not None and run.completion_seq <= last]

    async def _make(self, cut: SourceRun | None, inherited: int) -> int:
        """Create the thread. Make it a fork of its parent if the fork shows the messages that cubepi copied.

        Return the number of messages that the new thread shows.
        """
        parent_id = self._thread.parent_thread_id
        if cut is not None and parent_id is not None:
            shown = await self._snapshot(parent_id, cut.run_id)
            if shown is not None and await self._begins_with(shown):
                tags = {TAG: Mark(len(shown), self._origin).tag}
                asked = ForkRequest(src=parent_id, new=self._id, cut=Cut(after_run_id=cut.run_id), tags=tags)
                self._stored = (await self._backend.threads.fork(asked)).thread
                return len(shown)
        request = ThreadRequest(thread_id=self._id, tags={TAG: Mark(0, self._origin).tag})
        made = await self._backend.threads.create_thread(request)
        self._stored = made.thread
        return 0

    async def _snapshot(self, parent_id: str, run_id: str) -> list[Message] | None:
        """Return the messages of the imported parent that a fork after the run would show. Return None if the parent was not
        imported."""
        parent = await self._backend.threads.thread(parent_id)
        if parent is None or TAG not in parent.tags:
            return None
        try:
            return await self._backend.checkpointer.snapshot(parent_id, after_run_id=run_id)
        except RunyardError:
            return None

    async def _begins_with(self, shown: Sequence[Message]) -> bool:
        """Return True if the thread begins with the messages ``shown``."""
        expected = [_said(fields) for fields in decode(shown)]
        at = 0
        async for message in self._messages():
            if at == len(expected):
                return True
            if _said(decode([_encoded(message, new_id())])[0]) != expected[at]:
                return False
            at += 1
        return at == len(expected)

    async def _messages(self) -> AsyncIterator[SourceMessage]:
        after = 0
        while page := await self._source.page(self._id, after, self._thread.last_row):
            for message in page:
                yield message
            after = page[-1].row

    async def _save_extra(self) -> None:
        """Set the thread's extra to the extra of the source. The thread's next completed run saves this extra. Forks after that
        run get this extra."""
        assert self._stored is not None
        extra: dict[str, JsonValue] = {key: None for key in self._stored.extra if key not in (*self._thread.extra, STATE)}
        extra.update(self._thread.extra)
        nulls = {key for key, value in self._thread.extra.items() if value is None}
        if extra:
            await self._backend.threads.update_thread(self._id, extra=extra)
        if nulls:  # update_thread removes a key whose value is None
            await self._backend.checkpointer.save_extra(self._id, dict.fromkeys(nulls))

    async def _replay(self, inherited: int) -> None:
        """Append the messages that are not inherited. Claim and complete the runs at their places between the messages."""
        order = sorted(
            (run for run in self._runs.values() if run.completion_seq is not None), key=lambda r: r.completion_seq or 0
        )
        waiting = [run.run_id for run in order]
        ended = {run_id for run_id in waiting if run_id not in self._thread.bounds}
        number = 0
        async for message in self._messages():
            number += 1
            made = _encoded(message, self._message_id(message))
            if number <= inherited:
                continue
            await self._add(message, made)
            if message.run_id in self._runs and message.row == self._thread.bounds[message.run_id].last_row:
                ended.add(message.run_id)
                while waiting and waiting[0] in ended:
                    await self._complete(waiting.pop(0))
            elif len(self._batch) >= MESSAGES_PER_APPEND:
                await self._flush()
        await self._flush()
        for run_id in waiting:
            await self._complete(run_id)
        for run in self._runs.values():
            await self._claim(run.run_id)
        self._report.messages += self._new_messages
        self._report.runs += len(self._runs)

    def _message_id(self, message: SourceMessage) -> str:
        """Return the id under which a message is stored. A message keeps its id if the id is a UUID that no earlier message of
        the thread has. Otherwise the message gets an id that is derived from the thread's id and the number of the message's
        row."""
        own: str | None = None
        with suppress(ValueError, TypeError, AttributeError):
            own = str(UUID(message.fields.get("id")))
        if own is None or own in self._ids:
            return derived_id("cubepi message", self._id, message.row)
        self._ids.add(own)
        return own

    async def _add(self, message: SourceMessage, made: Message) -> None:
        run_id = message.run_id
        if run_id in self._runs:
            await self._claim(run_id)
            if run_id in self._done:
                return
        self._new_messages += 1
        if not self._report.dry_run:
            self._batch.append(made)

    async def _flush(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            await self._backend.checkpointer.append(self._id, batch)

    async def _claim(self, run_id: str) -> None:
        """Claim a run once, after the messages before it."""
        if run_id in self._claimed:
            return
        self._claimed.add(run_id)
        if self._report.dry_run and self._stored is None:
            return
        known = await self._backend.runs.run(self._id, run_id) if self._stored is not None else None
        if known is not None and known.completion_seq is not None:
            self._done.add(run_id)
        elif known is None and not self._report.dry_run:
            await self._flush()
            with suppress(RunAlreadyClaimedError):
                await self._backend.checkpointer.claim_run(self._id, run_id)

    async def _complete(self, run_id: str) -> None:
        await self._claim(run_id)
        if not self._report.dry_run and run_id not in self._done:
            await self._flush()
            await self._backend.checkpointer.mark_run_complete(self._id, run_id)

    async def _save_requests(self, again: bool) -> None:
        """Save the pending request and the answers. A repeated import saves only the requests and answers of runs that have not
        ended in the deployment. If the deployment has another pending request, or an answer that no import stored, the call
        saves nothing."""
        thread, ledger = self._thread, RequestLedger(self._backend)
        if thread.request is not None and not (again and await self._has_request(thread.request)):
            self._report.requests += 1
            if not self._report.dry_run:
                if thread.request_run_id is not None and thread.request_run_id not in self._runs:  # schema 3 has no runs
                    await self._claim(thread.request_run_id)  # the agent completes the run after the answer
                await ledger.save(self._id, thread.request, thread.request_run_id)
        for answer in thread.answers:
            if again and (answer.run_id in self._done or await ledger.answer(self._id, answer.question_id, answer.run_id)):
                continue
            self._report.answers += 1
            if not self._report.dry_run:
                await ledger.save_answer(self._id, answer.question_id, answer.answer, answer.run_id, asked_at="imported")

    async def _has_request(self, request: JsonObject) -> bool:
        """Return True if the deployment has this request, has another pending request, or has ended the request's run."""
        run_id = self._thread.request_run_id
        if run_id in self._done or await self._backend.checkpointer.load_pending(self._id) is not None:
            return True
        return await self._backend.runs.request(to_request(self._id, request, run_id).request_id) is not None

    def _extra_changed(self) -> bool:
        """Return True if the thread's extra has changed in the deployment since the last import."""
        return self._stored is None or _extra_digest(self._stored) != self._mark.extra

    def _note_losses(self, cut: SourceRun | None, again: bool) -> None:
        parent_id, report = self._thread.parent_thread_id, self._report
        if parent_id is not None and (self._stored.parent_thread_id if self._stored is not None else cut) is None:
            why = "this thread was changed or deleted, and its fork would show other messages"
            report.note(self._id, f"the lineage to thread {parent_id} is not imported, because {why}")
        own = sorted(run.completion_seq for run in self._runs.values() if run.completion_seq is not None)
        first = (cut.completion_seq or 0) + 1 if cut is not None else 1
        if own != [*range(first, first + len(own))]:
            report.note(
                self._id, "the completion numbers have gaps; the imported runs get consecutive numbers in the same order"
            )
        unknown = {run_id for run_id in self._thread.bounds if run_id is not None} - {run.run_id for run in self._thread.runs}
        if unknown:
            report.note(
                self._id, f"messages name {len(unknown)} run ids without a run; load shows these messages, forks do not"
            )
        if again:
            extra = "its extra was changed in the deployment and stays" if self._extra_changed() else "its extra was replaced"
            report.note(self._id, f"an earlier import made this thread; new messages, runs and requests were added; {extra}")

    async def _end(self, inherited: int) -> None:
        """Mark the thread as imported."""
        thread = await self._backend.threads.thread(self._id)
        assert thread is not None
        mark = Mark(inherited, self._origin, _extra_digest(thread), self._thread.digest)
        await self._backend.threads.update_thread(self._id, tags={**thread.tags, TAG: mark.tag})


def _extra_digest(thread: Thread) -> str:
    """Return a digest of a thread's extra. The digest omits the key STATE, which has the imported requests."""
    return digest({key: value for key, value in thread.extra.items() if key != STATE})


def _encoded(message: SourceMessage, message_id: str) -> Message:
    try:
        return encode(message.fields, message_id=message_id)
    except InvalidInputError as error:
        raise DataCorruptedError(f"row {message.row}: {error.message}", row=str(message.row)) from None


def _said(fields: dict[str, JsonValue]) -> str:
    """Return a digest of the fields of a message. Empty fields do not count."""
    return digest({key: value for key, value in fields.items() if value not in (None, "", {})})
