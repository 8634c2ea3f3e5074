"""Job ids, request hashes, effects: the data of the ports."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from runyard.domain.derived_ids import digest
from runyard.errors import InvalidInputError
from runyard.models import Message, RetryPolicy, RunOptions, ToolResultPart
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, ThreadRequest
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.scheduling import MAIN_LANE, Effects, Job, OutsideEvent


def request(**fields: Any) -> AcceptRequest:
    return AcceptRequest(**({"thread_id": "t", "run_id": "r", "agent": "a", "input": Message.user("x", id="1")} | fields))


def differs(one: AcceptRequest, other: AcceptRequest) -> set[str]:
    left, right = one.request_hash, other.request_hash
    return {name for name in left | right if left.get(name) != right.get(name)}


def test_job_ids_name_the_run() -> None:
    job = Job(7, "r1")
    assert job.lane == MAIN_LANE and job.lane_key == "7" and job.id == "7:r1"
    assert job.ref == RunRef(7, "r1")


def test_lane_keys_hold_no_colon() -> None:
    """The lane's name is a part of Redis keys and of the job id, whatever the run is called."""
    keys = {Job(7, "r", lane=lane).lane_key for lane in ("a:b", "a", "b", "ü" * 255, "7")}
    assert len(keys) == 5 and not any(":" in key for key in keys)
    assert all(key.startswith("7.") for key in keys)


def test_lane_key_is_the_same_for_every_run_of_a_lane() -> None:
    assert Job(7, "one", lane="p").lane_key == Job(7, "two", lane="p", kind="fork", queue="q", priority="low").lane_key
    assert Job(7, "one", lane="p").lane_key != Job(8, "one", lane="p").lane_key


def test_attempts_name_their_run() -> None:
    assert AttemptToken(1, "r", 5).ref == RunRef(1, "r")


@pytest.mark.parametrize("end", ["", "é", "\ud800"])
def test_long_texts_count_to_their_last_character(end: str) -> None:
    """R2: a digest stands for a text of megabytes, wherever it is."""

    def hashed(text: str) -> dict[str, str]:
        message = Message.tool(ToolResultPart(call_id="c", content=[{"k": text}]))
        return AcceptRequest(thread_id="t", run_id="r", input=message.model_copy(update={"metadata": {"k": text}})).request_hash

    text = "x" * 200_000 + end
    assert hashed(text) == hashed(text) != hashed(text + "y")


def test_every_version_writes_the_same_hash() -> None:
    """R2: Postgres compares the digests as text, also with those that an older version stored. Their order counts."""
    fan = FanOut(messages=[Message.user("x")], max_parallel=2)
    fork = ForkRequest(src="t", new="n", fan=fan)
    options = RunOptions(parallel=True, expires_in=1)
    full = request(parent_id="00000000-0000-0000-0000-000000000001", options=options, fork=fork)
    assert list(full.request_hash) == ["kind", "agent", "message", "parent_id", "options", "fork", "messages", "fan"]
    assert full.request_hash["options"] == digest([True, "enqueue", 1.0]) != digest([True, "enqueue", 1])
    assert request(agent=None).request_hash == {
        "kind": "338054fac58814f6",
        "message": "6d5f136fcb0f431c",
        "options": "252e93d1cbbb7ec0",
    }


def test_what_a_client_records_is_not_part_of_the_hash() -> None:
    """R2: a repetition may come from another version of the app, and from another trace."""
    recorded = request()
    recorded.record(app_version="2", trace_context="00-1-2-00")
    assert (recorded.app_version, recorded.trace_context) == ("2", "00-1-2-00")
    assert recorded == request(input=recorded.input, app_version="2", trace_context="00-1-2-00")
    assert recorded.request_hash == request().request_hash


def test_the_same_request_has_the_same_hash() -> None:
    """R2: another object, other message ids, other delivery options."""
    again = request(input=Message.user("x", id="2"), priority="high", delay=5.0, metadata={"k": 1}, run_id="other", queue="q")
    assert differs(request(), again) == set()
    assert differs(request(), request(options=RunOptions(timeout=5, max_attempts=3, retry=RetryPolicy(factor=3)))) == set()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"agent": "b"}, {"agent"}),
        ({"input": Message.user("y")}, {"message"}),
        ({"input": None}, {"message"}),
        ({"input": Message.assistant("x")}, {"message"}),
        ({"input": Message.user("x", metadata={"a": 1})}, {"message"}),
        ({"parent_id": "018f0000-0000-7000-8000-000000000001"}, {"parent_id"}),
        ({"options": RunOptions(parallel=True)}, {"options"}),
        ({"options": RunOptions(multitask_strategy="reject")}, {"options"}),
        ({"options": RunOptions(expires_in=60)}, {"options"}),
    ],
)
def test_request_hash_changes_with_every_field_that_changes_the_outcome(fields: dict[str, Any], named: set[str]) -> None:
    """R2: a conflict names what differs."""
    assert differs(request(), request(**fields)) == named


def test_fork_jobs_differ_by_their_fork() -> None:
    fork = ForkRequest(src="t", new="c", cut=Cut(after_run_id="r1"))
    one = request(kind="fork", fork=fork, input=None)
    assert differs(one, request(kind="fork", fork=replace(fork, cut=Cut(after_run_id="r2")), input=None)) == {"fork"}
    assert "kind" in differs(one, request(input=None))


@pytest.mark.parametrize(
    "fields",
    [
        {"src": "other"},
        {"cut": Cut(after_run_id="r2")},
        {"cut": Cut(at_message_id="018f0000-0000-7000-8000-000000000001")},
        {"cut": Cut(after_run_id="r1", repair=True)},
        {"metadata": {}},
        {"title": "x"},
        {"tags": {"a": "b"}},
        {"agent": "z"},
        {"reset_usage": False},
    ],
)
def test_fork_hash(fields: dict[str, Any]) -> None:
    """F4: source, cut and options make the fork; the new id does not, for it is where the fork is looked up."""
    fork = ForkRequest(src="t", new="c", cut=Cut(after_run_id="r1"))
    assert replace(fork, **fields).fork_hash != fork.fork_hash
    assert replace(fork, new="d").fork_hash == fork.fork_hash
    assert replace(fork, tags={}).fork_hash == fork.fork_hash


def test_fork_hash_does_not_depend_on_the_order_of_keys() -> None:
    one = ForkRequest(src="t", new="c", metadata={"a": 1, "b": 2}, tags={"x": "1", "y": "2"})
    other = ForkRequest(src="t", new="c", metadata={"b": 2, "a": 1}, tags={"y": "2", "x": "1"})
    assert one.fork_hash == other.fork_hash


def test_effects_add_up() -> None:
    effects = Effects()
    assert not effects
    effects += Effects(jobs=[Job(1, "r")])
    effects += Effects(events=[OutsideEvent(RunRef(1, "r"), "t", "1-1", "run.dead")], cancels=[RunRef(1, "r")])
    assert effects and (len(effects.jobs), len(effects.events), len(effects.cancels)) == (1, 1, 1)


BAD_IDS: Any = ["", "x" * 256, "a\n", "a\0", ".", "..", 7]
CUT = Cut(at_message_id="018F0000-0000-7000-8000-000000000001")


@pytest.mark.parametrize("bad", [*BAD_IDS, None])
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda bad: AcceptRequest(thread_id=bad, run_id="r"), "thread_id"),
        (lambda bad: AcceptRequest(thread_id="t", run_id=bad), "run_id"),
        (lambda bad: ForkRequest(src=bad, new="c"), "src"),
        (lambda bad: ForkRequest(src="t", new=bad, cut=CUT), "new"),
        (lambda bad: ThreadRequest(thread_id=bad), "thread_id"),
    ],
)
def test_requests_check_their_ids(make: Callable[[Any], object], field: str, bad: Any) -> None:
    """Whoever makes them: the client, the HTTP API, the caller of a store."""
    with pytest.raises(InvalidInputError) as refused:
        make(bad)
    assert refused.value.details == {"field": field}


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda bad: request(agent=bad), "agent"),
        (lambda bad: request(queue=bad), "queue"),
        (lambda bad: request(parent_id=bad), "parent_id"),
        (lambda bad: ForkRequest(src="t", new="c", agent=bad), "agent"),
        (lambda bad: ThreadRequest(thread_id="t", agent=bad), "agent"),
        (lambda bad: FanOut(messages=[], max_parallel=1, judge=bad), "judge"),
        (lambda bad: Cut(at_message_id=bad), "at_message_id"),
    ],
)
def test_requests_check_names_that_may_be_left_open(make: Callable[[Any], object], field: str, bad: Any) -> None:
    make(None)
    with pytest.raises(InvalidInputError) as refused:
        make(bad)
    assert refused.value.details == {"field": field}


def test_a_parent_is_a_uuid() -> None:
    """B1: an id that is no UUID names no message."""
    with pytest.raises(InvalidInputError, match="parent_id must be a UUID"):
        request(parent_id="m1")
    assert request(parent_id=CUT.at_message_id).parent_id == CUT.at_message_id
