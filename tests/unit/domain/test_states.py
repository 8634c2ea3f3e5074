"""The transition table, as data."""

import pytest

from runyard.domain.states import ENDED, LIVE, TRANSITIONS, RunStatus, Verb, targets


def test_every_status_is_live_or_ended() -> None:
    assert set(RunStatus) == LIVE | ENDED and not LIVE & ENDED


@pytest.mark.parametrize("status", sorted(ENDED))
def test_a_finished_run_is_not_altered(status: RunStatus) -> None:
    """R18: only a redrive of what failed or died leads out of an end."""
    verbs = {verb for verb in Verb if targets(status, verb)}
    assert verbs == ({Verb.REDRIVE} if status in (RunStatus.FAILED, RunStatus.DEAD) else set())


def test_only_accept_makes_a_run() -> None:
    assert [verb for verb in Verb if targets(None, verb)] == [Verb.ACCEPT]
    assert targets(None, Verb.ACCEPT) == {RunStatus.QUEUED}


def test_every_status_can_be_reached_and_every_live_one_left() -> None:
    """I1: accepted leads to an end."""
    reached = {RunStatus.QUEUED}
    while more := {to for (status, _), tos in TRANSITIONS.items() if status in reached for to in tos} - reached:
        reached |= more
    assert reached == set(RunStatus)
    for status in LIVE:
        assert any(ENDED & targets(status, verb) for verb in Verb)


def test_cancel_wins_over_every_end_of_an_attempt() -> None:
    """I8."""
    for verb in (Verb.COMPLETE, Verb.FAIL, Verb.SUSPEND, Verb.RELEASE):
        assert RunStatus.CANCELLED in targets(RunStatus.RUNNING, verb)


def test_only_a_running_run_completes() -> None:
    assert {status for (status, _), tos in TRANSITIONS.items() if RunStatus.COMPLETED in tos} == {RunStatus.RUNNING}


def test_missing_pairs_are_refused() -> None:
    assert targets(RunStatus.SUSPENDED, Verb.CLAIM) == frozenset()
    assert targets(RunStatus.QUEUED, Verb.APPEND) == frozenset()


def test_statuses_and_verbs_are_their_words() -> None:
    """R18: the same word on the wire, in SQL, in metrics."""
    assert " ".join(RunStatus) == "queued running suspended completed failed cancelled dead"
    assert " ".join(Verb) == "accept admit claim append suspend respond complete fail release bury expire cancel redrive"
