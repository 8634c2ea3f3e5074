"""Random sequences of verbs that need no worker, on the memory store and on each other store. After each step both stores must
show the same data.

The memory store copies the messages that a fork or a branch sees. The other stores have levels and cutoffs. The sequences have
forks of forks, inherited and partly visible runs, interleaved external runs, messages without a run, unclaimed runs, requests,
labels and deletions.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from runyard.domain.states import RunStatus
from runyard.models import HitlRequest
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.scheduling import Effects
from runyard.ports.stores import Backend
from runyard_backends.memory import MemoryWorld
from runyard_backends.memory import connect as connect_memory
from runyard_backends.postgres.backend import connect as connect_postgres
from runyard_backends.sql.backend import connect_mysql, connect_sqlite
from tests.stateful.choices import EXTERNALS, RUNS
from tests.stateful.thread_rules import ThreadRules
from tests.stateful.two_stores import Connect, Key, Side, Sides
from tests.support.long_form import LONG

EXAMPLES = int(os.environ.get("RUNYARD_TEST_CHECKPOINTS", "8" if LONG else "4"))
"""Number of random sequences for each pair of stores."""

examples = itertools.count(1)


class CheckpointMachine(ThreadRules, RuleBasedStateMachine):
    """Draws ids from small pools, so that ids collide. Prefers ids that exist, so that most verbs succeed."""

    runs_of_interest = (*RUNS, *EXTERNALS)

    @initialize()
    def open(self) -> None:
        number = next(examples)
        self.tenants = [f"c{number}", f"c{number}x"]
        self.made = itertools.count((1 << 100) + (number << 64))
        self.chosen, self.spoken, self.seen = set(), [], {}
        self.texts = itertools.count()

        async def connect(make: Connect) -> dict[str, Backend]:
            return {tenant: await make(tenant) for tenant in self.tenants}

        self.sides = [
            Side("left", Sides.runner.run(connect(Sides.left()))),
            Side("right", Sides.runner.run(connect(Sides.right()))),
        ]
        for tenant in self.tenants:
            self.furnish((tenant, "a"))

    def furnish(self, key: Key) -> None:
        """Make the first data: plain messages, interleaved runs, an open run, an unclaimed run, a fork inside of a run, and a
        fork of this fork."""
        parts: list[str | None] = [None, "x0", "x1", "x0", None, "x2", "x1"]
        messages = [self.message().model_copy(update={"run_id": run_id}) for run_id in parts]
        for run_id in EXTERNALS[:2]:
            self.both(lambda side, run_id=run_id: self.mark(side, key, run_id, False))
        self.both(lambda side: side.backends[key[0]].checkpointer.append(key[1], messages))
        self.both(lambda side: self.mark(side, key, "x0", True))
        inside = ForkRequest(src=key[1], new="b", cut=Cut(at_message_id=messages[2].id))
        self.both(lambda side: side.backends[key[0]].threads.fork(inside))
        again = ForkRequest(src="b", new="c", cut=Cut(at_message_id=messages[1].id))
        self.both(lambda side: side.backends[key[0]].threads.fork(again), key, (key[0], "b"), (key[0], "c"))

    def plain(self, value: Any) -> Any:
        """Return a result for the comparison. Effects become None, because only stores with workers return effects."""
        return None if isinstance(value, Effects) else super().plain(value)

    def run_of(self, data: st.DataObject, key: Key, *statuses: RunStatus) -> str:
        runs = self.seen.get(key, {}).get("runs", {})
        return data.draw(st.sampled_from([run_id for run_id, run in runs.items() if run["status"] in statuses] or EXTERNALS))

    @rule(data=st.data(), kinds=st.lists(st.sampled_from(["user", "assistant", "call", "result"]), min_size=1, max_size=3))
    def turn(self, data: st.DataObject, kinds: list[str]) -> None:
        """Claim a new run and append messages. Complete the run in some cases."""
        key = self.thread(data)
        taken = self.seen.get(key, {}).get("runs", {})
        run_id = data.draw(st.sampled_from([run for run in RUNS if run not in taken] or RUNS))
        complete = data.draw(st.integers(0, 3)) > 0
        self.both(lambda side: self.mark(side, key, run_id, False), key)
        calls: list[str] = []
        messages = []
        for kind in kinds:
            message = self.said(data, kind, calls)
            calls = [call.id for call in message.tool_calls]
            messages.append(message.model_copy(update={"run_id": run_id}))
        self.both(lambda side: side.backends[key[0]].checkpointer.append(key[1], messages), key)
        if complete:
            self.both(lambda side: self.mark(side, key, run_id, True), key)

    @rule(data=st.data(), run_id=st.sampled_from([*EXTERNALS, *RUNS[:3]]), many=st.integers(1, 3), how=st.integers(0, 9))
    def ask(self, data: st.DataObject, run_id: str, many: int, how: int) -> None:
        key = self.thread(data)
        due: dict[str, Any] = {}
        if how == 0:
            due = {"timeout": 0.0, "on_deadline": {"answer": 7}}
        elif how == 1:
            due = {"timeout": 0.0, "on_deadline": {"fail": True}}
        asked = [HitlRequest(request_id=self.id(), **due) for _ in range(many)]
        if how in (4, 5):  # an id that a request of any thread of the tenant has
            threads = [shown for (tenant, _), shown in self.seen.items() if tenant == key[0]]
            known = [request[0] for shown in threads for request in shown.get("requests", [])]
            asked[-1].request_id = data.draw(st.sampled_from(known or [asked[-1].request_id]))

        async def save(side: Side) -> None:
            store: Any = side.backends[key[0]].checkpointer
            if how in (2, 4):
                await store.save_pending_request(key[1], asked[-1], run_id=run_id)
            elif how == 3:
                await store.save_pending_request(key[1], None)
            else:
                await store.save_requests(key[1], asked, run_id=run_id)

        async def load(side: Side) -> Any:
            store: Any = side.backends[key[0]].checkpointer
            return sorted(request.request_id for request in await store.load_requests(key[1]))

        self.both(save)
        self.both(load, key)

    @rule(data=st.data(), answer=st.integers(0, 1), response_id=st.sampled_from([None, None, "p", "q"]))
    def respond(self, data: st.DataObject, answer: int, response_id: str | None) -> None:
        key = self.thread(data)
        known = [request[0] for request in self.seen.get(key, {}).get("requests", [])]
        request_id = data.draw(st.sampled_from([None, *known]))
        named = {"request_id": request_id, "response_id": response_id}

        async def respond(side: Side) -> Any:
            store: Any = side.backends[key[0]].checkpointer
            done = await store.answer_request(key[1], answer, **named)
            return [done.created, done.last, done.request]

        self.both(respond, key)

    @rule(data=st.data(), keep=st.booleans(), abort=st.booleans())
    def stop(self, data: st.DataObject, keep: bool, abort: bool) -> None:
        key = self.thread(data)
        run_id = self.run_of(data, key, RunStatus.RUNNING)

        async def stop(side: Side) -> Any:
            backend = side.backends[key[0]]
            store: Any = backend.checkpointer
            if abort:
                return (await store.abort_pending(key[1], "why", run_id=run_id if keep else None)).run
            return (await backend.runs.cancel(key[1], run_id, keep=keep)).run

        self.both(stop, key)

    @rule(data=st.data())
    def delete_run(self, data: st.DataObject) -> None:
        key = self.thread(data)
        run_id = self.run_of(data, key, RunStatus.CANCELLED, RunStatus.FAILED)
        self.both(lambda side: side.backends[key[0]].runs.delete_run(key[1], run_id), *self.seen)

    @rule(data=st.data(), extra=st.dictionaries(st.sampled_from(["p", "q"]), st.none() | st.integers(0, 3)) | st.none())
    def update(self, data: st.DataObject, extra: Any) -> None:
        key = self.thread(data)
        title = data.draw(st.sampled_from([None, "one", "two"]))

        async def update(side: Side) -> Any:
            thread = await side.backends[key[0]].threads.update_thread(key[1], title=title, extra=extra)
            return [thread.title, thread.tags, thread.extra]

        self.both(update, key)

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            self.compare_everything()

            async def close() -> None:
                for side in self.sides:
                    for backend in side.backends.values():
                        await backend.close()

            Sides.runner.run(close())


STEPS = settings(
    max_examples=EXAMPLES,
    phases=(Phase.reuse, Phase.generate),
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


def compare(connect: Connect) -> None:
    Sides.left, Sides.right = staticmethod(memory), staticmethod(lambda: connect)
    run_state_machine_as_test(CheckpointMachine, settings=STEPS)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("loop")
def test_sqlite_against_memory(tmp_path: Path) -> None:
    """S1, S2, R15: After any sequence, the levels of a SQLite file show the same messages as copies."""

    async def connect(tenant: str) -> Backend:
        return await connect_sqlite(f"sqlite:///{tmp_path}/store.db", tenant=tenant)

    compare(connect)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("loop")
def test_mysql_against_memory(migrated_mysql: str) -> None:
    """S1, S2, R15: After any sequence, the levels in MariaDB show the same messages as copies."""

    async def connect(tenant: str) -> Backend:
        return await connect_mysql(migrated_mysql, tenant=tenant, max_pool_size=1)

    compare(connect)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("loop")
def test_postgres_against_memory(module_postgres_url: str) -> None:
    """S1, S2, R15: After any sequence, the levels in Postgres show the same messages as copies."""

    async def connect(tenant: str) -> Backend:
        return await connect_postgres(module_postgres_url, tenant=tenant, min_pool_size=1, max_pool_size=1)

    compare(connect)
