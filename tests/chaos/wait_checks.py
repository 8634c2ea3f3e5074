"""The checks of waits (K1 to K3), for a history. Each function checks one rule and yields the violations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from runyard.domain.states import ENDED, RunStatus
from tests.chaos.history import Key, RunRow
from tests.chaos.reading import Reading, Violation


def sleeps_last(read: Reading) -> Iterator[Violation]:
    """K1: no attempt is awake before the time is over that began after the first attempt came to the sleep."""
    began: dict[Key, float] = {}
    for note in read.notes.get("nap", []):
        began.setdefault((note.thread, note.run), note.at)
    for note in read.notes.get("awake", []):
        key = (note.thread, note.run)
        if (slept := note.at - began[key]) < note.data["seconds"]:
            yield Violation("K1", f"slept {slept:.3f} s instead of {note.data['seconds']:.3f} s", key)
    for wait in read.history.waits:
        yield Violation("K1", f"the wait {wait} is open, and its run has ended")


def signals_are_taken_once(read: Reading) -> Iterator[Violation]:
    """K2: each acknowledged signal is stored. A run takes one signal, and every attempt gets this one. Of a thread's signals,
    the oldest are taken."""
    stored = {(signal.thread, signal.id) for signal in read.history.signals}
    for thread, signal_id in read.history.seen.signals:
        if (thread, signal_id) not in stored:
            yield Violation("K2", f"signal {signal_id} was acknowledged and is gone", (thread, ""))
    taken: defaultdict[Key, list[str]] = defaultdict(list)
    left: dict[str, str] = {}
    for signal in sorted(read.history.signals, key=lambda signal: signal.number):
        if signal.run is None:
            left.setdefault(signal.thread, signal.id)
            continue
        taken[signal.thread, signal.run].append(signal.id)
        if signal.thread in left:
            yield Violation("K2", f"signal {signal.id} was taken before {left[signal.thread]}", (signal.thread, signal.run))
    for key, ids in taken.items():
        if len(ids) > 1:
            yield Violation("K2", f"one wait took {ids}", key)
    for note in read.notes.get("signal", []):
        key = (note.thread, note.run)
        if taken[key] != [note.data["id"]]:
            yield Violation("K2", f"attempt {note.fence} got {note.data['id']}, and the run took {taken[key]}", key)
    for key, accept in read.accepts.items():
        run = read.history.runs.get(key)
        if run is not None and run.status is RunStatus.COMPLETED and accept.plan.signal and not taken[key]:
            yield Violation("K2", "completed without a signal", key)


def children_run_once(read: Reading) -> Iterator[Violation]:
    """K3: every child ends. A run that completed has each child of its plan once; they completed, and ended before it. Every
    attempt gets the same children."""
    children: defaultdict[Key, list[RunRow]] = defaultdict(list)
    for run in read.history.runs.values():
        if run.parent is not None:
            children[run.parent].append(run)
            if run.status not in ENDED:
                yield Violation("K3", f"a child is still {run.status}", run.key)
    plans = {key: accept.plan for key, accept in read.accepts.items()}
    level = [*plans]
    while level:
        below = {child.key: plans[key].child() for key in level for child in children[key]}
        plans |= below
        level = [*below]
    for key, plan in plans.items():
        run, own = read.history.runs.get(key), children[key]
        if len(own) > plan.children:
            yield Violation("K3", f"{len(own)} children instead of {plan.children}", key)
        if run is None or run.status is not RunStatus.COMPLETED:
            continue
        if [child.status for child in own] != [RunStatus.COMPLETED] * plan.children:
            yield Violation("K3", f"completed with children that are {[str(child.status) for child in own]}", key)
        if any((child.ended or 0.0) > (run.ended or 0.0) for child in own):
            yield Violation("K3", "ended before one of its children", key)
    for note in read.notes.get("children", []):
        key = (note.thread, note.run)
        got = sorted((thread, run) for thread, run in note.data["runs"])
        if got != sorted(child.key for child in children[key]) or set(note.data["texts"]) != {"done"}:
            yield Violation("K3", f"attempt {note.fence} got the children {got} with {note.data['texts']}", key)
