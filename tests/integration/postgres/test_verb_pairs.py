"""Every verb against every other on one thread, with the first's transaction still open when the second starts.

The second must wait for the thread's lock and then act on what the first committed: its answer and the thread that is left
equal those of the two run one after the other (I1 to I4, I6, I8). A verb that takes no lock may go first instead. A
sequential state machine cannot find a stale snapshot; this does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from runyard.errors import RunyardError
from runyard.models import ErrorInfo, HitlRequest, Message, RunOptions
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.workers import WorkerInfo
from runyard_backends.postgres import codec
from runyard_backends.postgres.backend import PostgresBackend, connect
from runyard_backends.postgres.checkpointer import PostgresCheckpointer
from runyard_backends.postgres.database import Database
from runyard_backends.postgres.runs import PostgresRunStore
from runyard_backends.postgres.threads import PostgresThreadStore
from tests.support.lock_waits import waiting_sessions
from tests.support.long_form import some

DEADLINE = 20.0
EVERY = 9
"""The short form takes every ninth pair: each verb is the first of a ninth of the pairs and the second of a ninth of them."""


@dataclass
class Scene:
    """One thread with a completed run, a failed one that said ``last``, a running one, and one queued behind it."""

    thread_id: str
    key: int
    attempt: AttemptToken
    last: str = ""


@dataclass
class Stores:
    runs: PostgresRunStore
    threads: PostgresThreadStore
    checkpointer: PostgresCheckpointer
    db: Database

    @classmethod
    def on(cls, db: Database) -> Stores:
        return cls(PostgresRunStore(db, ""), PostgresThreadStore(db, ""), PostgresCheckpointer(db, ""), db)


def prompt(scene: Scene, run_id: str, text: str = "hello", **fields: Any) -> AcceptRequest:
    return AcceptRequest(thread_id=scene.thread_id, run_id=run_id, input=Message.user(text), **fields)


async def accept(s: Stores, scene: Scene) -> Any:
    accepted = await s.runs.accept(prompt(scene, "new"))
    return accepted.created, [job.run_id for job in accepted.effects.jobs]


async def accept_conflicting(s: Stores, scene: Scene) -> Any:
    return (await s.runs.accept(prompt(scene, "new", "something else"))).created


async def accept_in_host(s: Stores, scene: Scene) -> Any:
    await s.db.row("accept_request", "", codec.run_request(prompt(scene, "hosted")))


async def interrupt(s: Stores, scene: Scene) -> Any:
    await s.runs.accept(prompt(scene, "interrupting", options=RunOptions(multitask_strategy="interrupt")))


async def claim_next(s: Stores, scene: Scene) -> Any:
    return [c.outcome for c in await s.runs.claim("w", [RunRef(scene.key, "queued")], wait=DEADLINE)]


async def take_over(s: Stores, scene: Scene) -> Any:
    return [c.outcome for c in await s.runs.claim("w2", [RunRef(scene.key, "running")], wait=DEADLINE)]


async def append(s: Stores, scene: Scene) -> Any:
    return len(await s.runs.append(scene.attempt, [Message.assistant("part")], first_event=3))


async def complete(s: Stores, scene: Scene) -> Any:
    [end] = await s.runs.complete([Write(attempt=scene.attempt, messages=[Message.assistant("end")], first_event=3)])
    if isinstance(end, Exception):
        raise end
    return end.status, sorted(job.run_id for job in end.effects.jobs)


async def complete_and_claim(s: Stores, scene: Scene) -> Any:
    write = Write(attempt=scene.attempt, messages=[Message.assistant("end")], first_event=3, claim_next=True)
    [end] = await s.runs.complete([write])
    if isinstance(end, Exception):
        raise end
    return end.status, end.next and end.next.ref.run_id, sorted(job.run_id for job in end.effects.jobs)


async def fail(s: Stores, scene: Scene) -> Any:
    end = await s.runs.fail(Write(attempt=scene.attempt), ErrorInfo(code="x", message="x"))
    return end.status, sorted(job.run_id for job in end.effects.jobs)


async def release(s: Stores, scene: Scene) -> Any:
    return (await s.runs.release(scene.attempt)).status


async def suspend(s: Stores, scene: Scene) -> Any:
    return (await s.runs.suspend(Write(attempt=scene.attempt), [HitlRequest(request_id=f"q-{scene.thread_id}")])).status


async def respond(s: Stores, scene: Scene) -> Any:
    responded = await s.runs.respond("yes", thread_id=scene.thread_id)
    return responded.created, [job.run_id for job in responded.effects.jobs]


async def step(s: Stores, scene: Scene) -> Any:
    await s.runs.finish_step(scene.attempt, "s", 1)


async def cancel(s: Stores, scene: Scene) -> Any:
    changed = await s.runs.cancel(scene.thread_id, "running")
    return changed.run.status, len(changed.effects.cancels)


async def cancel_queued(s: Stores, scene: Scene) -> Any:
    return (await s.runs.cancel(scene.thread_id, "queued", keep=True)).run.status


async def fork(s: Stores, scene: Scene) -> Any:
    forked = await s.threads.fork(ForkRequest(src=scene.thread_id, new=f"{scene.thread_id}-fork", cut=Cut(after_run_id="done")))
    return forked.created


async def fork_last(s: Stores, scene: Scene) -> Any:
    forked = await s.threads.fork(ForkRequest(src=scene.thread_id, new=f"{scene.thread_id}-fork"))
    return forked.created, forked.thread.forked_after_run_id


async def fork_job(s: Stores, scene: Scene) -> Any:
    request = ForkRequest(src=scene.thread_id, new=f"{scene.thread_id}-job", cut=Cut(after_run_id="running"))
    accepted = await s.runs.accept(AcceptRequest(thread_id=scene.thread_id, run_id="job", kind="fork", fork=request))
    return [job.run_id for job in accepted.effects.jobs]


async def fork_failed(s: Stores, scene: Scene) -> Any:
    request = ForkRequest(src=scene.thread_id, new=f"{scene.thread_id}-fork", cut=Cut(at_message_id=scene.last))
    forked = await s.threads.fork(request)
    return forked.created, forked.thread.forked_at_seq


async def fork_failed_job(s: Stores, scene: Scene) -> Any:
    request = ForkRequest(src=scene.thread_id, new=f"{scene.thread_id}-job", cut=Cut(at_message_id=scene.last))
    accepted = await s.runs.accept(AcceptRequest(thread_id=scene.thread_id, run_id="job", kind="fork", fork=request))
    return [job.run_id for job in accepted.effects.jobs]


async def accept_after_failed(s: Stores, scene: Scene) -> Any:
    return (await s.runs.accept(prompt(scene, "on", parent_id=scene.last))).created


async def redrive(s: Stores, scene: Scene) -> Any:
    return (await s.runs.redrive(scene.thread_id, "failed")).run.status


async def delete_run(s: Stores, scene: Scene) -> Any:
    await s.runs.delete_run(scene.thread_id, "failed")


async def delete_run_in_hand(s: Stores, scene: Scene) -> Any:
    await s.runs.delete_run(scene.thread_id, "running")


async def store(s: Stores, scene: Scene) -> Any:
    return (await s.threads.store_message(scene.thread_id, Message.user("stored"))).seq


async def external(s: Stores, scene: Scene) -> Any:
    await s.checkpointer.claim_run(scene.thread_id, "outside")


async def save_extra(s: Stores, scene: Scene) -> Any:
    await s.checkpointer.save_extra(scene.thread_id, {"saved": 1})


async def delete(s: Stores, scene: Scene) -> Any:
    await s.threads.delete_thread(scene.thread_id)


async def delete_with_cancel(s: Stores, scene: Scene) -> Any:
    await s.threads.delete_thread(scene.thread_id, cancel=True)


async def erase(s: Stores, scene: Scene) -> Any:
    await s.threads.erase_thread(scene.thread_id)


async def erase_with_cancel(s: Stores, scene: Scene) -> Any:
    await s.threads.erase_thread(scene.thread_id, cancel=True)


Verb = Callable[[Stores, Scene], Awaitable[Any]]

VERBS: list[Verb] = [
    accept,
    accept_conflicting,
    accept_in_host,
    interrupt,
    claim_next,
    take_over,
    append,
    complete,
    complete_and_claim,
    fail,
    release,
    suspend,
    respond,
    step,
    cancel,
    cancel_queued,
    fork,
    fork_last,
    fork_job,
    fork_failed,
    fork_failed_job,
    accept_after_failed,
    redrive,
    delete_run,
    delete_run_in_hand,
    store,
    external,
    save_extra,
    delete,
    delete_with_cancel,
    erase,
    erase_with_cancel,
]


@dataclass(frozen=True)
class Refused:
    code: str


async def outcome(verb: Verb, s: Stores, scene: Scene) -> Any:
    try:
        return await verb(s, scene)
    except RunyardError as error:
        return Refused(error.code)


async def picture(s: Stores, scene: Scene) -> Any:
    """What is left, without ids and times that differ between two threads."""
    if await s.threads.thread(scene.thread_id) is None:
        return None
    runs = {
        r.run_id: (r.status, r.attempt, r.crash_count, r.completion_seq)
        for r in (await s.runs.runs(RunFilter(thread_id=scene.thread_id))).items
    }
    deleted = [id for id in ("failed", "running") if (run := await s.runs.run(scene.thread_id, id)) and run.deleted_at]
    texts = [(m.seq, m.role, m.text) for m in (await s.threads.messages(scene.thread_id)).items]
    branches = (await s.threads.branches(scene.thread_id, PageRequest(limit=1000))).items
    leaves = [(b.depth, b.run_id, b.run_status) for b in branches]
    pending = len((await s.runs.requests(thread_id=scene.thread_id)).items)
    children = [
        [(m.seq, m.text) for m in (await s.threads.messages(child)).items]
        for child in (f"{scene.thread_id}-fork", f"{scene.thread_id}-job")
        if await s.threads.thread(child)
    ]
    thread = await s.threads.thread(scene.thread_id)
    return runs, deleted, texts, leaves, pending, children, thread.extra if thread else None


async def prepare(s: Stores, thread_id: str, suspended: bool) -> Scene:
    accepted = await s.runs.accept(AcceptRequest(thread_id=thread_id, run_id="done", input=Message.user("first")))
    key = accepted.effects.jobs[0].thread_key
    scene = Scene(thread_id, key, AttemptToken(key, "", 0))
    [claimed] = await s.runs.claim("w", [RunRef(key, "done")])
    assert claimed.attempt
    await s.runs.complete([Write(attempt=claimed.attempt, messages=[Message.assistant("one")], first_event=3)])
    await s.runs.accept(prompt(scene, "failed"))
    [claimed] = await s.runs.claim("w", [RunRef(key, "failed")])
    assert claimed.attempt
    [said] = await s.runs.append(claimed.attempt, [Message.assistant("half")])
    await s.runs.fail(Write(attempt=claimed.attempt), ErrorInfo(code="x", message="x"))
    scene.last = said.id
    await s.runs.accept(prompt(scene, "running"))
    await s.runs.accept(prompt(scene, "queued"))
    [claimed] = await s.runs.claim("w", [RunRef(key, "running")])
    assert claimed.attempt
    scene.attempt = claimed.attempt
    if suspended:
        await s.runs.suspend(Write(attempt=scene.attempt), [HitlRequest(request_id=f"q-{thread_id}")])
    return scene


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[PostgresBackend]:
    backend = await connect(postgres_url, max_pool_size=6)
    assert isinstance(backend, PostgresBackend)
    for worker in ("w", "w2"):
        await backend.workers.register(WorkerInfo(worker_id=worker, queues=["default"]))
    yield backend
    await backend.close()


async def blocked_or_done(db: Database, task: asyncio.Task[Any]) -> bool:
    """True once the second verb waits for a lock, False once it is through."""
    async with asyncio.timeout(DEADLINE):
        while not task.done():
            if await waiting_sessions(db.pool):
                return True
    return False


async def together(backend: PostgresBackend, first: Verb, second: Verb, scene: Scene) -> tuple[Any, Any, bool]:
    async with backend.db.transaction() as transaction:
        one = await outcome(first, Stores.on(transaction), scene)
        task = asyncio.create_task(outcome(second, Stores.on(backend.db), scene))
        waited = await blocked_or_done(backend.db, task)
        if not waited:
            await task
    return one, await task, waited


async def in_turn(s: Stores, first: Verb, second: Verb, scene: Scene) -> tuple[Any, Any]:
    return await outcome(first, s, scene), await outcome(second, s, scene)


@pytest.mark.parametrize("suspended", [False, True], ids=["running", "suspended"])
@pytest.mark.parametrize("first", VERBS, ids=lambda verb: verb.__name__)
async def test_pairs_of_verbs_act_as_if_in_turn(backend: PostgresBackend, first: Verb, suspended: bool) -> None:
    s = Stores.on(backend.db)
    if isinstance(await outcome(first, s, await prepare(s, "alone", suspended)), Refused):
        return  # a refusal ends the first transaction before the second begins
    wrong = []
    for second in some(VERBS, EVERY, (EVERY - 1 - VERBS.index(first)) % EVERY):
        live = await prepare(s, f"live-{second.__name__}", suspended)
        one, two, waited = await together(backend, first, second, live)
        got = ((one, two), await picture(s, live))
        scene = await prepare(s, f"turn-{second.__name__}", suspended)
        allowed = [(await in_turn(s, first, second, scene), await picture(s, scene))]
        if not waited:
            scene = await prepare(s, f"back-{second.__name__}", suspended)
            allowed.append(((await in_turn(s, second, first, scene))[::-1], await picture(s, scene)))
        if got not in allowed:
            wrong.append((second.__name__, waited, got, allowed))
    assert not wrong, "\n".join(map(str, wrong))
