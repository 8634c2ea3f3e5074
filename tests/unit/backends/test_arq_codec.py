"""Tests of jobs and results in arq's format, without a server."""

from __future__ import annotations

import asyncio
import pickle
import tracemalloc
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from arq.jobs import SerializationError, deserialize_result, serialize_job
from hypothesis import given
from hypothesis import strategies as st

from runyard.domain.size_limits import MAX_NESTING
from runyard.errors import ConfigurationError, InvalidInputError, RunConflictError
from runyard.ports.commands import AcceptRequest
from runyard.support.settings import Settings
from runyard_backends.redis import arq_codec
from runyard_backends.redis.arq_codec import ArqJob, JobOutcome
from runyard_backends.redis.arq_queue import ArqQueue
from runyard_backends.redis.arq_requests import JobTerms, request_of
from runyard_backends.redis.connection import RedisServer
from runyard_backends.redis.msgpack_bounds import MAX_JOB_NESTING, MAX_JOB_VALUES, count_values

TERMS = JobTerms("r1", datetime(2030, 1, 1, tzinfo=UTC), 60.0)


def test_a_job_of_arqs_client_is_decoded() -> None:
    data = serialize_job("prompt", ("t", "m"), {"agent": "a"}, 3, 5, serializer=msgpack.packb)
    assert arq_codec.decode_job(data) == ArqJob("prompt", ["t", "m"], {"agent": "a"}, 3, 5)


@pytest.mark.parametrize("protocol", range(6))
def test_no_pickle_is_decoded(protocol: int) -> None:
    with pytest.raises(InvalidInputError, match="job_serializer"):
        arq_codec.decode_job(pickle.dumps({"f": "prompt"}, protocol=protocol))


def with_message(message: bytes) -> bytes:
    """Return a job whose message is the msgpack ``message``."""
    return b"\x85\xa1t\xc0\xa1f\xa6prompt\xa1a\x92\xa1t" + message + b"\xa1k\x80\xa2et\xcf" + (1).to_bytes(8, "big")


def array(members: int, member: bytes) -> bytes:
    return b"\xdd" + members.to_bytes(4, "big") + member * members


MANY = 2**20
HOSTILE = {
    "nil": array(MANY, b"\xc0"),
    "arrays": array(MANY, b"\x90"),
    "arrays of one": array(MANY, b"\x91\xc0"),
    "maps": array(MANY, b"\x80"),
    "names": b"\xdf" + MANY.to_bytes(4, "big") + b"\xa0\xc0" * MANY,
    "ext": array(MANY, b"\xd4\x05a"),
    "times": array(MANY, b"\xd6\xff\x00\x00\x00\x01"),
    "nested": b"\x91" * MANY + b"\xc0",
    "nested maps": b"\x81\xa0" * MANY + b"\xc0",
    "wide and deep": array(300, array(300, b"\x91\x90")),
    "promised": b"\xdd\xff\xff\xff\xff",
    "promised maps": b"\xdf\xff\xff\xff\xff" * 50,
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_a_job_with_too_many_values_is_refused_before_any_is_built(message: bytes) -> None:
    """A2: a body of a few MiB would take a hundred times its size in memory."""
    body = with_message(message)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=r"values|levels"):
            arq_codec.decode_job(body)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_a_job_at_the_bounds_is_decoded() -> None:
    """The members of the job itself, of its arguments and of its message count."""
    most = MAX_JOB_VALUES - 5 - 2
    assert len(arq_codec.decode_job(with_message(array(most, b"\x90"))).args[1]) == most
    with pytest.raises(InvalidInputError, match=f"more than {MAX_JOB_VALUES} values"):
        arq_codec.decode_job(with_message(array(most + 1, b"\x90")))
    assert MAX_JOB_NESTING == MAX_NESTING + 2
    assert arq_codec.decode_job(with_message(b"\x91" * MAX_NESTING + b"\xc0")).function == "prompt"
    with pytest.raises(InvalidInputError, match=f"more than {MAX_JOB_NESTING} levels"):
        arq_codec.decode_job(with_message(b"\x91" * (MAX_NESTING + 1) + b"\xc0"))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(["x" * 200, "x" * 70_000, b"x" * 300, b"x" * 70_000])
    | st.sampled_from([1, 2, 3, 4, 8, 16, 17, 300, 70_000]).map(lambda size: msgpack.ExtType(5, b"x" * size))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=60,
)


def members(value: Any) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(below) + sum(map(members, below))


@given(VALUES)
def test_every_value_of_msgpack_is_counted(value: Any) -> None:
    assert count_values(arq_codec.packb(value)) == members(value)


@given(st.binary(max_size=60))
def test_what_is_no_msgpack_is_refused(data: bytes) -> None:
    """Counting any bytes ends, and raises InvalidInputError at most."""
    with pytest.raises(InvalidInputError):
        arq_codec.decode_job(data)


@pytest.mark.parametrize(
    "name", ["runyard:{0}:turns:default", "yard:{3}:jobs", "runyard", "arq:job:x", "arq:abort", "arq:result:", "a:health-check"]
)
async def test_a_queue_cannot_have_the_name_of_another_key(name: str) -> None:
    """A look at such a queue would change the key, for example the scheduler's."""
    server = RedisServer("redis://localhost")
    with pytest.raises(InvalidInputError, match="another name"):
        ArqQueue(server, name, 60)
    assert ArqQueue(server, "arq:queue", 60).name == "arq:queue"
    await server.close()


def outcome(success: bool, value: Any) -> JobOutcome:
    return JobOutcome(success, value, 1000, 2000, 2)


def test_a_result_that_cannot_be_encoded_is_left_out() -> None:
    """A client can read each result, with any arguments and value. Text that is not Unicode is replaced."""
    odd = ArqJob("prompt", [2**70], {"a": 1})
    data = arq_codec.encode_result(b"j", "q", odd, outcome(True, "a\ud800"))
    found = deserialize_result(data, deserializer=msgpack.unpackb)
    assert (found.success, found.result, found.args, found.job_try) == (True, "a?", [], 2)
    large = arq_codec.encode_result(b"\xff", "q", ArqJob("prompt"), outcome(True, {"value": 2**70}))
    found = deserialize_result(large, deserializer=msgpack.unpackb)
    assert (found.success, found.result) == (False, "unable to serialize result")


def test_failures_are_exceptions_with_runyards_serializer() -> None:
    conflict = RunConflictError("taken", differs=["message"])
    for value, kind in ((conflict.to_dict(), RunConflictError), ({"code": "run_cancelled"}, asyncio.CancelledError)):
        data = arq_codec.encode_result(b"j", "q", ArqJob(), outcome(False, value))
        assert type(deserialize_result(data, deserializer=arq_codec.unpackb).result) is kind
    pickled = arq_codec.encode_result(b"j", "q", ArqJob(), outcome(False, conflict.to_dict()), pickled=True)
    why = deserialize_result(pickled).result
    assert isinstance(why, SerializationError) and why.args == ("taken",)


def test_jobs_make_the_requests_of_the_client() -> None:
    options: Mapping[str, Any] = {"priority": "high", "timeout": 5, "retry": {"initial": 2}, "metadata": {"a": 1}}
    made = request_of(
        ArqJob("prompt", ["t"], {"message": {"role": "user", "content": "hi"}, "format": "openai", **options}), TERMS
    )
    assert isinstance(made, AcceptRequest) and made.input is not None
    assert (made.thread_id, made.run_id, made.input.text, made.run_at) == ("t", "r1", "hi", TERMS.run_at)
    assert (made.priority, made.options.timeout, made.options.retry.initial, made.options.expires_in) == ("high", 5, 2, 60)
    fork = request_of(ArqJob("fork", ["t"]), TERMS)
    again = request_of(ArqJob("fork", ["t"]), TERMS)
    assert isinstance(fork, AcceptRequest) and fork == again and fork.fork is not None and fork.fork.new != "t"
    probe = request_of(ArqJob("fork_once", ["t", "m", "r0"]), TERMS)
    assert isinstance(probe, AcceptRequest) and probe.fork is not None and probe.fork.cut.after_run_id == "r0"


def test_settings_name_the_queues_and_their_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_ARQ_QUEUES", "arq:queue, chat=acme,open=")
    settings = Settings(_env_file=None, tenant="mine")
    assert settings.arq_tenants == {"arq:queue": "mine", "chat": "acme", "open": ""}
    assert Settings(_env_file=None, arq_queues=["a=b"]).arq_tenants == {"a": "b"}
    for wrong in ("a,a=b", "=acme"):
        with pytest.raises(ConfigurationError, match="with each name once"):
            Settings(_env_file=None, arq_queues=wrong)


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e18", "0"])
def test_a_time_that_redis_cannot_count_is_refused(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise no result could be written."""
    monkeypatch.setenv("RUNYARD_ARQ_KEEP_RESULT", seconds)
    with pytest.raises(ConfigurationError, match="RUNYARD_ARQ_KEEP_RESULT"):
        Settings(_env_file=None)


@pytest.mark.parametrize("name", ["RUNYARD_GRACE", "RUNYARD_FEED_RETENTION", "RUNYARD_WEBHOOK_BACKOFF"])
def test_a_duration_is_finite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "inf")
    with pytest.raises(ConfigurationError, match=name):
        Settings(_env_file=None)
