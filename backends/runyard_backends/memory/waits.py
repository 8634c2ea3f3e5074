"""Waits of runs for a time, a signal or a child."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from runyard.domain.states import RunStatus
from runyard.domain.waits import MAX_OPEN_SIGNALS, Signal, Wait, WaitKind, WaitsFor
from runyard.errors import TooManySignalsError
from runyard.ports.refs import RunRef
from runyard.ports.results import Signalled
from runyard.ports.scheduling import Effects

from .state import Database, RunState, ThreadState, job
from .values import copied


@dataclass
class WaitState:
    """A wait of a run. ``run_id``: the run that waits. ``created_at``: the begin of the wait. ``received_by``: the fence of the
    first attempt that had its signal."""

    wait: Wait
    thread_key: int
    run_id: str
    created_at: datetime
    received_by: int | None = None


@dataclass
class SignalState:
    """A signal. ``wait_id``: the wait that took the signal, or None."""

    signal: Signal
    thread_key: int
    wait_id: str | None = None


def add(db: Database, thread: ThreadState, run: RunState, waits: Sequence[Wait]) -> bool:
    """Store the waits of an attempt's run, and end the waits that are due. A stored wait with the same id stays unchanged.
    Return True if one of ``waits`` has ended."""
    known = {state.wait.wait_id: state for state in of_run(db, thread, run.id)}
    for wait in waits:
        if wait.wait_id in known:
            continue
        stored = wait.model_copy(deep=True)
        if stored.timeout is not None:
            stored.due_at, stored.timeout = stored.due_at or db.now() + timedelta(seconds=stored.timeout), None
        known[wait.wait_id] = WaitState(stored, thread.key, run.id, db.now())
        db.waits.append(known[wait.wait_id])
    for wait in waits:
        _take(db, known[wait.wait_id])
    for state in overdue(db, thread):
        if state.run_id == run.id:
            state.wait.ended_at = db.now()
    return any(known[wait.wait_id].wait.ended_at is not None for wait in waits)


def _take(db: Database, state: WaitState) -> None:
    """Give an open wait the oldest open signal of its name."""
    for signal in open_signals(db, state.thread_key):
        if state.wait.kind == "signal" and state.wait.ended_at is None and signal.signal.name == state.wait.name:
            _match(db, state, signal)
            return


def _match(db: Database, state: WaitState, signal: SignalState) -> None:
    signal.signal.run_id, signal.wait_id, state.wait.ended_at = state.run_id, state.wait.wait_id, db.now()
    state.wait.signal_id, state.wait.value = signal.signal.signal_id, copied(signal.signal.value)


def open_signals(db: Database, thread_key: int) -> list[SignalState]:
    """Return the signals of the thread that no wait has taken, the oldest first."""
    return [state for state in db.signals.values() if state.thread_key == thread_key and state.wait_id is None]


def send(db: Database, thread: ThreadState, new: Signal) -> Signalled:
    """Send a new signal. The oldest open wait for the signal's name takes it. If the cancel of a run was requested, its waits
    take no signal. If no wait takes the signal, the signal stays open until a later wait takes the signal."""
    if not _waiting(db, thread, new.name) and len(open_signals(db, thread.key)) >= MAX_OPEN_SIGNALS:
        message = f"thread {thread.id} has {MAX_OPEN_SIGNALS} signals that no run has taken"
        raise TooManySignalsError(message, thread_id=thread.id, limit=MAX_OPEN_SIGNALS)
    state = db.signals[thread.key, new.signal_id] = SignalState(new, thread.key)
    effects = _offer(db, thread, state)
    return Signalled(new.model_copy(deep=True), True, effects)


def _waiting(db: Database, thread: ThreadState, name: str) -> list[WaitState]:
    """Return the open waits for the signal, the oldest first. Omit the waits of runs that may not take a signal."""
    takers = {run.id for run in thread.runs.values() if run.live and run.run.cancel_requested_at is None}
    found = [state for state in open_of(db, thread) if state.wait.kind == "signal" and state.wait.name == name]
    return [state for state in found if state.run_id in takers]


def _offer(db: Database, thread: ThreadState, signal: SignalState) -> Effects:
    """Give a signal to the oldest open wait for its name, and queue the run of this wait."""
    if not (waiting := _waiting(db, thread, signal.signal.name)):
        return Effects()
    _match(db, waiting[0], signal)
    return wake(db, thread, waiting[0].run_id)


def receive(db: Database, thread: ThreadState, run: RunState) -> None:
    """Record that the present attempt has the signals that no earlier attempt had."""
    for state in of_run(db, thread, run.id):
        if state.wait.signal_id is not None:
            state.received_by = state.received_by or run.run.fence


def forget_signals(db: Database, thread_key: int, run_id: str | None = None) -> None:
    """Delete the signals that a run took, or all signals of a thread."""
    gone = [key for key, s in db.signals.items() if s.thread_key == thread_key and run_id in (None, s.signal.run_id)]
    for key in gone:
        del db.signals[key]


def of_run(db: Database, thread: ThreadState, run_id: str) -> list[WaitState]:
    """Return the waits of a run."""
    return [state for state in db.waits if state.thread_key == thread.key and state.run_id == run_id]


def open_of(db: Database, thread: ThreadState) -> list[WaitState]:
    """Return the waits of the thread that have not ended, the oldest first."""
    return [state for state in db.waits if state.thread_key == thread.key and state.wait.ended_at is None]


def waits_for(db: Database, thread: ThreadState, run: RunState) -> WaitsFor:
    """Return the kind of event that resumes a suspended run: the answer of a human, or the end of its oldest open wait."""
    kinds: dict[WaitKind, WaitsFor] = {"sleep": "timer", "signal": "signal", "child": "child"}
    waits = [state.wait for state in open_of(db, thread) if state.run_id == run.id]
    return "human" if run.run.waiting_for == "answer" or not waits else kinds[waits[0].kind]


def overdue(db: Database, thread: ThreadState) -> list[WaitState]:
    """Return the open waits of the thread that are due. A wait for a live child is not due."""
    due = [state for state in open_of(db, thread) if state.wait.due_at is not None and state.wait.due_at <= db.now()]
    return [state for state in due if not _child_lives(db, thread, state)]


def _child_lives(db: Database, thread: ThreadState, state: WaitState) -> bool:
    of_child = db.find(thread.tenant, state.wait.name or "") if state.wait.kind == "child" else None
    child = of_child.runs.get(state.wait.wait_id) if of_child is not None else None
    return child is not None and child.job == RunRef(state.thread_key, state.run_id) and child.live


def for_child(db: Database, child: RunState) -> list[WaitState]:
    """Return a list with the parent's wait for the end of ``child``. The list is empty if ``child`` is no child."""
    own = [state for state in db.waits if state.wait.kind == "child" and state.wait.wait_id == child.id]
    return [state for state in own if RunRef(state.thread_key, state.run_id) == child.job]


def reopen(db: Database, child: RunState) -> None:
    """Open the wait of the parent again after a redrive of its child."""
    for state in for_child(db, child):
        state.wait.due_at = state.wait.ended_at = None


def end(db: Database, thread: ThreadState) -> Effects:
    """End the waits of the thread that are due, and queue their suspended runs."""
    effects = Effects()
    for state in overdue(db, thread):
        state.wait.ended_at = db.now()
        effects += wake(db, thread, state.run_id)
    return effects


def wake(db: Database, thread: ThreadState, run_id: str | None) -> Effects:
    """Queue the run again if it is suspended. Otherwise change nothing and return no effects."""
    run = thread.runs.get(run_id or "")
    if run is None or run.run.status is not RunStatus.SUSPENDED:
        return Effects()
    run.run.status, run.run.suspended_at, run.run.waiting_for = RunStatus.QUEUED, None, None
    run.changed_at, run.not_before = db.now(), None
    return Effects(jobs=[job(thread, run, db.now())])


def close(db: Database, thread: ThreadState, run: RunState) -> Effects:
    """End the open waits of a cancelled run. If the run ended in another way, delete its open waits, because a redriven run
    begins them again. A signal that no attempt of the run has read goes back to the thread. The wait that took this signal is
    deleted."""
    own = [state for state in of_run(db, thread, run.id) if state.wait.kind != "child"]
    unread = [state for state in own if state.wait.signal_id is not None and state.received_by is None]
    if run.run.status is RunStatus.CANCELLED:
        for state in own:
            state.wait.ended_at = state.wait.ended_at or run.run.finished_at
    gone = [*unread, *(state for state in own if state.wait.ended_at is None)]
    db.waits = [state for state in db.waits if not any(state is other for other in gone)]
    ids = {state.wait.signal_id for state in unread}
    effects = Effects()
    for signal in [s for s in db.signals.values() if s.thread_key == thread.key and s.signal.signal_id in ids]:
        signal.wait_id = signal.signal.run_id = None
        effects += _offer(db, thread, signal)
    return effects
