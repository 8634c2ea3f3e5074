"""The checker finds each broken rule in a hand-made history, and nothing in a sound one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from runyard.domain.states import RunStatus
from runyard.models import Message, ToolCallPart, ToolResultPart
from tests.chaos.checker import ENOUGH_PAUSES, violations
from tests.chaos.driver import Crew, Servers
from tests.chaos.history import Accept, Answer, Cancel, Fork, History, MessageRow, Probe, RequestRow, RunRow, Seen, Told
from tests.support.agents.chaos import Note, Plan, digest
from tests.support.fleet import Fleet

ONE, TWO, CANCELLED = ("t", "one"), ("t", "two"), ("t", "cancelled")
PLAN = Plan(steps=1)


def sound() -> History:
    """Two runs of one thread: the first was taken over once, approved, and forked after; the second completed; a third was
    cancelled after its question was stored."""
    path = [*_whole("one", "1"), *_whole("two", "2")]
    rows = [("1u", "one", 10), ("1c", "one", 10), ("1r", "one", 11), ("1f", "one", 11)]
    rows += [("2u", "two", 12), ("2c", "two", 12), ("2r", "two", 12), ("2f", "two", 12), ("3u", "cancelled", 13)]
    return History(
        seen=Seen(
            accepts=[Accept(ONE, PLAN, 0.0, 0.1, host=True), Accept(TWO, PLAN, 0.2, 0.3), Accept(CANCELLED, PLAN, 0.4, 0.5)],
            cancels=[Cancel(CANCELLED, 100.5, frozenset({"3u"}))],
            answers=[Answer("q", "q-ann", "ann"), Answer("q", "q-bob", "bob", "hitl_already_answered")],
            forks=[Fork("t", "one", "f", ["1u", "1c", "1r", "1f"])],
            probes=[Probe("t", "one", PLAN, digest(["1u", "1c", "1r", "1f"]), "stop", _whole("probe", "p"))],
            followed=[(TWO, _told(12, ["2u", "2c", "2r", "2f"], "run.completed"))],
        ),
        notes=[
            Note(1.0, *ONE, 10, "begin"),
            Note(1.1, *ONE, 10, "context", {"of": digest([])}),
            Note(1.2, *ONE, 10, "effect", {"call": "call-one-0"}),
            Note(2.0, *ONE, 11, "begin"),
            Note(2.1, *ONE, 11, "answer", {"call": "call-one-0", "reason": "ann"}),
            Note(2.2, *ONE, 11, "effect", {"call": "call-one-0"}),
            Note(2.5, *ONE, 11, "end"),
            Note(2.6, *ONE, 10, "end"),
            Note(3.0, *TWO, 12, "begin"),
            Note(3.1, *TWO, 12, "context", {"of": digest(["1u", "1c", "1r", "1f"])}),
            Note(3.2, *TWO, 12, "effect", {"call": "call-two-0"}),
            Note(3.5, *TWO, 12, "end"),
        ],
        runs={
            ONE: RunRow(ONE, "", 1, RunStatus.COMPLETED, fence=11, attempt=2, completion_seq=1),
            TWO: RunRow(TWO, "", 2, RunStatus.COMPLETED, fence=12, attempt=1, completion_seq=2),
            CANCELLED: RunRow(CANCELLED, "", 3, RunStatus.CANCELLED, fence=13, attempt=1),
        },
        messages={"t": [MessageRow("t", seq, id_, run, fence, 100.0) for seq, (id_, run, fence) in enumerate(rows, 1)]},
        paths={"t": path, "f": path[:4]},
        steps={(ONE, "call-one-0"): 11, (TWO, "call-two-0"): 12},
        attempts={(ONE, 10): "lost", (CANCELLED, 13): "cancelled"},
        requests=[RequestRow("q", ONE, "q-ann")],
        streams={
            ONE: [*_told(10, ["1u", "1c"]), Told("11-1", "run.rewound"), *_told(11, ["1r", "1f"], "run.completed")[1:]],
            TWO: _told(12, ["2u", "2c", "2r", "2f"], "run.completed"),
            CANCELLED: [*_told(13, ["3u"]), Told(None, "gap"), Told("14-1", "run.cancelled")],
        },
        host_rows={ONE},
        pauses=ENOUGH_PAUSES,
        stale_writes=1,
    )


def _whole(run: str, prefix: str) -> list[Message]:
    """The messages of a completed run."""
    asked = Message.user(PLAN.text(), id=f"{prefix}u", run_id=run)
    return [asked, _calls(run, f"{prefix}c"), _results(run, f"{prefix}r"), _final(run, f"{prefix}f")]


def _calls(run: str, id_: str) -> Message:
    return Message.assistant([ToolCallPart(id=f"call-{run}-0", name="effect")], id=id_, run_id=run, metadata={"mark": "call-0"})


def _results(run: str, id_: str) -> Message:
    return Message.tool(ToolResultPart(call_id=f"call-{run}-0"), id=id_, run_id=run, metadata={"mark": "result-0"})


def _final(run: str, id_: str) -> Message:
    return Message.assistant("done", id=id_, run_id=run, metadata={"mark": "final"})


def _told(fence: int, messages: list[str], end: str | None = None) -> list[Told]:
    told = [Told(f"{fence}-1", "run.started")]
    told += [Told(f"{fence}-{n}", "message.completed", message) for n, message in enumerate(messages, 2)]
    return [*told, Told(f"{fence}-{len(told) + 1}", end)] if end else told


def test_a_sound_history_has_no_violation() -> None:
    assert violations(sound()) == []
    assert violations(beside(sound())) == []


def test_a_worker_that_slept_may_begin_late_what_was_taken_from_it() -> None:
    history = sound()
    _note(history, 10, "begin", at=9.0)
    assert violations(history) == []


def lost(history: History) -> None:
    del history.runs[TWO]


def unfinished(history: History) -> None:
    history.runs[TWO] = replace(history.runs[TWO], status=RunStatus.QUEUED)


def host_row_without_run(history: History) -> None:
    history.host_rows.add(("t", "never"))


def run_without_host_row(history: History) -> None:
    history.host_rows.clear()


def falling_fence(history: History) -> None:
    _row(history, "2c", fence=11)


def mixed_runs(history: History) -> None:
    rows = history.messages["t"]
    rows.insert(5, rows.pop(3))


def unissued_fence(history: History) -> None:
    _row(history, "1c", fence=9)


def missing_attempt(history: History) -> None:
    del history.attempts[ONE, 10]


def overlap(history: History) -> None:
    _note(history, 12, "begin", at=2.4)


def tame_zombies(history: History) -> None:
    history.stale_writes = 0


def lost_message(history: History) -> None:
    del history.paths["t"][3]


def repeated_message(history: History) -> None:
    history.paths["t"].append(history.paths["t"][-1])


def message_of_a_cancelled_run(history: History) -> None:
    history.paths["t"].append(Message.user("x", id="3u", run_id="cancelled"))


def repeated_mark(history: History) -> None:
    history.paths["t"][3].metadata["mark"] = "result-0"


def foreign_context(history: History) -> None:
    _note(history, 12, "context", data={"of": digest(["1u"])})


def effect_after_its_record(history: History) -> None:
    history.steps[ONE, "call-one-0"] = 10


def effect_twice_in_an_attempt(history: History) -> None:
    history.notes.append(Note(3.3, *TWO, 12, "effect", {"call": "call-two-0"}))


def record_without_effect(history: History) -> None:
    history.steps[TWO, "call-two-1"] = 12


def started_out_of_order(history: History) -> None:
    history.runs[ONE], history.runs[TWO] = replace(history.runs[ONE], lane_seq=2), replace(history.runs[TWO], lane_seq=1)


def begun_out_of_order(history: History) -> None:
    history.notes[3], history.notes[8] = replace(history.notes[3], at=3.05), replace(history.notes[8], at=2.9)


def overtaken(history: History) -> None:
    history.seen.accepts[:2] = [replace(history.seen.accepts[0], sent=0.4, acked=0.5), history.seen.accepts[1]]


def wrong_fork(history: History) -> None:
    history.seen.forks[0].ids.append("2u")


def changed_fork(history: History) -> None:
    del history.paths["f"][0]


def probe_of_another_snapshot(history: History) -> None:
    history.seen.probes[0] = replace(history.seen.probes[0], shown=digest(["1u"]))


def probe_that_failed(history: History) -> None:
    history.seen.probes[0] = replace(history.seen.probes[0], stop_reason="error")


def stored_probe(history: History) -> None:
    history.messages["t"].append(MessageRow("t", 99, "pf", "probe", None, 100.0))


def beside(history: History) -> History:
    """A third run completed on a branch of its own, opened after the first one."""
    key = ("t", "beside")
    history.seen.accepts.append(Accept(key, PLAN, 0.0, 0.1, parallel=True))
    history.runs[key] = RunRow(key, "beside", 4, RunStatus.COMPLETED, fence=20, attempt=1, completion_seq=3, cutoff=1)
    path = _whole("beside", "b")
    history.messages["t"] += [MessageRow("t", n, m.id, "beside", 20, 100.0) for n, m in enumerate(path, 100)]
    history.branches[key] = [*history.paths["f"], *path]
    history.steps[key, "call-beside-0"] = 20
    history.notes += [
        Note(4.0, *key, 20, "begin"),
        Note(4.1, *key, 20, "context", {"of": digest(["1u", "1c", "1r", "1f"])}),
        Note(4.2, *key, 20, "effect", {"call": "call-beside-0"}),
        Note(4.5, *key, 20, "end"),
    ]
    return history


def branch_shows_another_run(history: History) -> None:
    beside(history).branches["t", "beside"].insert(4, history.paths["t"][4])


def branch_in_the_main_lane(history: History) -> None:
    beside(history)
    history.runs["t", "beside"] = replace(history.runs["t", "beside"], lane="")


def two_answers(history: History) -> None:
    history.seen.answers[1] = replace(history.seen.answers[1], refused=None)


def other_answer_applied(history: History) -> None:
    _note(history, 11, "answer", data={"call": "call-one-0", "reason": "bob"})


def dangling_call(history: History) -> None:
    history.paths["t"][2].content.clear()


def uncalled_result(history: History) -> None:
    history.paths["t"][5].content.clear()


def append_after_the_cancel(history: History) -> None:
    _row(history, "3u", at=101.0)


def more_than_at_the_cancel(history: History) -> None:
    history.seen.cancels[0] = replace(history.seen.cancels[0], messages=frozenset())


def cancel_undone(history: History) -> None:
    history.runs[CANCELLED] = replace(history.runs[CANCELLED], status=RunStatus.FAILED)


def silent_gap(history: History) -> None:
    del history.seen.followed[0][1][0]


def repeated_event(history: History) -> None:
    history.streams[TWO].insert(2, history.streams[TWO][1])


def two_terminal_events(history: History) -> None:
    history.streams[TWO].append(Told("12-7", "run.failed"))


def no_terminal_event(history: History) -> None:
    history.streams[TWO].pop()


def wrong_terminal_event(history: History) -> None:
    history.streams[TWO][-1] = Told("12-6", "run.failed")


def untold_message(history: History) -> None:
    history.streams[TWO][2] = Told("12-3", "tool.started")


def left_in_redis(history: History) -> None:
    history.leftovers.append("runyard:{0}:lock:1")


def complaint(history: History) -> None:
    history.seen.complaints.append("a client got RunConflictError")


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        *(("I1", spoil) for spoil in (lost, unfinished, host_row_without_run, run_without_host_row)),
        *(("I2", spoil) for spoil in (falling_fence, mixed_runs, unissued_fence, missing_attempt, overlap, tame_zombies)),
        *(("I3", spoil) for spoil in (lost_message, repeated_message, message_of_a_cancelled_run, repeated_mark)),
        *(("I3", spoil) for spoil in (effect_after_its_record, effect_twice_in_an_attempt, record_without_effect)),
        ("R7", foreign_context),
        *(("I4", spoil) for spoil in (started_out_of_order, begun_out_of_order, overtaken)),
        *(("I5", spoil) for spoil in (wrong_fork, changed_fork)),
        *(("F9", spoil) for spoil in (probe_of_another_snapshot, probe_that_failed, stored_probe)),
        *(("I3", spoil) for spoil in (branch_shows_another_run, branch_in_the_main_lane)),
        *(("I6", spoil) for spoil in (two_answers, other_answer_applied)),
        *(("I7", spoil) for spoil in (dangling_call, uncalled_result)),
        *(("I8", spoil) for spoil in (append_after_the_cancel, more_than_at_the_cancel, cancel_undone)),
        *(("I9", spoil) for spoil in (silent_gap, repeated_event, two_terminal_events, no_terminal_event)),
        *(("I9", spoil) for spoil in (wrong_terminal_event, untold_message)),
        ("H1", left_in_redis),
        ("unexpected", complaint),
    ],
)
def test_a_broken_rule_is_found(rule: str, spoil: Callable[[History], None]) -> None:
    history = sound()
    spoil(history)
    assert rule in {violation.rule for violation in violations(history)}


def _row(history: History, id_: str, **changes: object) -> None:
    rows = history.messages["t"]
    at = next(n for n, row in enumerate(rows) if row.id == id_)
    rows[at] = replace(rows[at], **changes)  # type: ignore[arg-type]


def _note(history: History, fence: int, what: str, **changes: object) -> None:
    at = next(n for n, note in enumerate(history.notes) if (note.fence, note.what) == (fence, what))
    history.notes[at] = replace(history.notes[at], **changes)  # type: ignore[arg-type]


def test_defects_are_told_from_what_faults_explain(tmp_path: Path) -> None:
    error = "ConnectionError('unexpected connection_lost() call')"
    lost = f"Future exception was never retrieved\nfuture: <Future finished exception={error}>"
    entries = [
        {"event": lost, "logger": "asyncio", "exception": error},
        {"event": "run_ended", "exception": "ValueError: as planned"},
        {"event": "closed", "logger": "asyncpg.pool", "exception": "ConnectionResetError"},
        {"event": "redis did not answer in time"},
        {"event": "Task exception was never retrieved", "logger": "asyncio", "exception": "KeyError: 'x'"},
    ]
    log = tmp_path / "workers.log"
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries) + "no JSON\n")
    [defect] = Crew(cast(Fleet, None), cast(Servers, None), log, []).defects()
    assert "KeyError" in defect
