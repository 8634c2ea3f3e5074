"""Timelines of runs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

from runyard.domain import timeline
from runyard.domain.list_entries import attempt_bytes, json_bytes, message_bytes, request_bytes
from runyard.domain.threads import ChildRuns
from runyard.domain.timeline import Timeline, TimelineEntry
from runyard.models import AttemptInfo, Run, ToolCallPart
from runyard.ports.queries import FIRST_PAGE, PageRequest
from runyard.ports.timelines import FOUND_RUNS

from .. import cursors
from ..paging import within
from . import children, waits
from .state import Database, RunState, ThreadState
from .tree import copies, seen_run

Place = tuple[datetime, int, str]
Item = tuple[Place, list[TimelineEntry], int]
"""A place, the entries at this place, and the number of bytes that the store has for them."""


class MemoryTimelineStore:
    """Timelines of one tenant's runs."""

    def __init__(self, db: Database, tenant: str) -> None:
        self.db, self.tenant = db, tenant

    async def find(self, prefix: str) -> Sequence[tuple[str, str]]:
        """Return the thread ids and run ids of the runs whose ids are ``prefix`` or begin with it."""
        there = [
            (run.id, run.accept_no, thread.id)
            for thread in self.db.of(self.tenant)
            for run in thread.runs.values()
            if run.id.startswith(prefix) and run.run.deleted_at is None
        ]
        exact = [found for found in there if found[0] == prefix]
        return [(thread_id, run_id) for run_id, _, thread_id in sorted(exact or there)[:FOUND_RUNS]]

    async def children(self, thread_id: str, limit: int) -> ChildRuns:
        """Return at most ``limit`` descendants of the thread's runs, level by level: first the children, then their children.
        Raises ThreadNotFoundError."""
        return children.below(self.db, self.db.get(self.tenant, thread_id), limit)

    async def timeline(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Timeline:
        """Return a page of the run's timeline. Raises RunNotFoundError, ThreadNotFoundError, InvalidCursorError."""
        thread, run = seen_run(self.db, self.db.get(self.tenant, thread_id), run_id)
        after = cursors.place(page.cursor) if page.cursor is not None else cursors.START
        items = sorted((item for item in self._items(thread, run) if item[0] > after), key=lambda item: item[0])
        most_bytes = min(self.db.page_bytes, timeline.TIMELINE_BYTES)
        part = within(items[: page.limit], lambda item: item[2], most_bytes)
        at, kind, key = part[-1][0] if part else after
        own = copies(run.own())
        return Timeline(
            run=timeline.listed(run.run),
            error=timeline.error_of(run.run),
            answer=timeline.answer_of(own[-1] if own else None),
            **timeline.durations(run.run, run.attempts, self.db.now()),
            entries=[entry for _, entries, _ in part for entry in entries],
            next=cursors.encode([at.isoformat(), kind, key]) if len(part) < len(items) else None,
        )

    def _items(self, thread: ThreadState, run: RunState) -> list[Item]:
        items = [_of_attempt(attempt) for attempt in run.attempts]
        attempts = {attempt.fence: attempt for attempt in run.attempts}
        calls: dict[str, ToolCallPart] = {}
        before = called_at = None
        for stored, message in zip(own := run.own(), copies(own), strict=True):
            assert message.created_at is not None
            fence = int(stored.event_id.partition("-")[0]) if stored.event_id is not None else None
            attempt = attempts.get(fence) if fence is not None else None
            begun = (called_at if message.role == "tool" else before, attempt.started_at if attempt is not None else None)
            since = max(filter(None, begun), default=None)
            entries = timeline.of_message(message, message.created_at, since, fence, calls)
            items.append(((message.created_at, 1, f"{message.seq:019d}"), entries, message_bytes(message)))
            before = message.created_at
            if message.tool_calls:
                called_at, calls = message.created_at, {call.id: call for call in message.tool_calls}
        for step in run.steps.values():
            times = run.step_times[step.key]
            at = times[0] or times[1] or run.run.accepted_at
            size = json_bytes(step.result) if step.result is not None else 0
            large = size > timeline.LARGE_RESULT_BYTES
            result, omitted = (None, size) if large else (step.result, None)
            by, given = attempts.get(step.fence), run.step_inputs.get(step.key)
            entry = timeline.of_step(
                step.key, at, times, step.fence, result, done=step.done, input=given, attempt=by, omitted=omitted
            )
            items.append(((at, 2, _key(step.key)), [entry], 512 + (0 if large else size)))
        for state in self.db.requests_of(thread):
            request = state.request
            if request.run_id == run.id and request.created_at is not None:
                entry = timeline.of_request(request, request.created_at, closed=state.closed)
                items.append(((request.created_at, 3, _key(request.request_id)), [entry], request_bytes(request)))
        return items + [self._of_wait(state, run.run) for state in waits.of_run(self.db, thread, run.id)]

    def _of_wait(self, state: waits.WaitState, run: Run) -> Item:
        wait, size = state.wait, json_bytes(state.wait.value) if state.wait.signal_id is not None else 0
        child = self.db.find_run(self.tenant, wait.name or "", wait.wait_id) if wait.kind == "child" else None
        large = size > timeline.LARGE_RESULT_BYTES
        entry = timeline.of_wait(
            wait, state.created_at, run, child=child.run.status if child is not None else None, omitted=size if large else None
        )
        return (state.created_at, 4, _key(wait.wait_id)), [entry], 512 + (0 if large else size)


def _key(name: str) -> str:
    """Return ``name`` as the key of a place. A long name is hashed, because a cursor has a maximum length."""
    encoded = name.encode(errors="surrogatepass")
    return sha256(encoded).hexdigest() if len(encoded) > 255 else name


def _of_attempt(attempt: AttemptInfo) -> Item:
    at = attempt.started_at or attempt.ended_at
    assert at is not None
    return (at, 0, f"{attempt.fence:019d}"), [timeline.of_attempt(attempt, at)], attempt_bytes(attempt)
