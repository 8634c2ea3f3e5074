"""The parts of the Redis backend that need no server."""

from collections import Counter

import pytest
from arq.jobs import deserialize_job_raw
from redis.crc import key_slot

from runyard.errors import InvalidInputError
from runyard.models import Event
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Job
from runyard_backends.redis import redis_servers
from runyard_backends.redis.cluster import SHARDS
from runyard_backends.redis.connecting import pool
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


def test_all_keys_of_a_thread_s_streams_share_one_slot() -> None:
    keys = Keys("x", shards=4)
    assert {keys.shard(thread_key) for thread_key in range(100)} == {0, 1, 2, 3}
    ref = RunRef(5, "r{9}")
    assert keys.events(ref).startswith(keys.prefix(keys.shard(5)))
    assert keys.shard_of(keys.events(ref)) == keys.shard_of(keys.begins(5)) == keys.shard(5)


def test_the_shards_of_a_cluster_are_spread_over_its_servers() -> None:
    """Of the streams, each of three servers has a quarter at least; all of the schedule is in one slot."""
    keys = Keys(shards=SHARDS)
    places = Counter(key_slot(keys.prefix(shard).encode()) * 3 // 16384 for shard in range(SHARDS))
    assert len(places) == 3 and min(places.values()) * 4 >= SHARDS, places
    slots = {
        key_slot(key.encode())
        for key in (keys.prefix(0), keys.wake("q"), keys.end_wait("w"), keys.ping(0), keys.cancel_channel)
    }
    assert len(slots) == 1


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


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://localhost", "not a Redis URL"),
        ("redis+sentinel://:secret@one:26379,two:26379", "no name of a primary"),
        ("redis+sentinel://:secret@one:26379,:1/main", "not a Redis URL"),
        ("redis+sentinel://:secret@one:port/main", "not a Redis URL"),
        ("redis+sentinel://:secret@one/main/secret", "not a Redis URL"),
        ("redis+cluster://:secret@one:6379,two:6379/3", "database 0 only"),
        ("redis+cluster://:secret@one:6379,", "not a Redis URL"),
        ("redis://:secret@localhost?colour=secret", "unknown: .*colour"),
        ("rediss://:secret@localhost?ssl_ca_certs=/none.pem", "ssl_ca_certs /none.pem"),
        ("rediss+cluster://:secret@localhost?ssl_cert_reqs=perhaps", "perhaps"),
        ("redis://:secret@localhost?protocol=secret", "not a Redis URL"),
        ("redis://:secret@localhost?connection_class=secret", "not a Redis URL"),
        ("redis://:secret@[::1", "not a Redis URL"),
        ("redis+cluster://:secret@[::1", "not a Redis URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str, says: str) -> None:
    """The error says why, and shows no password."""
    with pytest.raises(InvalidInputError, match=says) as refused:
        redis_servers(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "checked"), [("", True), ("?ssl_check_hostname=false", False), ("?ssl_cert_reqs=none", False)]
)
def test_the_certificate_must_be_that_of_the_host(given: str, checked: bool) -> None:
    """By default: the driver alone would accept the certificate of any other host."""
    assert pool(f"rediss://localhost{given}", 1.0, "test").connection_kwargs["ssl_check_hostname"] is checked


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
