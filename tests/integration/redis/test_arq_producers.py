"""Jobs of an unmodified arq client become runs, and arq's client reads their results."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import msgpack
import pytest
from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from arq.jobs import Job, JobStatus, ResultNotFound, SerializationError

from runyard import App, Client
from runyard.domain.messages import TextPart, ToolCallPart, ToolResultPart
from runyard.domain.size_limits import MAX_VALUES
from runyard.domain.states import RunStatus
from runyard.errors import HitlNoPendingRequestError, InvalidInputError, RunConflictError, RunExpiredError, RunNotFoundError
from runyard.models import Message
from runyard.support import locked_batching, store_retries
from runyard.support.garbage_collector import settle
from runyard.testing.scripted_agent import app
from runyard_api.worker.process import serve
from runyard_backends.redis import RedisServer, arq_codec
from runyard_backends.redis.arq_intake import ArqIntake, QueueIntake
from runyard_backends.redis.arq_queue import AcceptedRun, Keep
from tests.support.fleet import SLACK, until

QUEUE = "arq:queue"


@dataclass
class Yard:
    """A deployment of one worker, its client, and a producer. ``server``: the connections of the intake."""

    client: Client
    producer: ArqRedis
    redis: str
    server: RedisServer
    postgres: str

    def intake(self, tenant: str = "", queue: str = QUEUE, keep_result: float = 3600) -> QueueIntake:
        [found] = ArqIntake(self.server, self.client.backend, {queue: tenant}, keep_result=keep_result).queues
        return found

    async def enqueue(self, function: str, *args: Any, **terms: Any) -> Job:
        job = await self.producer.enqueue_job(function, *args, **terms)
        assert job is not None
        return job


async def pool(redis: str, **serializer: Any) -> ArqRedis:
    given = serializer or {"job_serializer": msgpack.packb, "job_deserializer": msgpack.unpackb}
    return await create_pool(RedisSettings.from_dsn(redis), **given)


@pytest.fixture
async def yard(module_postgres_url: str, redis_url: str) -> AsyncIterator[Yard]:
    server = RedisServer(redis_url)
    async with Client.connect(module_postgres_url, redis=redis_url) as client:
        producer = await pool(redis_url)
        yield Yard(client, producer, redis_url, server, module_postgres_url)
        await producer.aclose()
    await server.close()


@asynccontextmanager
async def watched() -> AsyncIterator[dict[str, float]]:
    """Measure this process: ``silence``, the most CPU seconds between two turns of the loop, and ``memory``, the most bytes by
    which it grew."""
    page = os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    seen = {"silence": 0.0, "memory": 0.0}

    async def watch() -> None:
        first, last = resident(), time.process_time()
        while True:
            await asyncio.sleep(0.002)
            used = time.process_time()
            seen["silence"] = max(seen["silence"], used - last)
            seen["memory"] = max(seen["memory"], resident() - first)
            last = time.process_time()

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    try:
        yield seen
        await asyncio.sleep(0.01)
    finally:
        watching.cancel()


@asynccontextmanager
async def served(yard: Yard, *intakes: QueueIntake) -> AsyncIterator[None]:
    async with serve(app, yard.client.backend, loops=[intake.run for intake in intakes or (yard.intake(),)]):
        yield


def fast(job: Job) -> Any:
    return job.result(timeout=60, poll_delay=0.02)


async def failure(job: Job) -> dict[str, Any]:
    """Return the failure of the job as an arq client with plain msgpack reads it."""
    with pytest.raises(SerializationError) as caught:
        await fast(job)
    why: dict[str, Any] = caught.value.args[0]
    return why


async def answered(yard: Yard, intake: QueueIntake, job: Job) -> None:
    async def complete() -> bool:
        await intake.step()
        return await job.status() is JobStatus.complete

    await until(complete)


async def leftovers(yard: Yard) -> list[bytes]:
    """Return the keys of jobs, without the keys of results."""
    keys = [*await yard.producer.keys("arq:*"), *await yard.producer.keys("*arq_*")]
    return [key for key in keys if not key.startswith(b"arq:result:")]


async def test_a_prompt_has_the_jobs_id_and_arq_reads_its_result(yard: Yard) -> None:
    """R1: The job's id is the run's id. The result has the run's text and value, in arq's format."""
    job = await yard.enqueue("prompt", "a1", "say hello", _job_id="a-r1")
    async with served(yard):
        assert await fast(job) == {"thread_id": "a1", "run_id": "a-r1", "status": "completed", "text": "hello", "value": None}
    run = await yard.client.run("a1", "a-r1")
    assert run.status is RunStatus.COMPLETED and run.options.expires_in == pytest.approx(86_400, abs=5)
    info = await job.result_info()
    assert info is not None and info.success and info.function == "prompt" and list(info.args) == ["a1", "say hello"]
    assert info.queue_name == QUEUE and info.job_id == "a-r1" and info.enqueue_time <= info.start_time <= info.finish_time
    assert await job.status() is JobStatus.complete
    assert await leftovers(yard) == []
    assert 3_500_000 < await yard.producer.pttl("arq:result:a-r1") <= 3_600_000


async def test_arq_shows_every_status(yard: Yard) -> None:
    intake = yard.intake()
    deferred = await yard.enqueue("prompt", "b1", "say later", _job_id="b-r1", _defer_by=3600)
    running = await yard.enqueue("prompt", "b2", "question?", _job_id="b-r2")
    assert await deferred.status() is JobStatus.deferred and await running.status() is JobStatus.queued
    await intake.step()
    assert await deferred.status() is JobStatus.deferred and await running.status() is JobStatus.queued
    assert {job.job_id for job in await yard.producer.queued_jobs()} == {"b-r1", "b-r2"}
    info = await running.info()
    assert info is not None and info.function == "prompt" and list(info.args) == ["b2", "question?"]
    run = await yard.client.run("b1", "b-r1")
    assert run.run_at is not None and abs(run.run_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=1)
    async with served(yard, intake):

        async def in_progress() -> bool:
            return await running.status() is JobStatus.in_progress

        await until(in_progress)
        await yard.enqueue("respond", "b2", "blue", _job_id="b-a1")
        assert (await fast(running))["text"] == "question? blue"
    assert await running.status() is JobStatus.complete and await deferred.status() is JobStatus.deferred


async def test_a_deferred_prompt_starts_when_it_is_due(yard: Yard) -> None:
    job = await yard.enqueue(
        "prompt", "c1", "say late", _job_id="c-r1", _defer_until=datetime.now(UTC) + timedelta(seconds=0.5)
    )
    async with served(yard):
        assert (await fast(job))["text"] == "late"
    run = await yard.client.run("c1", "c-r1")
    assert run.started_at is not None and run.run_at is not None and run.started_at >= run.run_at


async def test_forks_probes_and_answers_are_jobs(yard: Yard) -> None:
    """F5, F9, H3: A fork waits for the run of its cut. A probe writes no message. An answer can be repeated."""
    async with served(yard):
        prompt = await yard.enqueue("prompt", "d1", "sleep 0.2 | say one", _job_id="d-r1")
        fork = await yard.enqueue("fork", "d1", "d2", after_run_id="d-r1", _job_id="d-f1")
        assert (await fast(fork))["value"] == {"thread_id": "d2"}
        assert (await fast(prompt))["text"] == "one"
        probe = await yard.enqueue("fork_once", "d2", "say two", _job_id="d-p1")
        assert (await fast(probe))["value"]["text"] == "two"
        failed = await yard.enqueue("fork_once", "d2", "fail", _job_id="d-p2")
        error = (await fast(failed))["value"]["error"]
        assert error["code"] == "agent_error" and "traceback" not in error, "any producer reads results"
        assert [message.text for message in (await yard.client.messages("d2")).items] == ["sleep 0.2 | say one", "one"]
        asked = await yard.enqueue("prompt", "d2", "color?", _job_id="d-r2")

        async def suspended() -> bool:
            try:
                return await yard.client.handle("d2", "d-r2").status() is RunStatus.SUSPENDED
            except RunNotFoundError:
                return False

        await until(suspended)
        answer = await yard.enqueue("respond", "d2", "red", _job_id="d-a1", answered_by="ann")
        assert (await fast(answer))["run_id"] == "d-r2"
        assert (await fast(asked))["text"] == "color? red"
        late = await yard.enqueue("respond", "d2", "green", _job_id="d-a2")
        assert (await failure(late))["code"] == HitlNoPendingRequestError.code


async def test_a_fork_may_follow_the_prompt_that_makes_its_thread(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt and the fork are in one look, or another worker took the prompt and died."""
    now = int(datetime.now(UTC).timestamp() * 1000)
    early = []
    for thread, first, then in (("qa", now - 1, now), ("qb", now, now)):
        await yard.enqueue("prompt", thread, "say zero", _job_id=f"{thread}-z")
        early.append(await yard.enqueue("fork", thread, f"{thread}-b", f"{thread}-z", _job_id=f"{thread}-a"))
        await yard.producer.zadd(QUEUE, {f"{thread}-z": first, f"{thread}-a": then})
    assert await yard.intake().step() == 4
    asked = [(thread, f"{thread}-{name}") for thread in ("qa", "qb") for name in "za"]
    statuses = await yard.client.backend.runs.statuses(asked)
    assert statuses == [RunStatus.QUEUED] * 3 + [None]  # jobs of the same millisecond are in the order of their ids
    monkeypatch.setattr("runyard_backends.redis.arq_queue.LEASE_SECONDS", 1.0)
    prompt = await yard.enqueue("prompt", "q1", "say one", _job_id="q-r1")
    lost = await yard.enqueue("prompt", "q2", "say two", _job_id="q-r2")
    dying = yard.intake()
    monkeypatch.setattr("runyard_backends.redis.arq_queue.JOBS_PER_LOOK", 2)
    assert len(await dying._queue.look()) == 2
    monkeypatch.setattr("runyard_backends.redis.arq_queue.JOBS_PER_LOOK", 100)
    third = await yard.enqueue("prompt", "q3", "say three", _job_id="q-r3")
    forks = [await yard.enqueue("fork", f"q{n}", f"q{n}-b", f"q-r{n}", _job_id=f"q-f{n}") for n in (1, 2, 3)]
    async with served(yard):
        values = [(await fast(fork))["value"]["thread_id"] for fork in (*early, *forks)]
        assert values == ["qa-b", "qb-b", "q1-b", "q2-b", "q3-b"]
        assert [(await fast(job))["text"] for job in (prompt, lost, third)] == ["one", "two", "three"]


async def test_a_deferred_answer_is_given_when_it_is_due(yard: Yard) -> None:
    async with served(yard):
        asked = await yard.enqueue("prompt", "e1", "color?", _job_id="e-r1")
        late = await yard.enqueue("respond", "e1", "grey", _job_id="e-a1", _defer_by=1.0)
        assert await late.status() is JobStatus.deferred
        assert (await fast(asked))["text"] == "color? grey"
        assert (await fast(late))["run_id"] == "e-r1"


async def test_a_job_enqueued_again_is_the_same_run(yard: Yard) -> None:
    """R2: After its result has expired, a job with the same id has the same run. Other content is a conflict."""
    intake = yard.intake()
    async with served(yard, intake):
        job = await yard.enqueue("prompt", "f1", "say once", _job_id="f-r1")
        first = await fast(job)
        assert await yard.producer.enqueue_job("prompt", "f1", "say once", _job_id="f-r1") is None
        await yard.producer.delete("arq:result:f-r1")
        assert await fast(await yard.enqueue("prompt", "f1", "say once", _job_id="f-r1", _expires=50)) == first
        await yard.producer.delete("arq:result:f-r1")
        other = await yard.enqueue("prompt", "f1", "say other", _job_id="f-r1")
        why = await failure(other)
    assert why["code"] == RunConflictError.code and "message" in why["details"]["differs"]
    assert len((await yard.client.messages("f1")).items) == 2


async def test_a_worker_that_dies_after_the_accept_leaves_a_job_that_is_accepted_once(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres has the run, and Redis has no record of it. The next look finds the run, even after the job's expiry."""
    monkeypatch.setattr("runyard_backends.redis.arq_queue.LEASE_SECONDS", 0.05)
    dying = yard.intake()
    jobs = [
        await yard.enqueue("prompt", "g1", "say one", _job_id="g-r1", _expires=2),
        await yard.enqueue("prompt", "g2", "say two", _job_id="g-r2"),
    ]

    async def lost(kept: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(dying._queue, "keep", lost)
    with pytest.raises(ConnectionError):
        await dying.step()
    assert [(await yard.client.run(f"g{n}", f"g-r{n}")).status for n in (1, 2)] == ["queued", "queued"]
    async with serve(app, yard.client.backend):
        results = [await yard.client.handle(f"g{n}", f"g-r{n}").result(20) for n in (1, 2)]
    assert all(result.ok for result in results)
    await until(partial(past, time.time() + 2))  # past the expiry of the first job
    for job, text in zip(jobs, ("one", "two"), strict=True):
        await answered(yard, yard.intake(), job)
        assert (await fast(job))["text"] == text
    assert await leftovers(yard) == []


async def test_a_worker_that_wakes_late_changes_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker refuses a job whose run another worker has accepted, and keeps a job that another worker has answered."""
    monkeypatch.setattr("runyard_backends.redis.arq_queue.LEASE_SECONDS", 0.01)
    late, intake = yard.intake(), yard.intake()
    job = await yard.enqueue("prompt", "r1", "say on time", _job_id="r-r1")
    [seen] = await late._queue.look()
    await asyncio.sleep(0.02)
    assert await intake.step() == 1
    assert await late._queue.answer(seen, b"refused") is False
    async with served(yard, intake):
        assert (await fast(job))["text"] == "on time"
    await late._queue.keep([Keep(seen, 1.0, AcceptedRun("r1", 0), started=True)])
    assert await late._queue.answer(seen, b"refused") is False
    assert (await fast(job))["text"] == "on time" and await leftovers(yard) == []


async def test_a_job_that_expires_is_not_started(yard: Yard) -> None:
    """A job expires before its first look, before its due time, or while its run waits. The failure has ``run_expired``."""
    intake = yard.intake()
    gone = await yard.enqueue("prompt", "h1", "say no", _job_id="h-r1", _expires=0.05)
    never = await yard.enqueue("prompt", "h2", "say no", _job_id="h-r2", _defer_by=60, _expires=30)
    await asyncio.sleep(0.1)
    await intake.step()
    assert {(await failure(job))["code"] for job in (gone, never)} == {RunExpiredError.code}
    with pytest.raises(RunNotFoundError):
        await yard.client.run("h2", "h-r2")
    async with served(yard, intake):
        asked = await yard.enqueue("prompt", "h3", "color?", _job_id="h-r3")
        behind = await yard.enqueue("prompt", "h3", "say behind", _job_id="h-r4", _expires=0.5)
        assert (await failure(behind))["code"] == RunExpiredError.code
        await yard.client.cancel("h3", "h-r3")
        assert (await failure(asked))["code"] == arq_codec.CANCELLED


async def test_abort_cancels_the_run(yard: Yard) -> None:
    """The aborted job is new, or deferred, or its run waits for a human. With runyard's deserializer ``abort`` returns True."""
    producer = await pool(yard.redis, job_serializer=arq_codec.packb, job_deserializer=arq_codec.unpackb)
    jobs = {name: await producer.enqueue_job("prompt", "i-" + name, "color?", _job_id=name) for name in ("new", "asked")}
    jobs["later"] = await producer.enqueue_job("prompt", "i-later", "say no", _job_id="later", _defer_by=60)
    assert all(jobs.values())
    aborting = {"new": asyncio.create_task(jobs["new"].abort(timeout=60, poll_delay=0.02))}  # type: ignore[union-attr]

    async def requested() -> bool:
        return bool(await producer.zcard("arq:abort"))

    await until(requested)
    async with served(yard):

        async def suspended() -> bool:
            runs = await yard.client.backend.runs.statuses([("i-asked", "asked"), ("i-later", "later")])
            return runs == [RunStatus.SUSPENDED, RunStatus.QUEUED]

        await until(suspended)
        for name in ("asked", "later"):
            aborting[name] = asyncio.create_task(jobs[name].abort(timeout=60, poll_delay=0.02))  # type: ignore[union-attr]
        assert await asyncio.gather(*aborting.values()) == [True, True, True]
    assert await yard.client.backend.runs.statuses([("i-new", "new"), ("i-asked", "asked"), ("i-later", "later")]) == [
        None,
        RunStatus.CANCELLED,
        RunStatus.CANCELLED,
    ]
    assert await leftovers(yard) == []
    await producer.aclose()


async def test_an_abort_that_comes_in_two_commands_is_not_missed(yard: Yard) -> None:
    """``Job.abort()`` of a deferred job changes its score first. A look may come before the second command."""
    intake = yard.intake()
    job = await yard.enqueue("prompt", "s1", "say no", _job_id="s-r1", _defer_by=3600)
    await intake.step()
    await yard.producer.zadd(QUEUE, {"s-r1": 1})
    assert await intake.step() == 1
    assert await job.status() is JobStatus.deferred
    await yard.producer.zadd("arq:abort", {"s-r1": int(time.time() * 1000)})
    async with asyncio.timeout(30):
        await answered(yard, intake, job)
    assert (await failure(job))["code"] == arq_codec.CANCELLED


async def test_an_abort_does_not_wait_for_the_next_look_at_its_job(yard: Yard) -> None:
    """R10: An abort makes its job due at once, and only once: one that does not concern the job costs one look."""
    intake, looks = yard.intake(), f"{yard.server.keys.prefix(0)}arq_looks:{QUEUE}"
    jobs = [await yard.enqueue("prompt", f"v{n}", "say no", _job_id=f"v-r{n}") for n in range(2)]

    async def put_off() -> None:
        await yard.producer.zadd(looks, {job.job_id: int(time.time() * 1000) + 3_600_000 for job in jobs})

    await intake.step()
    await put_off()
    assert await intake.step() == 0
    stale = int(time.time() * 1000) - 120_000
    await yard.producer.zadd("arq:abort", {"v-r0": stale, "v-r1": int(time.time() * 1000)})
    assert await intake.step() == 2
    assert await yard.producer.pttl(f"{yard.server.keys.prefix(0)}arq_aborts:{QUEUE}") > 0
    assert (await failure(jobs[1]))["code"] == arq_codec.CANCELLED
    await put_off()
    assert await intake.step() == 0
    assert await jobs[0].status() is JobStatus.queued


@pytest.mark.parametrize("deferred", [False, True])
async def test_an_abort_does_not_take_a_job_from_the_worker_that_accepts_its_run(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """R10: Otherwise another worker, which finds no run, would answer that the job is cancelled, and its run would execute."""
    accepting, other = yard.intake(), yard.intake()
    began, abort_came = asyncio.Event(), asyncio.Event()
    accept = accepting._accept_once

    async def slow(request: Any) -> None:
        began.set()
        await abort_came.wait()
        await accept(request)

    monkeypatch.setattr(accepting, "_accept_once", slow)
    terms = {"_defer_by": 60} if deferred else {}
    job = await yard.enqueue("prompt", f"w-{deferred}", "say no", _job_id=f"w-r-{deferred}", **terms)
    step = asyncio.create_task(accepting.step())
    await began.wait()
    if deferred:  # the two commands of ``Job.abort()``
        await yard.producer.zadd(QUEUE, {job.job_id: 1})
        assert await other.step() == 0
    await yard.producer.zadd("arq:abort", {job.job_id: int(time.time() * 1000)})
    assert await other.step() == 0
    assert await job.result_info() is None
    abort_came.set()
    assert await step == 1
    async with asyncio.timeout(30):
        assert await other.step() == 1, "due at once, because its run is recorded"
    assert (await failure(job))["code"] == arq_codec.CANCELLED
    assert await yard.client.backend.runs.statuses([(f"w-{deferred}", job.job_id)]) == [RunStatus.CANCELLED]
    assert await leftovers(yard) == []


async def test_an_abort_does_not_wait_until_a_deferred_answer_is_due(yard: Yard) -> None:
    """R10: A deferred answer has no run."""
    intake = yard.intake()
    job = await yard.enqueue("respond", "nobody", "grey", _job_id="u-a1", _defer_by=3600)
    assert await intake.step() == 1
    await yard.producer.zadd("arq:abort", {job.job_id: int(time.time() * 1000)})
    assert await intake.step() == 1
    assert (await failure(job))["code"] == arq_codec.CANCELLED
    assert await leftovers(yard) == []


async def test_failures_of_runs_are_failed_results(yard: Yard) -> None:
    """The run has failed, or its thread was deleted. With runyard's deserializer the client raises the error itself."""
    producer = await pool(yard.redis, job_serializer=arq_codec.packb, job_deserializer=arq_codec.unpackb)
    async with served(yard):
        failed = await yard.enqueue("prompt", "j1", "fail", _job_id="j-r1")
        why = await failure(failed)
        assert why["message"] == "the script failed"
        assert set(why) == {"code", "message", "details"}, "a traceback is for the operators only"
        asked = await producer.enqueue_job("prompt", "j2", "color?", _job_id="j-r2")
        assert asked is not None

        async def known() -> bool:
            return await asked.status() is JobStatus.in_progress

        await until(known)
        await yard.client.delete_thread("j2", cancel=True)
        with pytest.raises(RunNotFoundError):
            await fast(asked)
    await producer.aclose()


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


async def test_a_pickled_job_is_refused_and_never_loaded(yard: Yard, tmp_path: Path) -> None:
    """The producer can read the reason with its own serializer."""
    producer = await create_pool(RedisSettings.from_dsn(yard.redis))
    bomb = await producer.enqueue_job("prompt", "k1", Bomb(str(tmp_path / "boom")), _job_id="k-r1")
    assert bomb is not None
    await yard.intake().step()
    with pytest.raises(SerializationError, match=r"job_serializer=msgpack\.packb"):
        await fast(bomb)
    assert not (tmp_path / "boom").exists()
    assert await leftovers(yard) == []
    await producer.aclose()


def body(function: object = "prompt", args: object = ("t", "m"), kwargs: object = None, **others: object) -> bytes:
    job = {"t": None, "f": function, "a": args, "k": {} if kwargs is None else kwargs, "et": 1_700_000_000_000, **others}
    data: bytes = msgpack.packb(job)
    return data


MALFORMED = {
    "empty": (b"", "not msgpack"),
    "json": (b'{"f": "prompt"}', "not msgpack"),
    "protocol-0": (pickle.dumps({"f": 1}, protocol=0), "not msgpack"),
    "truncated": (body()[:-3], "not msgpack"),
    "nested": (b"\x91" * 5000 + b"\x00", "levels"),
    "no-job": (msgpack.packb([1, 2]), "not a job of arq"),
    "no-list": (body(args={"a": 1}), "not a job of arq"),
    "time": (body(et=-1), "not a job of arq"),
    "bad-utf-8": (body().replace(b"prompt", b"prom\xff\xff"), "not msgpack"),
    "function": (body("delete_everything"), "no function 'delete_everything'"),
    "long-function": (body("f" * 2**20), "no function"),
    "too-few": (body(args=["t"]), "missing a required argument: 'message'"),
    "unknown-argument": (body(kwargs={"run_id": "x"}), "unexpected keyword argument 'run_id'"),
    "terms": (body(kwargs={"terms": "x"}), "multiple values for argument 'terms'"),
    "thread": (body(args=[["t"], "m"]), "thread_id must be"),
    "message": (body(args=["t", 5]), "JSON object"),
    "binary": (body(args=["t", b"m"]), "JSON"),
    "priority": (body(kwargs={"priority": []}), "priority is one of"),
    "timeout": (body(kwargs={"timeout": "soon"}), "timeout"),
    "metadata": (body(kwargs={"metadata": [1]}), "metadata is a JSON object"),
    "agent": (body(kwargs={"agent": {"a": 1}}), "agent must be"),
    "webhook": (body(kwargs={"webhook": 7}), "webhook"),
    "tags": (body("fork", ["t"], {"tags": "x"}), "fork"),
    "cut": (body("fork", ["t"], {"after_run_id": "r", "at_seq": 1}), "one of after_run_id"),
    "source": (body("fork", ["no-such-thread"]), "no-such-thread"),
    "nobody": (body("respond", [None, "x"]), "thread_id or the request_id"),
    "huge": (body(args=["t", "x" * (11 * 2**20)]), "are allowed"),
}


async def test_what_is_no_valid_job_gets_a_result_that_says_why(yard: Yard) -> None:
    """No malformed job is lost or stops other jobs. Its result does not contain the whole job."""
    for name, (data, _) in MALFORMED.items():
        await yard.producer.set(f"arq:job:{name}", data, px=60_000)
        await yard.producer.zadd(QUEUE, {name: 1_700_000_000_000})
    await yard.producer.rpush("arq:job:list", "x")
    await yard.producer.zadd(QUEUE, {"list": 1_700_000_000_000})
    good = await yard.enqueue("prompt", "l1", "say good", _job_id="l-r1")
    async with served(yard):
        assert (await fast(good))["text"] == "good"
        for name, (_, words) in MALFORMED.items():
            job = Job(name, yard.producer, _deserializer=msgpack.unpackb)
            assert words in (await failure(job))["message"], name
            assert await yard.producer.strlen(f"arq:result:{name}") < 100_000, name
        listed = Job("list", yard.producer, _deserializer=msgpack.unpackb)
        assert (await failure(listed))["code"] == InvalidInputError.code
    assert await leftovers(yard) == []


def crowded(member: bytes, count: int) -> bytes:
    """Return a job whose message is an array of ``count`` members."""
    message = b"\xdd" + count.to_bytes(4, "big") + member * count
    return body(args=["t", 0]).replace(b"\x92\xa1t\x00", b"\x92\xa1t" + message)


ROOM = 10 * 2**20 - 200
CROWDED = {
    "arrays": crowded(b"\x90", ROOM),
    "maps": crowded(b"\x80", ROOM),
    "nil": crowded(b"\xc0", ROOM),
    "ext": crowded(b"\xd4\x05a", ROOM // 3),
    "nested": crowded(b"\x91\xc0", ROOM // 2),
    "deep": body(args=["t", 0]).replace(b"\x92\xa1t\x00", b"\x92\xa1t" + b"\x91" * ROOM + b"\xc0"),
}


async def test_jobs_of_many_values_do_not_block_the_worker(yard: Yard) -> None:
    """A2: two jobs of 10 MiB of each shape, and twenty jobs just within the bounds."""

    async def put(name: str, data: bytes) -> str:
        await yard.producer.set(f"arq:job:{name}", data, px=60_000)
        await yard.producer.zadd(QUEUE, {name: 1_700_000_000_000})
        return name

    names = [await put(f"crowded-{n}-{shape}", data) for shape, data in CROWDED.items() for n in range(2)]
    within = crowded(b"\x91\x90", MAX_VALUES // 2)
    names += [await put(f"within-{n}", within) for n in range(20)]
    intake = yard.intake()
    thresholds = gc.get_threshold()
    settle()  # as a worker does
    try:
        async with watched() as seen:
            while await intake.step():
                pass
    finally:
        gc.set_threshold(*thresholds)
    assert seen["silence"] < 0.1 * (1 + SLACK)
    assert seen["memory"] < 150 * 2**20
    for name in names:
        why = (await failure(Job(name, yard.producer, _deserializer=msgpack.unpackb)))["message"]
        assert ("values" in why or "levels" in why) == name.startswith("crowded"), name
    assert await leftovers(yard) == []


async def test_a_body_that_grows_after_the_accept_is_not_read_whole(yard: Yard) -> None:
    """The result of the run is written without the arguments."""
    intake = yard.intake()
    job = await yard.enqueue("prompt", "grown", "say x", _job_id="grown-1")
    await intake.step()
    await yard.producer.set("arq:job:grown-1", b"\x91" * (40 * 2**20))
    async with served(yard, intake):
        assert (await fast(job))["text"] == "x"


async def test_a_body_of_another_type_does_not_hold_the_result_back(yard: Yard) -> None:
    """A producer replaces the body of a job before and after the accept."""
    intake = yard.intake()
    accepted = await yard.enqueue("prompt", "typed", "say x", _job_id="typed-1")
    await intake.step()
    unread = await yard.enqueue("prompt", "typed", "say x", _job_id="typed-2")
    for job in (accepted, unread):
        await yard.producer.delete(f"arq:job:{job.job_id}")
        await yard.producer.rpush(f"arq:job:{job.job_id}", b"x")
    async with served(yard, intake):
        assert (await fast(accepted))["text"] == "x"
        assert (await failure(unread))["code"] == "invalid_input"
    assert await leftovers(yard) == []


async def test_an_answer_that_was_applied_is_a_success(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: a worker dies when the answer is in Postgres. Then the job expires, or is aborted, or both ids are given."""
    monkeypatch.setattr("runyard_backends.redis.arq_queue.LEASE_SECONDS", 0.05)

    async def lost(*_: object) -> bool:
        raise ConnectionError

    runs = yard.client.backend.runs
    for case in ("expires", "expires by request", "aborted"):
        intake, dying = yard.intake(), yard.intake()
        monkeypatch.setattr(dying._queue, "answer", lost)
        monkeypatch.setattr(dying._queue, "keep", lost)
        thread = case.replace(" ", "-")
        async with serve(app, yard.client.backend):
            asked = await yard.enqueue("prompt", thread, "color?", _job_id=f"{thread}-asked")

            async def suspended(thread: str = thread, asked: Job = asked, intake: QueueIntake = intake) -> bool:
                await intake.step()
                return await runs.statuses([(thread, asked.job_id)]) == [RunStatus.SUSPENDED]

            await until(suspended)
            [request] = (await yard.client.requests(thread)).items
            named = [request.request_id] if "request" in case else []
            expiry = None if case == "aborted" else 3.0
            job = await yard.enqueue("respond", thread, "blue", *named, _job_id=f"{thread}-answer", _expires=expiry)

            async def applied(dying: QueueIntake = dying, request_id: str = request.request_id) -> bool:
                with suppress(ConnectionError):  # also of the other job, whose next look may be due
                    await dying.step()
                found = await runs.request(request_id)
                return found is not None and found.answered_at is not None

            await until(applied)
            if case == "aborted":
                await yard.producer.zadd("arq:abort", {job.job_id: int(time.time() * 1000)})
            else:
                await until(partial(past, time.time() + 3.0))
            await answered(yard, intake, job)
            assert (await fast(job))["request_id"] == request.request_id, case
            await answered(yard, intake, asked)
            assert (await fast(asked))["text"] == "color? blue"


async def past(moment: float) -> bool:
    return time.time() > moment


async def test_a_locked_thread_does_not_stop_the_others(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """13.4: the jobs of the other threads are recorded while the take of the locked one waits, and every look ends soon."""
    for waits in (store_retries, locked_batching):  # a take of the locked thread alone would last so long
        monkeypatch.setattr(waits, "LOCKED_SECONDS", 3600.0)
    intake = yard.intake()
    async with served(yard, intake):
        await fast(await yard.enqueue("prompt", "lock", "say a", _job_id="lock-0"))
    other = await asyncpg.connect(yard.postgres)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT 1 FROM runyard.threads WHERE thread_id = 'lock' FOR UPDATE")
    locked = [await yard.enqueue("prompt", "lock", f"say {n}", _job_id=f"lock-{n}") for n in range(1, 30)]
    free = [await yard.enqueue("prompt", f"free-{n}", "say free", _job_id=f"free-{n}") for n in range(30)]
    kept: list[bytes] = []
    accepted: set[bytes] = set()
    keep = intake._queue.keep

    async def noted(jobs: Iterable[Keep]) -> None:
        given = list(jobs)
        kept.extend(one.look.id for one in given)
        accepted.update(one.look.id for one in given if one.run is not None)
        await keep(given)

    monkeypatch.setattr(intake._queue, "keep", noted)
    wanted = {job.job_id.encode() for job in free}
    async with asyncio.timeout(60):
        assert await intake.step() == 59
        assert kept[0] in wanted  # the free jobs did not wait for the locked ones
        while accepted < wanted:
            await intake.step()
    await transaction.rollback()
    await other.close()
    async with served(yard, intake):
        assert [(await fast(job))["text"] for job in locked] == [str(n) for n in range(1, 30)]
        assert {(await fast(job))["text"] for job in free} == {"free"}


IDS = {"dots": "..", "newline": "a\nb", "long": "x" * 300, "bytes": b"\xff\xfe", "huge": "y" * 2**20, "empty": ""}


@pytest.mark.parametrize("job_id", IDS.values(), ids=IDS)
async def test_an_id_that_no_run_can_have_is_refused(yard: Yard, job_id: str | bytes) -> None:
    key = job_id if isinstance(job_id, bytes) else job_id.encode()
    await yard.producer.set(b"arq:job:" + key, body(), px=60_000)
    await yard.producer.zadd(QUEUE, {key: 1_700_000_000_000})
    assert await yard.intake().step() == 1
    stored = await yard.producer.get(b"arq:result:" + key)
    assert stored is not None
    result = msgpack.unpackb(stored)
    assert result["s"] is False and result["r"]["code"] == InvalidInputError.code
    assert await leftovers(yard) == []


async def test_a_flood_is_accepted_in_parts_beside_other_queues(yard: Yard) -> None:
    """A look returns at most 100 jobs. Another queue has its own looks."""
    flood = yard.intake()
    for n in range(250):
        await yard.enqueue("prompt", f"m{n % 10}", "say x", _job_id=f"m-r{n}")
    assert [await flood.step() for _ in range(2)] == [100, 100]
    other = await yard.enqueue("prompt", "m-other", "say other", _job_id="m-o1", _queue_name="other")
    async with served(yard, yard.intake(queue="other")):
        assert (await fast(Job("m-o1", yard.producer, "other", msgpack.unpackb)))["text"] == "other"
    assert await other.status() is JobStatus.complete
    for n in range(250):
        await yard.producer.delete(f"arq:job:m-r{n}")


async def test_each_queue_has_its_tenant(yard: Yard) -> None:
    """A job cannot choose a tenant. The queue determines the tenant."""
    acme = yard.intake("acme", "acme")
    async with served(yard, acme, yard.intake()):
        mine = await yard.enqueue("prompt", "n1", "say acme", _job_id="n-r1", _queue_name="acme")
        assert (await fast(mine))["text"] == "acme"
        stolen = await yard.enqueue("fork", "n1", "n2", _job_id="n-f1")
        assert (await failure(stolen))["code"] == "thread_not_found"
    with pytest.raises(RunNotFoundError):
        await yard.client.run("n1", "n-r1")


async def test_a_result_lasts_as_long_as_the_setting_says(yard: Yard) -> None:
    async with served(yard, yard.intake(keep_result=0.5)):
        job = await yard.enqueue("prompt", "o1", "say short", _job_id="o-r1")
        assert (await fast(job))["text"] == "short"

        async def gone() -> bool:
            return await job.status() is JobStatus.not_found

        await until(gone)
    with pytest.raises(ResultNotFound):
        await fast(job)


async def test_a_job_waits_for_room_in_a_full_queue(yard: Yard) -> None:
    """R16: A limit of queued runs delays a job. The job stays in arq's queue, and no job is lost."""
    intake = yard.intake()
    await yard.client.set_limit("queued_per_lane", 1)
    try:
        jobs = [await yard.enqueue("prompt", "p1", f"say {n}", _job_id=f"p-r{n}") for n in range(4)]
        async with served(yard, intake):
            assert sorted([(await fast(job))["text"] for job in jobs]) == ["0", "1", "2", "3"]
    finally:
        await yard.client.clear_limit("queued_per_lane")


async def test_jobs_without_room_are_tried_seldom(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """R16: one try for each full lane and look, and none at all when the deployment is full. An old job waits longer."""
    for name in ("TAKE_SECONDS", "MAX_TAKE_SECONDS"):
        monkeypatch.setattr(f"runyard_backends.redis.arq_intake.{name}", 60.0)
    tried = 0
    accept = yard.client.backend.runs.accept
    intake = yard.intake()
    runs = intake._client.backend.runs

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal tried
        tried += 1
        return await accept(*args, **options)

    monkeypatch.setattr(runs, "accept", counted)
    delays: dict[bytes, float] = {}
    keep = intake._queue.keep

    async def noted(jobs: Iterable[Keep]) -> None:
        given = list(jobs)
        delays.update({one.look.id: one.delay for one in given})
        await keep(given)

    monkeypatch.setattr(intake._queue, "keep", noted)
    try:
        await yard.client.set_limit("queued_per_lane", 1)
        jobs = [await yard.enqueue("prompt", "full", f"say {n}", _job_id=f"full-{n}") for n in range(40)]
        other = await yard.enqueue("prompt", "roomy", "say other", _job_id="full-other")
        old = int(time.time() * 1000) - 3_600_000
        await yard.producer.zadd(QUEUE, {"full-39": old})
        assert await intake.step() == 41
        assert tried == 3
        young = [delay for id_, delay in delays.items() if id_ not in (b"full-39", b"full-other", b"full-0")]
        assert max(young) <= 1.5
        [late] = [await yard.enqueue("prompt", "full", "say late", _job_id="full-late")]
        await yard.producer.zadd(QUEUE, {"full-late": old})
        await intake.step()
        assert delays[b"full-late"] >= 5.0
        await yard.client.set_limit("queued", 1)
        tried = 0
        jobs += [await yard.enqueue("prompt", f"full-{n}", "say all", _job_id=f"full-all-{n}") for n in range(20)]
        await intake.step()
        assert 1 <= tried <= 11  # the takes that had begun before the first refusal
    finally:
        for name in ("queued_per_lane", "queued"):
            await yard.client.clear_limit(name)  # type: ignore[arg-type]
    for job in [*jobs, other, late]:
        await yard.producer.delete(f"arq:job:{job.job_id}")


async def test_an_old_abort_does_not_cancel_a_later_job(yard: Yard) -> None:
    """``abort()`` of a complete job leaves an entry in arq's set. Its id may be enqueued again."""
    intake = yard.intake()
    async with served(yard, intake):
        job = await yard.enqueue("prompt", "stale", "say once", _job_id="stale-1")
        await fast(job)
        assert await job.abort(timeout=60) is False
        assert await yard.producer.zcard("arq:abort") == 1

        async def removed() -> bool:
            return await yard.producer.zcard("arq:abort") == 0

        await until(removed)
    await yard.producer.delete("arq:result:stale-1")
    again = await yard.enqueue("prompt", "stale-other", "say again", _job_id="stale-2")
    await yard.producer.zadd("arq:abort", {"stale-2": int(time.time() * 1000) - 120_000})
    async with served(yard, intake):
        assert (await fast(again))["text"] == "again"
    assert await leftovers(yard) == []


SCORES = {"early": -(10**16), "late": 10**16, "latest": 1e308, "endless": float("inf"), "looked": -(10**15), "deferred": 10**15}


async def test_a_due_time_that_no_calendar_has_fails_the_job(yard: Yard) -> None:
    """Every job gets a result, for any score that a client can send. A deferred job that was looked at is left alone."""
    later = await yard.enqueue("prompt", "later", "say later", _job_id="later", _defer_by=3600)
    intake = yard.intake()
    await intake.step()
    for name, score in SCORES.items():
        await yard.producer.set(f"arq:job:score-{name}", body(), px=60_000)
        await yard.producer.zadd(QUEUE, {f"score-{name}": score})
    distant = await yard.enqueue("prompt", "t", "say x", _job_id="score-distant", _defer_by=10**12)
    assert await intake.step() == len(SCORES) + 1
    assert await later.status() is JobStatus.deferred
    for job in (distant, *(Job(f"score-{name}", yard.producer, _deserializer=msgpack.unpackb) for name in SCORES)):
        why = await failure(job)
        assert why["code"] == InvalidInputError.code and "due time" in why["message"], job.job_id
    for job in (later,):
        await yard.producer.delete(f"arq:job:{job.job_id}")


async def test_the_text_of_a_result_may_come_long_before_the_end(yard: Yard) -> None:
    """More bytes of tool results than a result reads follow the last assistant message."""
    talker = App()

    @talker.agent
    async def tools(ctx: Any) -> None:
        call = ToolCallPart(id="c", name="f", arguments={})
        await ctx.append(Message(role="assistant", content=[TextPart(text="the answer"), call]))
        await ctx.append(Message(role="tool", content=[ToolResultPart(call_id="c", content="R" * 200_000)]))

    async with serve(talker, yard.client.backend, loops=[yard.intake().run]):
        job = await yard.enqueue("prompt", "long", "x", _job_id="long-1")
        assert (await fast(job))["text"] == "the answer"
