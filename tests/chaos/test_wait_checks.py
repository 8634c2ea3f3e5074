"""The checks of waits find each broken rule in a hand-made history, and nothing in a sound one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runyard.domain.states import RunStatus
from tests.chaos.history import Accept, History, Key, RunRow, Seen, SignalRow
from tests.chaos.reading import Reading
from tests.chaos.wait_checks import children_run_once, signals_are_taken_once, sleeps_last
from tests.support.agents.chaos import Note, Plan

PARENT, CHILD, GRANDCHILD = ("t", "parent"), ("c", "child"), ("d", "grandchild")
PLAN = Plan(nap=0.5, signal=True, children=1, levels=2)


def sound() -> History:
    """A run that slept, took one of two signals, and had a child with a child; its last attempt replayed everything."""
    return History(
        seen=Seen(accepts=[Accept(PARENT, PLAN, 0.0, 0.1)], signals=[("t", "s1"), ("t", "s2")]),
        notes=[
            Note(1.0, *PARENT, 10, "nap"),
            Note(1.1, *PARENT, 11, "nap"),
            *(Note(2.0, *PARENT, fence, "awake", {"seconds": 0.5}) for fence in (12, 13)),
            *(Note(3.0, *PARENT, fence, "signal", {"id": "s1"}) for fence in (12, 13)),
            Note(4.0, *PARENT, 13, "children", {"runs": [list(CHILD)], "texts": ["done"]}),
        ],
        runs={
            PARENT: RunRow(PARENT, "", 1, RunStatus.COMPLETED, ended=9.0),
            CHILD: RunRow(CHILD, "", 1, RunStatus.COMPLETED, parent=PARENT, ended=8.0),
            GRANDCHILD: RunRow(GRANDCHILD, "", 1, RunStatus.COMPLETED, parent=CHILD, ended=7.0),
        },
        signals=[SignalRow("s1", "t", 1, "parent"), SignalRow("s2", "t", 2, None), SignalRow("other", "u", 3, "x")],
    )


def broken(history: History) -> list[tuple[str, Key | None]]:
    found = [check(Reading(history)) for check in (sleeps_last, signals_are_taken_once, children_run_once)]
    return [(violation.rule, violation.key) for each in found for violation in each]


def test_a_sound_history_has_no_violation() -> None:
    assert broken(sound()) == []


def test_a_cancelled_run_may_have_no_signal_and_fewer_children() -> None:
    history = sound()
    history.runs = {PARENT: replace(history.runs[PARENT], status=RunStatus.CANCELLED)}
    history.notes, history.signals[0] = history.notes[:4], replace(history.signals[0], run=None)
    assert broken(history) == []


def changed(key: Key, **changes: Any) -> Callable[[History], None]:
    def change(history: History) -> None:
        history.runs[key] = replace(history.runs[key], **changes)

    return change


def short_sleep(history: History) -> None:
    history.notes[2] = replace(history.notes[2], at=1.4)


def open_wait_of_an_ended_run(history: History) -> None:
    history.waits.append("sleep nap")


def lost_signal(history: History) -> None:
    del history.signals[1]


def two_signals_of_a_run(history: History) -> None:
    history.signals[1] = replace(history.signals[1], run="parent")


def later_signal_first(history: History) -> None:
    history.signals[0] = replace(history.signals[0], number=5)


def other_signal(history: History) -> None:
    history.notes[4] = replace(history.notes[4], data={"id": "s2"})


def no_signal(history: History) -> None:
    history.signals[0] = replace(history.signals[0], run=None)
    history.notes = [note for note in history.notes if note.what != "signal"]


def second_child(history: History) -> None:
    history.runs["e", "more"] = RunRow(("e", "more"), "", 1, RunStatus.COMPLETED, parent=PARENT, ended=1.0)


def second_grandchild(history: History) -> None:
    history.runs["e", "more"] = RunRow(("e", "more"), "", 1, RunStatus.COMPLETED, parent=CHILD, ended=1.0)


def child_of_nobody(history: History) -> None:
    history.notes[-1] = replace(history.notes[-1], data={"runs": [["x", "y"]], "texts": ["done"]})


def other_text(history: History) -> None:
    history.notes[-1] = replace(history.notes[-1], data={"runs": [list(CHILD)], "texts": [""]})


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        *(("K1", spoil) for spoil in (short_sleep, open_wait_of_an_ended_run)),
        *(("K2", spoil) for spoil in (lost_signal, two_signals_of_a_run, later_signal_first, other_signal, no_signal)),
        *(("K3", spoil) for spoil in (second_child, second_grandchild, child_of_nobody, other_text)),
        ("K3", changed(CHILD, status=RunStatus.SUSPENDED)),
        ("K3", changed(CHILD, status=RunStatus.CANCELLED)),
        ("K3", changed(CHILD, ended=9.5)),
        ("K3", changed(GRANDCHILD, status=RunStatus.QUEUED)),
        ("K3", changed(GRANDCHILD, parent=None)),
    ],
)
def test_a_broken_rule_is_found(rule: str, spoil: Callable[[History], None]) -> None:
    history = sound()
    spoil(history)
    assert {found for found, _ in broken(history)} == {rule}
