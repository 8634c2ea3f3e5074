"""The rules of the store machine for waits that no human ends: sleeps, signals, children, and the reconciler (K1 to K3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from runyard.domain.states import RunStatus
from runyard.domain.waits import Wait
from runyard.models import HitlRequest
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.scheduling import Effects
from runyard_backends.memory import MemoryBackend
from runyard_backends.postgres.backend import PostgresBackend
from tests.stateful.choices import RUNS, THREADS, Choices
from tests.stateful.two_stores import Key, Side

NAMES = ["go", "stop"]
SIGNALS = [f"s{n}" for n in range(5)]
LONG = 3600.0
PASS_TIME = """
    UPDATE runyard.waits w SET due_at = now() FROM runyard.threads t
    WHERE t.thread_key = w.thread_key AND t.tenant = ANY ($1) AND w.kind <> 'child' AND w.due_at > now()
"""


class WaitRules(Choices):
    """Verbs of runs that wait. ``started``: the children that were started, by their parents."""

    started: dict[tuple[Key, str], list[tuple[str, str]]]

    def furnish_family(self, parent: Key, child: Key) -> None:
        """A run that waits for a signal and for its child, which runs."""
        request = AcceptRequest(thread_id=parent[1], run_id="r2", input=self.message())
        self.both(lambda side: side.backends[parent[0]].runs.accept(request), parent)
        self.both(lambda side: self.take(side, parent, "r2"), parent)
        message = self.message()
        waits = [
            Wait(wait_id="r3", kind="child", name=child[1]),
            Wait(wait_id="go 0", kind="signal", name="go", timeout=LONG),
        ]

        async def start(side: Side) -> Any:
            runs, attempt = side.backends[parent[0]].runs, side.attempts[parent, "r2"][-1]
            request = AcceptRequest(thread_id=child[1], run_id="r3", input=message, job=attempt.ref)
            return [await runs.start_child(attempt, request), await runs.suspend(Write(attempt=attempt), [], waits)]

        self.both(start, parent, child)
        self.started[parent, "r2"] = [(child[1], "r3")]
        self.both(lambda side: self.take(side, child, "r3"), child)

    def waits(self, data: st.DataObject, key: Key, run_id: str) -> list[Wait]:
        """Some waits. One id has one kind and one name in a run, as the ids that agents derive."""
        children = [Wait(wait_id=child, kind="child", name=thread) for thread, child in self.started.get((key, run_id), [])]
        timeout = st.sampled_from([None, None, LONG, 0.0])
        kinds = data.draw(st.lists(st.sampled_from(["sleep", "signal", "signal", "child", "child"]), min_size=1, max_size=3))
        found: dict[str, Wait] = {}
        for kind in kinds:
            if kind == "sleep":
                n = data.draw(st.integers(0, 1))
                wait = Wait(wait_id=f"sleep {n}", kind="sleep", timeout=data.draw(st.sampled_from([LONG, LONG, 0.0])))
            elif kind == "signal" or not children:
                name, n = data.draw(st.sampled_from(NAMES)), data.draw(st.integers(0, 1))
                wait = Wait(wait_id=f"{name} {n}", kind="signal", name=name, timeout=data.draw(timeout))
            else:
                wait = data.draw(st.sampled_from(children))
            found[wait.wait_id] = wait
        return list(found.values())

    @precondition(lambda self: self.with_attempt())
    @rule(data=st.data(), asks=st.integers(0, 3), many=st.booleans())
    def park(self, data: st.DataObject, asks: int, many: bool) -> None:
        """Suspend a run until a wait ends, and perhaps until a human answers."""
        key, run_id, attempt = self.attempt(data)
        messages = self.messages_for(data, key, run_id)
        requests = [HitlRequest(request_id=self.id())] if asks == 0 else []
        waits = self.waits(data, key, run_id)
        if not many:
            waits = waits[:1]

        async def suspend(side: Side) -> Any:
            return await side.backends[key[0]].runs.suspend(Write(attempt=attempt(side), messages=messages), requests, waits)

        self.both(suspend, key)

    @precondition(lambda self: any(view["thread"] is not None for view in self.seen.values()))
    @rule(data=st.data(), name=st.sampled_from(NAMES), value=st.integers(0, 1), signal_id=st.sampled_from(SIGNALS))
    def signal(self, data: st.DataObject, name: str, value: int, signal_id: str) -> None:
        key = self.thread(data)
        self.both(lambda side: side.backends[key[0]].runs.signal(key[1], name, value, signal_id=signal_id), key)

    @precondition(lambda self: self.with_attempt())
    @rule(data=st.data(), thread=st.sampled_from(THREADS), run_id=st.sampled_from(RUNS), take=st.booleans())
    def start_child(self, data: st.DataObject, thread: str, run_id: str, take: bool) -> None:
        """Start a child, and perhaps claim it. The parent waits for each of its children under the child's run id."""
        key, parent, attempt = self.attempt(data)
        message = self.said(data)

        async def start(side: Side) -> Any:
            held = attempt(side)
            request = AcceptRequest(thread_id=thread, run_id=run_id, input=message, job=held.ref)
            return await side.backends[key[0]].runs.start_child(held, request)

        child = (key[0], thread)
        if self.both(start, key, child) is None:
            return
        known = self.started.setdefault((key, parent), [])
        if (thread, run_id) not in known:
            known.append((thread, run_id))
        if take:
            self.both(lambda side: self.take(side, child, run_id), child)

    async def take(self, side: Side, key: Key, run_id: str) -> Any:
        raise NotImplementedError

    @precondition(lambda self: self.any_run("suspended"))
    @rule(data=st.data())
    def claim_suspended(self, data: st.DataObject) -> None:
        """Claim a suspended run, as a worker does to which the end of a child was submitted."""
        key = self.thread_with(data, "suspended")
        run_id = self.run_of(data, key, RunStatus.SUSPENDED)
        self.both(lambda side: self.take(side, key, run_id), key)

    @rule(passes=st.booleans())
    def admit(self, passes: bool) -> None:
        """Let the reconciler end what is due, and cancel the children of cancelled runs. ``passes``: all timeouts are over."""

        async def admit(side: Side) -> Any:
            backend = side.backends[self.tenants[0]]
            if passes:
                await pass_time(backend, self.tenants)
            effects = (await backend.runs.admit()).effects
            jobs = [job for job in effects.jobs if job.tenant in self.tenants]  # Postgres has the examples before
            return Effects(jobs=jobs)

        self.both(admit, *self.seen)

    async def waited(self, side: Side, attempt: AttemptToken) -> list[Wait]:
        """Return the waits of a run that its attempt reads."""
        waits = (await side.backends[self.tenants[0]].runs.ledger(attempt)).waits
        return [waits[wait_id] for wait_id in sorted(waits)]


async def pass_time(backend: Any, tenants: list[str]) -> None:
    """Move the ends of all waits to the present time."""
    if isinstance(backend, PostgresBackend):
        await backend.db.pool.execute(PASS_TIME, tenants)
        return
    assert isinstance(backend, MemoryBackend)
    db = backend.runs.db  # type: ignore[attr-defined]
    for state in db.waits:
        later = state.wait.due_at is not None and state.wait.due_at > db.now()
        thread = db.threads.get(state.thread_key)
        if later and state.wait.kind != "child" and thread is not None and thread.tenant in tenants:
            state.wait.due_at = db.now() - timedelta(microseconds=1)
