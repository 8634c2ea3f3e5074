"""The checker of a history. Each function checks one rule and yields the violations. No function does I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from runyard.domain.states import ENDED, RunStatus
from runyard.execution.steps import CHILD_STEP
from runyard.models import Message
from tests.chaos.history import Accept, History, Key
from tests.chaos.reading import Reading, Violation
from tests.chaos.wait_checks import children_run_once, signals_are_taken_once, sleeps_last
from tests.support.agents.chaos import digest
from tests.support.event_streams import end_faults, order_faults

ENOUGH_PAUSES: Final = 20
"""Number of paused workers from which one of them must have tried to write after its pause. Usually the reply to its next
heartbeat comes first, and stops its attempts."""
TAKEN: Final = frozenset({"lost", "cancelled", "dead"})
"""Ends of an attempt that other processes can cause while its agent still runs."""


def accepted_runs_end(read: Reading) -> Iterator[Violation]:
    """I1: an accepted run ends or waits for a human. A host's run exists if and only if the row of its transaction exists."""
    for key in read.accepts:
        run = read.history.runs.get(key)
        if run is None:
            yield Violation("I1", "accepted and gone", key)
        elif run.status not in ENDED and run.status is not RunStatus.SUSPENDED:
            yield Violation("I1", f"accepted and still {run.status}", key)
    for key in read.history.host_rows - read.history.runs.keys():
        yield Violation("I1", "the host's transaction committed without its run", key)
    for key, accept in read.accepts.items():
        if accept.host and key not in read.history.host_rows:
            yield Violation("I1", "the run committed without the host's transaction", key)


def one_writer_per_lane(read: Reading) -> Iterator[Violation]:
    """I2: along a lane the fences never decrease and the runs do not mix. Each fence that wrote belongs to an attempt."""
    for (thread, _), runs in read.lanes.items():
        members = {run.key[1] for run in runs}
        rows = [row for row in read.history.messages.get(thread, []) if row.run in members]
        ended: set[str] = set()
        for before, after in pairwise(rows):
            if before.fence and after.fence and after.fence < before.fence:
                yield Violation("I2", f"fence {after.fence} wrote after {before.fence}", (thread, after.run))
            if after.run != before.run:
                ended.add(before.run)
            if after.run in ended:
                yield Violation("I2", f"wrote after {before.run} of its lane had begun", (thread, after.run))
    issued: defaultdict[Key, set[int]] = defaultdict(set)
    for key, fence in read.history.attempts:
        issued[key].add(fence)
    for run in read.history.runs.values():
        fences = issued[run.key] | ({run.fence} if run.fence else set())
        if len(fences) != run.attempt:
            yield Violation("I2", f"{run.attempt} attempts, but fences {sorted(fences)}", run.key)
        for row in read.messages.get(run.key, []):
            if row.fence is not None and row.fence not in fences:
                yield Violation("I2", f"message {row.id} was written under fence {row.fence}, which no attempt held", run.key)


def attempts_do_not_overlap(read: Reading) -> Iterator[Violation]:
    """I2: two attempts of a lane never execute code at the same time, unless the earlier one was taken over."""
    begins = {((note.thread, note.run), note.fence): note.at for note in read.notes.get("begin", [])}
    ends = {((note.thread, note.run), note.fence): note.at for note in read.notes.get("end", [])}
    lane_of = {run.key: (run.key[0], run.lane) for run in read.history.runs.values()}
    lanes: defaultdict[tuple[str, str | None], list[tuple[int, Key]]] = defaultdict(list)
    for key, fence in begins:
        if key in lane_of:
            lanes[lane_of[key]].append((fence, key))
    for attempts in lanes.values():
        for (fence, key), (later, other) in pairwise(sorted(attempts)):
            end, begin = ends.get((key, fence)), begins[other, later]
            if read.history.attempts.get((key, fence), "completed") not in TAKEN and (end is None or end > begin):
                yield Violation("I2", f"attempt {later} of {other[1]} began before attempt {fence} had ended", key)


def zombies_are_refused(read: Reading) -> Iterator[Violation]:
    """I2: workers that were paused for longer than the death limit tried to write, and their writes were refused."""
    if read.history.pauses >= ENOUGH_PAUSES and not read.history.stale_writes:
        yield Violation("I2", f"{read.history.pauses} workers were paused, and no stale write was refused")


def transcripts_are_whole(read: Reading) -> Iterator[Violation]:
    """I3: a thread shows each message of each counted run once, and no others. A completed run has all its messages."""
    for thread, path in read.history.paths.items():
        expected = read.bases.get(thread, []) + read.counted(thread, lambda run: True)
        ids = [message.id for message in path]
        if ids != expected:
            yield Violation("I3", f"thread {thread} shows {_difference(expected, ids)}", (thread, ""))
    for key, path in read.history.branches.items():
        expected = read.snapshot(key[0], read.history.runs[key].cutoff or 0) + [row.id for row in read.messages[key]]
        ids = [message.id for message in path]
        if ids != expected:
            yield Violation("I3", f"a branch shows {_difference(expected, ids)}", key)
    for key, accept in read.accepts.items():
        run = read.history.runs.get(key)
        if run is None or run.status is not RunStatus.COMPLETED:
            continue
        if run.parallel is not accept.parallel:
            yield Violation("I3", f"a completed run was in lane {run.lane!r}", key)
        marks = [message.metadata.get("mark") for message in _own(read, key)]
        if marks != [None, *accept.plan.marks()]:
            yield Violation("I3", f"a completed run said {marks}", key)


def contexts_are_exact(read: Reading) -> Iterator[Violation]:
    """R7: each attempt saw the messages that counted before its run, and no others."""
    for note in read.notes.get("context", []):
        run = read.history.runs.get((note.thread, note.run))
        if run is None or run.lane_seq is None:
            continue
        if run.parallel:
            before = read.snapshot(note.thread, run.cutoff or 0)
        else:
            own = read.counted(note.thread, lambda other, at=run.lane_seq: (other.lane_seq or 0) < at)  # type: ignore[misc]
            before = read.bases.get(note.thread, []) + own
        if digest(before) != note.data["of"]:
            yield Violation("R7", f"attempt {note.fence} saw another history than what counted before", run.key)


def effects_happen_once(read: Reading) -> Iterator[Violation]:
    """I3: a recorded step is not repeated. Another step is repeated at most once per attempt that died before the record."""
    happened: defaultdict[tuple[Key, str], list[int]] = defaultdict(list)
    for note in read.notes.get("effect", []):
        happened[(note.thread, note.run), note.data["call"]].append(note.fence)
    for (key, call), fences in happened.items():
        recorded = read.history.steps.get((key, call))
        if len(set(fences)) < len(fences):
            yield Violation("I3", f"step {call} took effect twice in one attempt: {fences}", key)
        if recorded is not None and max(fences) > recorded:
            yield Violation("I3", f"step {call} was recorded under fence {recorded} and took effect under {fences}", key)
    for (key, call), recorded in read.history.steps.items():
        if recorded not in happened[key, call] and not call.startswith(CHILD_STEP):
            yield Violation("I3", f"step {call} was recorded under fence {recorded} without taking effect", key)


def starts_are_in_order(read: Reading) -> Iterator[Violation]:
    """I4: runs of a lane start in the order of admission, and are admitted in the order in which they were acknowledged.

    The beginning of an agent whose attempt was taken over proves nothing, because its worker may have been paused since the
    claim.
    """
    started: dict[Key, float] = {}
    for note in read.notes.get("begin", []):
        key = (note.thread, note.run)
        if read.history.attempts.get((key, note.fence)) not in TAKEN:
            started.setdefault(key, note.at)
    for runs in read.lanes.values():
        first = [(run.key, rows[0].fence) for run in runs if (rows := read.messages.get(run.key)) and rows[0].fence]
        for (one, fence), (two, later) in pairwise(first):
            if fence is not None and later is not None and fence > later:
                yield Violation("I4", f"started before {one[1]}, which was admitted earlier", two)
        begun = [run.key for run in runs if run.key in started]
        for one, two in pairwise(begun):
            if started[one] > started[two]:
                yield Violation("I4", f"its agent began before that of {one[1]}, which was admitted earlier", two)
        yield from _overtakings([read.accepts[run.key] for run in runs if run.key in read.accepts])


def _overtakings(admitted: Sequence[Accept]) -> Iterator[Violation]:
    """Yield the runs that are ahead of a run that was acknowledged before they were sent. ``admitted``: the runs of a lane."""
    earliest_ack = float("inf")
    for accept in reversed([accept for accept in admitted if not accept.late]):
        if accept.sent > earliest_ack:
            yield Violation("I4", "was admitted before a run that had been acknowledged earlier", accept.key)
        earliest_ack = min(earliest_ack, accept.acked)


def forks_equal_their_snapshots(read: Reading) -> Iterator[Violation]:
    """I5: a fork shows the messages that its source's rows prove for the cut, directly after the fork and at the end."""
    for fork in read.history.seen.forks:
        expected = read.bases[fork.new]
        now = [message.id for message in read.history.paths[fork.new]][: len(expected)]
        for when, ids in (("at once", fork.ids), ("at the end", now)):
            if ids != expected:
                yield Violation("I5", f"fork {fork.new} showed {when} {_difference(expected, ids)}", (fork.source, fork.after))


def probes_leave_nothing(read: Reading) -> Iterator[Violation]:
    """F9, F11: a probe sees the snapshot of its cut and ends in spite of all faults. No thread has a message of the probe."""
    stored = {row.id for rows in read.history.messages.values() for row in rows}
    for probe in read.history.seen.probes:
        key = (probe.source, probe.after)
        marks = [message.metadata.get("mark") for message in probe.messages]
        if probe.stop_reason != "stop" or marks != [None, *probe.plan.marks()]:
            yield Violation("F9", f"a probe stopped with {probe.stop_reason} and said {marks}", key)
        elif probe.shown != digest(read.snapshot(probe.source, read.history.runs[key].completion_seq or 0)):
            yield Violation("F9", "a probe was shown another history than the snapshot", key)
        if kept := [message.id for message in probe.messages if message.id in stored]:
            yield Violation("F9", f"a probe's messages {kept} were stored", key)


def answers_are_applied_once(read: Reading) -> Iterator[Violation]:
    """I6: one of several answers is acknowledged. This answer is stored, and every attempt uses it."""
    acknowledged: defaultdict[str, set[str]] = defaultdict(set)
    for answer in read.history.seen.answers:
        if answer.refused is None:
            acknowledged[answer.request].add(answer.response)
    reasons = {answer.response: answer.reason for answer in read.history.seen.answers}
    acted: defaultdict[Key, set[str]] = defaultdict(set)
    for note in read.notes.get("answer", []):
        acted[note.thread, note.run].add(note.data["reason"])
    for request in read.history.requests:
        told = acknowledged[request.id]
        if len(told) > 1 or (told and told != {request.response}):
            yield Violation("I6", f"acknowledged {sorted(told)}, stored {request.response}", request.key)
        on = acted[request.key]
        if on and on != {reasons.get(request.response or "")}:
            yield Violation("I6", f"acted on {sorted(on)}, stored {request.response}", request.key)


def tool_cycles_are_closed(read: Reading) -> Iterator[Violation]:
    """I7: in the counted messages, each call is directly followed by exactly its results."""
    branches = [(key[0], path) for key, path in read.history.branches.items()]
    for thread, path in [*read.history.paths.items(), *branches]:
        for message, after in pairwise([*path, None]):
            assert message is not None
            calls = sorted(call.id for call in message.tool_calls)
            results = sorted(result.call_id for result in after.tool_results) if after is not None else []
            if calls != results:
                yield Violation("I7", f"calls {calls} are followed by results {results}", (thread, message.run_id or ""))


def cancelled_runs_are_silent(read: Reading) -> Iterator[Violation]:
    """I8: after an acknowledged cancel the run ends cancelled and its attempts store nothing more."""
    for cancel in read.history.seen.cancels:
        run = read.history.runs[cancel.key]
        if run.status is not RunStatus.CANCELLED:
            yield Violation("I8", f"a cancel was acknowledged, and the run is {run.status}", cancel.key)
        for row in read.messages.get(cancel.key, []):
            if row.fence is not None and (row.at > cancel.acked or row.id not in cancel.messages):
                yield Violation("I8", f"message {row.id} was stored after the cancel was acknowledged", cancel.key)


def streams_have_no_silent_gap(read: Reading) -> Iterator[Violation]:
    """I9, E1, E2: ids grow, gaps announce all holes, the last event is the terminal one, each stored message has one event."""
    for key, told in [*read.history.seen.followed, *read.history.streams.items()]:
        for what in (*order_faults(told), *end_faults(told)):
            yield Violation("I9", what, key)
        run = read.history.runs.get(key)
        if run is not None and told and told[-1].type != f"run.{run.status}":
            yield Violation("I9", f"the stream ends with {told[-1].type}, the run is {run.status}", key)
        stored = [row.id for row in read.messages.get(key, []) if row.fence is not None]
        said = [event.message for event in told if event.message is not None]
        if sorted(said) != sorted(stored):
            yield Violation("I9", f"of the stored messages the stream told {_difference(stored, said)}", key)


def nothing_is_left_in_redis(read: Reading) -> Iterator[Violation]:
    """H1: Redis has no scheduling key of a run that ended or waits for a human."""
    for name in read.history.leftovers:
        yield Violation("H1", f"Redis still holds {name}")


def nobody_complains(read: Reading) -> Iterator[Violation]:
    """The faults explain each error of a client, each end of a worker and each logged traceback."""
    for what in read.history.seen.complaints:
        yield Violation("unexpected", what)


CHECKS: Final = (
    accepted_runs_end,
    one_writer_per_lane,
    attempts_do_not_overlap,
    zombies_are_refused,
    transcripts_are_whole,
    contexts_are_exact,
    effects_happen_once,
    starts_are_in_order,
    forks_equal_their_snapshots,
    probes_leave_nothing,
    answers_are_applied_once,
    tool_cycles_are_closed,
    cancelled_runs_are_silent,
    streams_have_no_silent_gap,
    sleeps_last,
    signals_are_taken_once,
    children_run_once,
    nothing_is_left_in_redis,
    nobody_complains,
)


def violations(history: History) -> list[Violation]:
    """Return all violations in the history."""
    read = Reading(history)
    return [violation for check in CHECKS for violation in check(read)]


def _own(read: Reading, key: Key) -> list[Message]:
    path = read.history.branches.get(key) or read.history.paths.get(key[0], [])
    return [message for message in path if message.run_id == key[1]]


def _difference(expected: Iterable[str], got: Sequence[str]) -> str:
    wanted = [*expected]
    missing, more = [x for x in wanted if x not in got], [x for x in got if x not in wanted]
    return f"{len(got)} of {len(wanted)} messages: missing {missing[:5]}, too many {more[:5]}"
