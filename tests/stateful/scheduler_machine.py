"""The scheduler's scripts against a model of Postgres, over random orders of submit, claim, suspend, respond, release and
loss.

The model of Postgres holds each lane's runs in order. Everything between a commit there and its effect in Redis is a step of
its own, so that any other step may come between, and the one who holds the effect may die instead.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from runyard.models import PRIORITIES
from runyard.ports.scheduling import Delivery, Job
from runyard_backends.redis import RedisEventLog, RedisScheduler, RedisServer

T = TypeVar("T")

LOCK = 30.0
"""Seconds; locks run out when a rule says so, never by themselves."""
FAR = 600.0
SOON = 60.0
"""Seconds of ``missing_jobs.lua``: a due job that is offered for later than that is missing."""
LANES = (1, 2)
QUEUES = ["q", "r"]


@dataclass
class Row:
    """A run as Postgres knows it."""

    job: Job
    status: str = "queued"
    worker: str | None = None
    delayed: bool = False


@dataclass
class Hand:
    """A job in a worker's hands. ``submit``: what the last commit asks of Redis, set once Postgres is done with it."""

    delivery: Delivery
    running: bool = False
    submit: list[Job] | None = None


@dataclass
class Worker:
    id: str
    hands: list[Hand] = field(default_factory=list)


class SchedulerMachine(RuleBasedStateMachine):
    redis_url = ""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.server = RedisServer(self.redis_url)
        self.scheduler = RedisScheduler(self.server, RedisEventLog(self.server), lock=LOCK)
        self.do(self.server.command("FLUSHDB"))
        self.lanes: dict[int, list[Row]] = {lane: [] for lane in LANES}
        self.alive: dict[str, Worker] = {}
        self.stale: list[tuple[str, Delivery]] = []  # of workers that died or lost the lock
        self.clients: list[list[Job]] = []  # submissions between a client's commit and Redis
        self.faults = False
        self.names = iter(range(10**6))
        for _ in range(2):
            self.hire()

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        try:
            self.everything_ends()
        finally:
            self.do(self.server.close())
            self.runner.close()

    # -- the model of Postgres

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def hire(self) -> None:
        worker = Worker(f"w{next(self.names)}")
        self.alive[worker.id] = worker

    def row(self, job: Job) -> Row:
        return next(row for row in self.lanes[job.thread_key] if row.job.run_id == job.run_id)

    def head(self, lane: int) -> Row | None:
        return next((row for row in self.lanes[lane] if row.status != "ended"), None)

    def effects(self, lane: int) -> list[Job]:
        head = self.head(lane)
        return [head.job] if head and head.status == "queued" and not head.delayed else []

    def hands(self, *, running: bool | None = None, done: bool = False) -> list[tuple[Worker, Hand]]:
        return [
            (worker, hand)
            for worker in self.alive.values()
            for hand in worker.hands
            if (hand.submit is not None) == done and (running is None or hand.running == running)
        ]

    # -- what Redis holds

    def keys(self, kind: str) -> list[bytes]:
        return self.do(self.server.command("KEYS", f"*:{kind}:*"))

    def named(self, kind: str) -> dict[str, bytes]:
        """Keys by what follows their kind."""
        return {key.decode().split(f"}}:{kind}:", 1)[1]: key for key in self.keys(kind)}

    def now(self) -> float:
        seconds, micros = self.do(self.server.command("TIME"))
        return int(seconds) * 1000 + int(micros) / 1000

    def offered(self, within: float = math.inf) -> dict[str, bool]:
        """Job id → whether it is due, of the jobs that are due in ``within`` seconds."""
        now, out = self.now(), {}
        for kind in ("later", "due"):
            for key in self.keys(kind):
                reply = self.do(self.server.command("ZRANGE", key, 0, -1, "WITHSCORES"))
                for id_, score in zip(reply[::2], reply[1::2], strict=True):
                    assert id_.decode() not in out, "a job is offered once"
                    if kind == "later" and float(score) > now + within * 1000:
                        continue
                    out[id_.decode()] = kind == "due" or float(score) <= now
        return out

    def locks(self) -> dict[str, str]:
        out = {}
        for lane, key in self.named("lock").items():
            assert self.do(self.server.command("PTTL", key)) > 0, "every lock runs out"
            out[lane] = self.do(self.server.command("GET", key)).decode()
        return out

    def notes(self) -> set[str]:
        """Ids of the jobs that wait for a lock."""
        return {id_.decode() for key in self.keys("wait") for id_ in self.do(self.server.command("HKEYS", key))}

    @staticmethod
    def value(worker_id: str, delivery: Delivery) -> str:
        return f"{worker_id}|{delivery.job.run_id}|{delivery.token}"

    # -- clients

    @rule(
        lane=st.sampled_from(LANES),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from(PRIORITIES),
        at_once=st.booleans(),
    )
    def accept(self, lane: int, queue: str, priority: Any, at_once: bool) -> None:
        self.lanes[lane].append(Row(Job(lane, f"r|{next(self.names)}:", queue=queue, priority=priority)))
        self.clients.append(self.effects(lane))
        if at_once:
            self.client_submits(-1)

    @precondition(lambda self: self.clients)
    @rule(n=st.integers(0, 9))
    def client_submits(self, n: int) -> None:
        self.do(self.scheduler.submit(self.clients.pop(n % len(self.clients))))

    @precondition(lambda self: self.clients)
    @rule()
    def client_dies(self) -> None:
        self.faults |= bool(self.clients.pop(0))

    @rule(lane=st.sampled_from(LANES))
    def respond(self, lane: int) -> None:
        head = self.head(lane)
        if head and head.status == "suspended":
            head.status = "queued"
            self.clients.append([head.job])

    @rule(lane=st.sampled_from(LANES), n=st.integers(0, 9), delay=st.sampled_from([0.0, FAR]))
    def submitted_once_more(self, lane: int, n: int, delay: float) -> None:
        if rows := self.lanes[lane]:
            job, before = rows[n % len(rows)].job, self.offered()
            self.do(self.scheduler.submit([replace(job, delay=delay)]))
            assert self.offered() == before | {job.id: delay == 0 or before.get(job.id, False)}, "the earlier due time stays"

    # -- workers

    @rule(n=st.integers(0, 9), limit=st.sampled_from([1, 2, 100]), wait=st.sampled_from([0.0, 0.001]))
    def claim(self, n: int, limit: int, wait: float = 0.0) -> None:
        worker = list(self.alive.values())[n % len(self.alive)]
        before, due = self.locks(), {id_ for id_, is_due in self.offered().items() if is_due}
        deliveries = self.do(self.scheduler.claim(worker.id, QUEUES, limit, wait))
        held, offered, noted = self.locks(), self.offered(), self.notes()
        taken: set[str] = set()
        for delivery in deliveries:
            job = delivery.job
            assert job == self.row(job).job, "the payload is the job that was submitted"
            assert job.id in due and job.id not in offered, "a delivery was due and is offered no more"
            assert job.lane_key not in taken, "one holder per lane"
            assert job.id not in noted, "who got the lane waits no more"
            taken.add(job.lane_key)
            assert held[job.lane_key] == self.value(worker.id, delivery)
            if other := before.get(job.lane_key):
                owner, run, _ = re.fullmatch(r"([^|]*)\|(.*)\|(\d+)", other).groups()  # type: ignore[union-attr]
                assert run == job.run_id and owner != worker.id, "only the lock of the same run passes, and never to its holder"
            worker.hands.append(Hand(delivery))
        left = due - {delivery.job.id for delivery in deliveries}
        assert left <= set(offered), "what was not delivered is still offered"
        put_back = {id_ for id_ in left if not offered[id_]}
        assert all(id_.split(":")[0] in held for id_ in put_back), "only a locked lane puts a job back"
        assert put_back <= noted, "and its release will know of it"
        assert len(deliveries) == limit or not any(offered[id_] for id_ in left), "a claim leaves nothing that it could take"
        assert {lane: v for lane, v in before.items() if lane not in taken} == {k: v for k, v in held.items() if k not in taken}

    @precondition(lambda self: self.hands(running=False))
    @rule(n=st.integers(0, 9))
    def postgres_claims(self, n: int) -> None:
        ready = self.hands(running=False)
        worker, hand = ready[n % len(ready)]
        row = self.row(hand.delivery.job)
        takeover = row.status == "running" and row.worker not in self.alive
        if (row.status == "queued" and not row.delayed and self.head(row.job.thread_key) is row) or takeover:
            row.status, row.worker, hand.running = "running", worker.id, True
        elif row.status == "queued" and row.delayed:
            hand.submit = [replace(row.job, delay=FAR)]  # not due: submitted again for its time
        else:
            hand.submit = []  # refused for good: busy, behind, suspended, ended

    @precondition(lambda self: self.hands(running=True))
    @rule(n=st.integers(0, 9), verb=st.sampled_from(["complete", "complete", "suspend", "retry", "hand over"]))
    def commit(self, n: int, verb: str) -> None:
        running = self.hands(running=True)
        worker, hand = running[n % len(running)]
        row = self.row(hand.delivery.job)
        hand.running, hand.submit = False, []
        if row.worker != worker.id or row.status != "running":
            return  # its fence is stale: refused
        row.worker = None
        row.status = {"complete": "ended", "suspend": "suspended"}.get(verb, "queued")
        row.delayed = verb == "retry"
        hand.submit = [replace(row.job, delay=FAR)] if row.delayed else self.effects(row.job.thread_key)

    @precondition(lambda self: self.hands(done=True))
    @rule(n=st.integers(0, 9))
    def release(self, n: int) -> None:
        done = self.hands(done=True)
        worker, hand = done[n % len(done)]
        worker.hands.remove(hand)
        lane, value = hand.delivery.job.lane_key, self.value(worker.id, hand.delivery)
        before, offered = self.locks(), self.offered()
        noted = {id_ for id_ in self.notes() if id_.startswith(f"{lane}:")}
        self.do(self.scheduler.release(worker.id, [hand.delivery], hand.submit or ()))
        after = self.offered()
        if before.get(lane) == value:
            assert lane not in self.locks()
            assert noted <= offered.keys(), "only what is offered waits"
            assert all(after[id_] for id_ in noted), "who waited for the lane is due now"
        else:
            assert self.locks() == before, "a stale token changes no lock"
        assert offered.keys() | {job.id for job in hand.submit or ()} == after.keys()
        self.stale.append((worker.id, hand.delivery))

    @precondition(lambda self: self.stale)
    @rule(n=st.integers(0, 99))
    def stale_owner_acts(self, n: int) -> None:
        """I2: who lost or gave back a lock can neither extend nor delete it, nor anything else."""
        worker_id, delivery = self.stale[n % len(self.stale)]
        if self.locks().get(delivery.job.lane_key) == self.value(worker_id, delivery):
            return  # a dead worker's lock that has not run out
        before = (self.locks(), self.offered(), self.named("job").keys())
        assert self.do(self.scheduler.renew(worker_id, [delivery])) == [delivery]
        self.do(self.scheduler.release(worker_id, [delivery]))
        assert (self.locks(), self.offered(), self.named("job").keys()) == before

    @rule(n=st.integers(0, 9), steps=st.integers(0, 3))
    def work(self, n: int, steps: int) -> None:
        """A claim and the usual steps after it, so that long histories are common."""
        self.claim(n, 100)
        if steps >= 1 and self.hands(running=False):
            self.postgres_claims(n)
        if steps >= 2 and self.hands(running=True):
            self.commit(n, ["complete", "suspend", "retry"][n % 3])
        if steps >= 3 and self.hands(done=True):
            self.release(n)

    @rule(lane=st.sampled_from(LANES))
    def prompt(self, lane: int) -> None:
        self.accept(lane, QUEUES[0], "normal", True)

    @rule(n=st.integers(0, 9))
    def renew(self, n: int) -> None:
        worker = list(self.alive.values())[n % len(self.alive)]
        before = self.locks()
        deliveries = [hand.delivery for hand in worker.hands]
        lost = self.do(self.scheduler.renew(worker.id, deliveries))
        assert lost == [d for d in deliveries if before.get(d.job.lane_key) != self.value(worker.id, d)]
        assert self.locks() == before

    # -- time and failures

    @rule(lane=st.sampled_from(LANES))
    def lock_runs_out(self, lane: int) -> None:
        """Time passes for one lane: its lock is gone and what waited for its end is due."""
        self.pass_time(lane, LOCK + 1)
        if key := self.named("lock").get(str(lane)):
            self.do(self.server.command("DEL", key))

    @rule(lane=st.sampled_from(LANES))
    def backoff_ends(self, lane: int) -> None:
        for row in self.lanes[lane]:
            row.delayed = False
        self.pass_time(lane, FAR + 1)

    def pass_time(self, lane: int, seconds: float) -> None:
        for key in self.keys("later"):
            for id_ in self.do(self.server.command("ZRANGE", key, 0, -1)):
                if id_.startswith(b"%d:" % lane):
                    self.do(self.server.command("ZINCRBY", key, -seconds * 1000, id_))

    @rule(n=st.integers(0, 9), chance=st.integers(0, 1))
    def kill_worker(self, n: int, chance: int) -> None:
        if chance:
            return
        worker = self.alive.pop(list(self.alive)[n % len(self.alive)])
        self.stale += [(worker.id, hand.delivery) for hand in worker.hands]
        self.faults |= bool(worker.hands)
        self.hire()

    @rule()
    def flush_scripts(self) -> None:
        self.do(self.server.command("SCRIPT", "FLUSH"))

    @rule(chance=st.integers(0, 4))
    def flush_all(self, chance: int) -> None:
        if chance:
            return  # seldom, or little is left to go wrong
        self.do(self.server.command("FLUSHDB"))
        self.faults = True

    @rule()
    def reconcile(self) -> None:
        heads = [head for lane in LANES if (head := self.head(lane))]
        queued = [head.job for head in heads if head.status == "queued" and not head.delayed]
        offered, locks = self.offered(within=SOON), self.locks()
        nowhere = [job for job in queued if job.id not in offered and f"|{job.run_id}|" not in locks.get(job.lane_key, "")]
        assert self.do(self.scheduler.missing_jobs(queued)) == nowhere
        orphans = [head.job for head in heads if head.status == "running" and head.worker not in self.alive]
        self.do(self.scheduler.submit(nowhere + orphans))

    # -- what always holds

    @invariant()
    def every_offer_has_its_job(self) -> None:
        if hasattr(self, "server"):
            assert self.named("job").keys() == self.offered().keys()

    @invariant()
    def nothing_is_lost(self) -> None:
        """I1: without a failure a lane's queued head is offered, in a worker's hands, or on its way from a commit to Redis."""
        if not hasattr(self, "server") or self.faults:
            return
        offered = self.offered()
        known = {hand.delivery.job.id for _, hand in self.hands()} | {job.id for jobs in self.clients for job in jobs}
        known |= {job.id for _, hand in self.hands(done=True) for job in hand.submit or ()}
        for lane in LANES:
            if (head := self.head(lane)) and head.status == "queued":
                assert head.job.id in offered or head.job.id in known

    def everything_ends(self) -> None:
        """I1: from any state, work goes on until every run has ended; the reconciler is needed only after a failure."""
        for _ in range(20 + 4 * sum(map(len, self.lanes.values()))):
            if not any(self.head(lane) for lane in LANES):
                return
            for lane in LANES:
                self.respond(lane)
                self.backoff_ends(lane)
                self.pass_time(lane, FAR)  # a retry that was still on its way when its backoff ended
            while self.clients:
                self.client_submits(0)
            if self.faults:
                for lane in LANES:
                    if (head := self.head(lane)) and head.worker not in self.alive:
                        self.lock_runs_out(lane)
                self.reconcile()
            self.claim(0, 100)
            while self.hands(running=False):
                self.postgres_claims(0)
            while self.hands(running=True):
                self.commit(0, "complete")
            while self.hands(done=True):
                self.release(0)
        pytest.fail(f"unfinished: {self.lanes}")


def holds_in_every_order(redis_url: str, examples: int) -> None:
    """Try ``examples`` random histories of 40 steps on the server at ``redis_url``, which is emptied before each."""
    SchedulerMachine.redis_url = redis_url
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(max_examples=examples, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )
