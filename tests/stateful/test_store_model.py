"""Random sequences of every verb on the memory store and on Postgres: after each step both must show the same.

The memory store copies what a fork or a branch sees; Postgres keeps levels and cutoffs. Where they agree on every message,
leaf, run, request, extra and error class, the levels are right. Ids are chosen here, so that both sides use the same; ids that
a store makes itself (repairs) are compared as "made".
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from runyard.domain.states import ENDED, LIVE, RunStatus
from runyard.models import ErrorInfo, HitlRequest, RunOptions, Usage
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.refs import RunRef
from runyard.ports.results import Ended
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.memory import MemoryWorld
from runyard_backends.memory import connect as connect_memory
from runyard_backends.postgres.backend import connect as connect_postgres
from tests.stateful.choices import EXTERNALS, RUNS, THREADS
from tests.stateful.thread_rules import ThreadRules
from tests.stateful.two_stores import Connect, Key, Side, Sides
from tests.stateful.wait_rules import WaitRules
from tests.support.histories import CACHE_BYTES, short_histories_are_kept
from tests.support.long_form import LONG

ERROR = ErrorInfo(code="boom", message="boom")

examples = itertools.count(1)


class StoreMachine(ThreadRules, WaitRules, RuleBasedStateMachine):
    """Draws from small pools, so that ids collide; prefers what exists, so that most verbs succeed."""

    runs_of_interest = (*RUNS, *EXTERNALS)

    @initialize()
    def open(self) -> None:
        number = next(examples)
        self.tenants = [f"{number}", f"{number}x"]
        self.made = itertools.count(number << 64)
        self.chosen, self.spoken = set(), []
        self.workers = itertools.count()
        self.steps = 0

        async def connect(make: Connect) -> dict[str, Backend]:
            return {tenant: await make(tenant) for tenant in self.tenants}

        self.sides = [
            Side("left", Sides.runner.run(connect(Sides.left()))),
            Side("right", Sides.runner.run(connect(Sides.right()))),
        ]
        self.seen, self.started = {}, {}
        self.texts = itertools.count()
        self.hire()
        for tenant in self.tenants:
            self.furnish((tenant, "a"))

    def furnish(self, key: Key) -> None:
        """Something to begin with: plain messages, completed runs, one that goes on, interleaved external runs of which one
        completed after the other began and one is open, a fork after the first run, a run that waits for its child.
        """
        thread_id = key[1]

        def plain(*run_ids: str | None) -> None:
            messages = [self.message().model_copy(update={"run_id": run_id}) for run_id in run_ids]
            self.both(lambda side: side.backends[key[0]].checkpointer.append(thread_id, messages))

        def external(run_id: str, *, complete: bool = False) -> None:
            self.both(lambda side: self.mark(side, key, run_id, complete))

        plain(None)
        self.turn(key, AcceptRequest(thread_id=thread_id, run_id="r0", input=self.message()), finish=True)
        request = ForkRequest(src=thread_id, new="b", cut=Cut(after_run_id="r0"))
        self.both(lambda side: side.backends[key[0]].threads.fork(request), key, (key[0], "b"))
        for run_id in EXTERNALS[:3]:
            external(run_id)
        plain("x0", "x1", "x2", "x0")
        external("x0", complete=True)
        self.turn(key, AcceptRequest(thread_id=thread_id, run_id="r1", input=self.message()), finish=False)
        plain("x2", None)
        external("x1", complete=True)
        self.compare(key)
        self.furnish_family((key[0], "c"), (key[0], "d"))

    # what the rules share

    def hire(self) -> None:
        self.worker = f"w{self.tenants[0]}-{next(self.workers)}"
        self.both(lambda side: self.any(side).workers.register(WorkerInfo(worker_id=self.worker, queues=["default"])))

    def any(self, side: Side) -> Backend:
        return side.backends[self.tenants[0]]

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            self.compare_everything()

            async def close() -> None:
                for side in self.sides:
                    for backend in side.backends.values():
                        await backend.close()

            Sides.runner.run(close())

    # runs

    @rule(data=st.data(), strategy=st.sampled_from(["enqueue"] * 5 + ["reject", "interrupt", "rollback"]))
    def accept(self, data: st.DataObject, strategy: Any) -> None:
        key = self.thread(data)
        parent = self.parent(data, key) if data.draw(st.integers(0, 2)) == 0 else None
        message = self.said(data) if data.draw(st.integers(0, 4)) else None
        expires_in = data.draw(st.sampled_from([None] * 12 + [1e-6, 3600.0]))  # at once, or never
        options = RunOptions(parallel=data.draw(st.integers(0, 4)) == 0, multitask_strategy=strategy, expires_in=expires_in)
        delay = data.draw(st.sampled_from([None] * 15 + [3600.0]))
        run_id = data.draw(st.sampled_from(RUNS))
        request = AcceptRequest(
            thread_id=key[1], run_id=run_id, input=message, parent_id=parent, options=options, delay=delay, agent="A"
        )
        self.both(lambda side: side.backends[key[0]].runs.accept(request), key)

    @rule(data=st.data(), many=st.integers(2, 5))
    def accept_together(self, data: st.DataObject, many: int) -> None:
        """One batch of several threads of a tenant. Most requests are plain, and some are repetitions."""
        tenant = self.thread(data)[0]
        requests = [
            AcceptRequest(
                thread_id=data.draw(st.sampled_from(THREADS)),
                run_id=data.draw(st.sampled_from(RUNS)),
                input=self.said(data),
                agent=data.draw(st.sampled_from([None, "A", "A"])),
                options=RunOptions(parallel=data.draw(st.integers(0, 7)) == 0),
                delay=data.draw(st.sampled_from([None] * 9 + [3600.0])),
            )
            for _ in range(many)
        ]

        async def accept(side: Side) -> list[Any]:
            calls = [side.backends[tenant].runs.accept(request) for request in requests]
            return await asyncio.gather(*calls, return_exceptions=True)

        self.both(accept, *sorted({(tenant, request.thread_id) for request in requests}))

    @precondition(lambda self: self.any_run("queued"))
    @rule(data=st.data(), finish=st.booleans())
    def claim_together(self, data: st.DataObject, finish: bool) -> None:
        """One claim for a run of each thread, and perhaps one completion of what was claimed."""
        chosen = [(key, self.run_of(data, key, RunStatus.QUEUED)) for key in sorted(self.seen) if self.seen[key]["thread"]]
        keys = [key for key, _ in chosen]

        async def claim(side: Side) -> list[Any]:
            refs = [
                RunRef(await side.backends[key[0]].threads.thread_key(key[1]) or -1 - n, run_id)
                for n, (key, run_id) in enumerate(chosen)
            ]
            claims = {claim.ref: claim for claim in await self.any(side).runs.claim(self.worker, refs)}
            for pair, ref in zip(chosen, refs, strict=True):
                if (attempt := claims[ref].attempt) is not None:
                    side.attempts.setdefault(pair, []).append(attempt)
            return [claims[ref] for ref in refs]

        claims = self.both(claim, *keys)
        claimed = [pair for pair, claim in zip(chosen, claims or [], strict=False) if claim.outcome == "claimed"]
        answers = [self.messages_for(data, *pair) for pair in claimed]
        if not finish or not claimed:
            return

        claim_next = data.draw(st.booleans())

        async def complete(side: Side) -> list[Any]:
            writes = [
                Write(
                    attempt=side.attempts[pair][-1],
                    messages=answer,
                    usage=Usage(input_tokens=1) if n % 2 else None,
                    claim_next=claim_next,
                )
                for n, (pair, answer) in enumerate(zip(claimed, answers, strict=True))
            ]
            ends = await self.any(side).runs.complete(writes)
            for (key, _), end in zip(claimed, ends, strict=True):
                self.went_on(side, key, end)
            return ends

        self.both(complete, *keys)

    @rule(data=st.data(), parallel=st.sampled_from([False, False, True]), finish=st.booleans())
    def begin(self, data: st.DataObject, parallel: bool, finish: bool) -> None:
        """Accept and claim; perhaps complete. Most of what a thread goes through. Some runs have said something before."""
        key = self.thread(data)
        taken = self.seen.get(key, {}).get("runs", {})
        run_id = data.draw(st.sampled_from([run for run in RUNS if run not in taken] or RUNS))
        parent = self.known_message(data, key) if data.draw(st.integers(0, 3)) == 0 else None
        if data.draw(st.integers(0, 3)) == 0:
            early = self.said(data).model_copy(update={"run_id": run_id})
            self.both(lambda side: side.backends[key[0]].checkpointer.append(key[1], [early]), key)
        request = AcceptRequest(
            thread_id=key[1], run_id=run_id, input=self.said(data), parent_id=parent, options=RunOptions(parallel=parallel)
        )
        self.turn(key, request, finish=finish)

    def turn(self, key: Key, request: AcceptRequest, *, finish: bool) -> None:
        """Accept, claim, and complete if the claim succeeded."""
        run_id = request.run_id
        self.both(lambda side: side.backends[key[0]].runs.accept(request), key)
        self.both(lambda side: self.take(side, key, run_id), key)
        if finish and (key, run_id) in self.sides[0].attempts:
            answer = [self.message("assistant")]

            async def end(side: Side) -> Any:
                return await self.any(side).runs.complete([Write(attempt=side.attempts[key, run_id][-1], messages=answer)])

            self.both(end, key)

    async def take(self, side: Side, key: Key, run_id: str) -> Any:
        thread_key = await side.backends[key[0]].threads.thread_key(key[1])
        (claim,) = await self.any(side).runs.claim(self.worker, [RunRef(thread_key or -1, run_id)])
        if claim.attempt is not None:
            side.attempts.setdefault((key, run_id), []).append(claim.attempt)
            return [claim, await self.any(side).runs.context(claim.attempt), await self.waited(side, claim.attempt)]
        return claim

    @rule(data=st.data())
    def accept_fork_job(self, data: st.DataObject) -> None:
        key = self.thread(data)
        after = self.run_of(data, key, RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.COMPLETED)
        run_id = data.draw(st.sampled_from(RUNS))
        fork = ForkRequest(src=key[1], new=f"job-{run_id}", cut=Cut(after_run_id=after))
        request = AcceptRequest(thread_id=key[1], run_id=run_id, kind="fork", fork=fork)
        self.both(lambda side: side.backends[key[0]].runs.accept(request), key)

    @precondition(lambda self: self.any_run("queued", "running"))
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        key = self.thread_with(data, "queued", "running")
        run_id = self.run_of(data, key, RunStatus.QUEUED, RunStatus.RUNNING)

        self.both(lambda side: self.take(side, key, run_id), key)

    @precondition(lambda self: self.with_attempt())
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        key, run_id, attempt = self.attempt(data)
        messages = self.messages_for(data, key, run_id)
        self.both(lambda side: self.any(side).runs.append(attempt(side), messages), key)

    def went_on(self, side: Side, key: Key, end: Any) -> None:
        """Keep the attempt of the next run of the lane, if the end ``end`` of a run has claimed it."""
        if isinstance(end, Ended) and end.next is not None and end.next.attempt is not None:
            side.attempts.setdefault((key, end.next.ref.run_id), []).append(end.next.attempt)

    @precondition(lambda self: self.with_attempt())
    @rule(
        data=st.data(),
        extra=st.none() | st.dictionaries(st.sampled_from(["p", "q", "fork"]), st.integers(0, 3)),
        claim_next=st.booleans(),
    )
    def complete(self, data: st.DataObject, extra: Any, claim_next: bool) -> None:
        key, run_id, attempt = self.attempt(data)
        messages = self.messages_for(data, key, run_id)

        async def complete(side: Side) -> Any:
            usage = Usage(input_tokens=1)
            (ended,) = await self.any(side).runs.complete(
                [Write(attempt=attempt(side), messages=messages, extra=extra, usage=usage, claim_next=claim_next)]
            )
            self.went_on(side, key, ended)
            if isinstance(ended, Exception):
                raise ended
            return ended

        self.both(complete, key)

    @precondition(lambda self: self.with_attempt())
    @rule(data=st.data(), how=st.sampled_from(["fail", "release", "retry", "context", "step", "isolate", "bury"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        key, run_id, attempt = self.attempt(data)
        messages = self.messages_for(data, key, run_id) if how == "fail" else []

        async def leave(side: Side) -> Any:
            runs, held = self.any(side).runs, attempt(side)
            match how:
                case "fail":
                    return await runs.fail(Write(attempt=held, messages=messages, extra={"p": 9}), ERROR)
                case "context":
                    return [await runs.context(held), sorted((await runs.ledger(held)).requests), await self.waited(side, held)]
                case "step":
                    step = await runs.start_step(held, "k")
                    await runs.finish_step(held, "k", 1)
                    return [step and step.done, step and step.result]
                case "isolate":
                    return await runs.isolate(held)
                case "bury":
                    return await runs.bury(held, "killed")
            return await runs.release(held, error=ERROR if how == "retry" else None)

        self.both(leave, key)

    @precondition(lambda self: self.with_attempt())
    @rule(data=st.data(), many=st.integers(1, 2))
    def suspend(self, data: st.DataObject, many: int) -> None:
        key, run_id, attempt = self.attempt(data)
        messages = self.messages_for(data, key, run_id)
        requests = [HitlRequest(request_id=self.id()) for _ in range(many)]

        async def suspend(side: Side) -> Any:
            return await self.any(side).runs.suspend(Write(attempt=attempt(side), messages=messages, extra={"q": 7}), requests)

        self.both(suspend, key)

    @precondition(lambda self: any(view.get("requests") for view in self.seen.values()))
    @rule(data=st.data(), answer=st.integers(0, 1))
    def respond(self, data: st.DataObject, answer: int) -> None:
        asked = [key for key, view in self.seen.items() if view.get("requests")]
        key = data.draw(st.sampled_from(asked))
        known = [request[0] for request in self.seen.get(key, {}).get("requests", [])]
        request_id = data.draw(st.sampled_from([None, *known]))
        response_id = data.draw(st.sampled_from([None, "p", "q"]))
        fields = {"thread_id": key[1], "request_id": request_id, "response_id": response_id}
        self.both(lambda side: side.backends[key[0]].runs.respond(answer, **fields), key)

    @rule(data=st.data(), keep=st.booleans())
    def cancel(self, data: st.DataObject, keep: bool) -> None:
        key = self.thread(data)
        run_id = data.draw(
            st.sampled_from([self.run_of(data, key, *sorted(LIVE)), self.run_of(data, key, *sorted(LIVE)), *EXTERNALS[:1]])
        )
        self.both(lambda side: side.backends[key[0]].runs.cancel(key[1], run_id, keep=keep), key)

    @precondition(lambda self: any(view.get("requests") for view in self.seen.values()))
    @rule(data=st.data(), named=st.booleans())
    def abort(self, data: st.DataObject, named: bool) -> None:
        key = data.draw(st.sampled_from([key for key, view in self.seen.items() if view.get("requests")]))
        run_id = self.run_of(data, key, *sorted(LIVE)) if named else None

        async def abort(side: Side) -> Any:
            done = await side.backends[key[0]].runs.abort_pending(key[1], "why", run_id=run_id)
            return [done.run, sorted(job.run_id for job in done.effects.jobs)]

        self.both(abort, key)

    @precondition(lambda self: self.any_run("failed", "dead"))
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        key = self.thread_with(data, "failed", "dead")
        run_id = self.run_of(data, key, RunStatus.FAILED, RunStatus.DEAD)

        async def redrive(side: Side) -> Any:
            changed = await side.backends[key[0]].runs.redrive(key[1], run_id)
            return [changed.run, changed.effects.jobs and changed.effects.jobs[0].run_id]

        self.both(redrive, key)

    @precondition(lambda self: self.any_run("cancelled", "failed", "dead", "completed"))
    @rule(data=st.data())
    def delete_run(self, data: st.DataObject) -> None:
        """What lives or counts is refused. No context changes, nor does anything that another thread shows."""
        key = self.thread_with(data, *sorted(ENDED))
        fitting = [RunStatus.CANCELLED, RunStatus.FAILED, RunStatus.DEAD] * 3 + sorted(RunStatus)
        run_id = self.run_of(data, key, data.draw(st.sampled_from(fitting)))
        before = {other: view.copy() for other, view in self.seen.items()}

        async def delete_run(side: Side) -> Any:
            runs = side.backends[key[0]].runs
            await runs.delete_run(key[1], run_id)
            return await runs.run(key[1], run_id)

        deleted = self.both(delete_run, *self.seen)
        assert {k: view for k, view in before.items() if k != key} == {k: view for k, view in self.seen.items() if k != key}
        now, then = self.seen[key], before[key]
        assert all(now[part] == then[part] for part in ("thread", "load", "pending"))
        if deleted is None:
            assert now == then
        else:
            assert deleted.completion_seq is None and deleted.status in ENDED
            assert run_id not in now["runs"] and run_id not in [request[1] for request in now["requests"]]

    @precondition(lambda self: self.any_run("running"))
    @rule()
    def crash(self) -> None:
        """Every running run loses its worker."""

        async def bury(side: Side) -> bool:
            workers = self.any(side).workers
            (worker,) = [w for w in await workers.workers() if w.worker_id == self.worker]
            assert worker.heartbeat_at is not None
            return await workers.mark_dead(self.worker, worker.heartbeat_at)

        self.both(bury)
        self.hire()


STEPS = settings(
    max_examples=int(os.environ.get("RUNYARD_TEST_SEQUENCES", "20" if LONG else "8")),
    phases=(Phase.reuse, Phase.generate),  # shrinking would take longer than reading thirty steps
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def memory() -> Connect:
    """A fresh memory database."""
    world = MemoryWorld()

    async def connect(tenant: str) -> Backend:
        return await connect_memory(tenant=tenant, world=world)

    return connect


@pytest.fixture
def loop() -> Iterator[None]:
    with asyncio.Runner() as Sides.runner:
        yield


@pytest.mark.usefixtures("loop")
def test_memory_against_itself() -> None:
    """The machine alone: what it compares depends on nothing but the steps."""
    Sides.left = Sides.right = staticmethod(memory)
    run_state_machine_as_test(StoreMachine, settings=settings(STEPS, max_examples=5))


@pytest.mark.timeout(400 + 10 * STEPS.max_examples)
@pytest.mark.usefixtures("loop")
def test_postgres_against_memory(module_postgres_url: str) -> None:
    """S1, S2: levels and cutoffs show what copies show, whatever happened."""

    def postgres() -> Connect:
        async def connect(tenant: str) -> Backend:
            return await connect_postgres(
                module_postgres_url, tenant=tenant, min_pool_size=1, max_pool_size=1, history_cache_bytes=CACHE_BYTES
            )

        return connect

    Sides.left, Sides.right = staticmethod(memory), staticmethod(postgres)
    with short_histories_are_kept():
        run_state_machine_as_test(StoreMachine, settings=STEPS)
