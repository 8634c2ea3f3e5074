"""The report of a run of chaos, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from runyard.domain.states import RunStatus
from tests.chaos.driver import Report
from tests.chaos.faults import counts
from tests.chaos.history import History, Key, Told

SHOWN: Final = 12
"""Number of violations that are shown in words. The others are counted."""


def table(report: Report) -> str:
    """Return the figures, one per line."""
    history, struck = report.history, counts(report.struck)
    statuses = Counter(run.status for run in history.runs.values())
    rules = Counter(violation.rule for violation in report.violations)
    effects = Counter((note.thread, note.run, note.data["call"]) for note in history.notes if note.what == "effect")
    rows = {
        "seed": report.seed,
        "seconds of chaos": f"{report.duration:g}",
        "seconds to settle": f"{report.settled:.1f}",
        "runs": len(history.runs),
        "ended as": ", ".join(f"{status} {count}" for status, count in sorted(statuses.items())),
        "worker kills": struck["kill"],
        "SIGSTOPs": struck["pause"],
        "rolling restarts": struck["replace"],
        "Redis losses": struck["flush"] + struck["empty"],
        "Postgres restarts": struck["crash"],
        "Redis failovers": struck["redis_failover"],
        "Postgres failovers": struck["postgres_failover"],
        "mass disconnects": struck["disconnect"],
        "wire faults": struck["wire"],
        "forks": len(history.seen.forks),
        "probes": len(history.seen.probes),
        "cancels": len(history.seen.cancels),
        "sleeps": len({(note.thread, note.run) for note in history.notes if note.what == "awake"}),
        "signals taken": sum(signal.run is not None for signal in history.signals),
        "children": sum(run.parent is not None for run in history.runs.values()),
        "live readers": len(history.seen.followed),
        "lost": rules["I1"],
        "duplicated effects": rules["I3"],
        "effects repeated in doubt": sum(count - 1 for count in effects.values()),
        "order violations": rules["I4"],
        "refused stale writes": report.totals["runyard_stale_writes_total"],
        "takeovers": report.totals["runyard_takeovers_total"],
        "rescues": report.totals["runyard_rescues_total"],
        "dead": statuses[RunStatus.DEAD],
        "violations": ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items())) or 0,
    }
    return "\n".join(f"{name:<26}{value}" for name, value in rows.items())


def failure(report: Report) -> str:
    """Return the violations, the faults, and the history of the first run with a violation."""
    lines = [f"\nseed {report.seed}, {len(report.violations)} violations:"]
    lines += [f"  {one.rule}: {one.what} {one.key or ''}" for one in report.violations[:SHOWN]]
    lines += ["\nfaults:", *(f"  {fault}" for fault in report.struck)]
    key = next((one.key for one in report.violations if one.key is not None), None)
    if key is not None:
        lines += [f"\nthe story of {key}:", *(f"  {line}" for line in story(report.history, key))]
    return "\n".join(lines)


def story(history: History, key: Key) -> list[str]:
    """Return all known facts about one run."""
    thread, run = key
    row = history.runs.get(key)
    lines = [str(row)]
    lines += [str(accept) for accept in history.seen.accepts if accept.key == key]
    lines += [str(cancel) for cancel in history.seen.cancels if cancel.key == key]
    lines += _attempts(history, key)
    lines += [str(message) for message in history.messages.get(thread, []) if message.run == run]
    lines += [f"step {call} recorded under {fence}" for (one, call), fence in history.steps.items() if one == key]
    lines += [f"child {run}" for run in history.runs.values() if run.parent == key]
    lines += [f"signal {signal}" for signal in history.signals if (signal.thread, signal.run) == key]
    lines += [f"request {request}" for request in history.requests if request.key == key]
    lines += [f"events {_line(history.streams.get(key, []))}"]
    lines += [f"followed {_line(said)}" for one, said in history.seen.followed if one == key]
    if row is not None and row.lane_seq is not None:
        lane = sorted(
            (other for other in history.runs.values() if other.key[0] == thread and other.lane == row.lane),
            key=lambda other: other.lane_seq or 0,
        )
        place = lane.index(row)
        for other in lane[max(0, place - 1) : place + 2]:
            if other is not row:
                lines += [f"beside it in the lane: {other}", *_attempts(history, other.key)]
    return lines


def _attempts(history: History, key: Key) -> list[str]:
    """Return the attempts of a run that did not complete it, and the notes of its agents."""
    ended = [f"attempt {fence}: {outcome}" for (one, fence), outcome in sorted(history.attempts.items()) if one == key]
    return ended + [str(note) for note in history.notes if (note.thread, note.run) == key]


def _line(told: Sequence[Told]) -> str:
    return " ".join(f"{event.id}:{event.type}" for event in told)
