"""The parts of the Redis backend that need no server."""

import pytest
from arq.jobs import deserialize_job_raw

from runyard.errors import InvalidInputError
from runyard.models import Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Job
from runyard_backends.redis import RedisServer
from runyard_backends.redis.events import EventId
from runyard_backends.redis.job_codec import UnknownEnvelopeError, decode, encode, packb, unpackb
from runyard_backends.redis.key_names import Keys
from runyard_backends.redis.pubsub import MAX_UNREAD_BYTES, Subscription


def event(id_: str, type_: str = "message.delta", run: str = "r") -> Event:
    return Event(id=id_, type=type_, thread_id="t", run_id=run)


def test_a_job_survives_arqs_format() -> None:
    job = Job(7, "run:1|ü", lane="side", kind="fork_once", queue="gpu", priority="high")
    assert decode(encode(job)) == job
    function, args, kwargs, _, _ = deserialize_job_raw(encode(job), deserializer=unpackb)
    assert (function, args) == ("fork_once", []) and kwargs["v"] == 1


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", packb([1]), packb({"f": "prompt", "a": (), "k": {"v": 2}, "t": None, "et": 0}), packb({"k": {}})]
)
def test_job_of_another_version_is_recognised(payload: bytes) -> None:
    with pytest.raises(UnknownEnvelopeError):
        decode(payload)


def test_all_keys_of_a_lane_share_one_slot() -> None:
    keys = Keys("x", shards=4)
    assert {keys.shard(str(lane)) for lane in range(100)} == {0, 1, 2, 3}
    ref = RunRef(5, "r{9}")
    assert keys.events(ref).startswith(keys.prefix(keys.shard("5")))


@pytest.mark.parametrize("text", ["", "-", "1", "1-", "-1", "1-2-3", "a-1", "1-²", "9" * 30 + "-1", " 1-1"])
def test_an_id_that_was_never_issued_is_none(text: str) -> None:
    assert EventId.parse(text) is None


def test_event_ids_prove_what_lies_between() -> None:
    """E1: only the next number of the same attempt, or the first of a later one, follows without a gap."""
    assert EventId(3, 2).follows(EventId(3, 1)) and EventId(9, 1).follows(EventId(3, 7)) and EventId(3, 1).follows(None)
    assert (
        not EventId(3, 3).follows(EventId(3, 1))
        and not EventId(9, 2).follows(EventId(3, 7))
        and not EventId(3, 2).follows(None)
    )


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        RedisServer("http://localhost")


async def test_what_a_subscription_holds_is_bounded_in_bytes() -> None:
    """E3: its reader is told what it does not get, and gets what comes from then on; one large message is held alone."""
    subscription = Subscription(limit=1000)
    for sizes, held in (
        ([MAX_UNREAD_BYTES - 1, 1], True),
        ([MAX_UNREAD_BYTES, 1], False),
        ([MAX_UNREAD_BYTES + 1], True),
        ([MAX_UNREAD_BYTES + 1, 1], False),
    ):
        messages = [b"x" * size for size in sizes]
        for message in messages:
            subscription.put(message)
        assert [await subscription.get() for _ in (messages if held else [None])] == (messages if held else [None])
