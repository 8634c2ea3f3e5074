"""The clients: they enqueue, answer, cancel, fork and read while everything fails around them, and note what they were told.

A call that the backend could not answer is repeated with the same ids until it is answered, as documented; any other error that
a rule does not foresee is a complaint.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import asyncpg

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.errors import (
    BackendUnavailableError,
    HitlAlreadyAnsweredError,
    HitlNoPendingRequestError,
    HitlStaleAnswerError,
    RunEndedError,
    RunNotCompletedError,
    RunyardError,
    ThreadNotFoundError,
)
from runyard.models import ForkOnceResult, RetryPolicy, new_id
from tests.chaos.history import Accept, Answer, Cancel, Fork, Key, Probe, Seen, Told, path_of
from tests.support.agents.chaos import SIGNAL, Plan
from tests.support.event_streams import TERMINAL

T = TypeVar("T")

THREADS: Final = 50
FORKED_THREADS: Final = 15
"""How many forks are prompted like other threads."""
RATE: Final = 16.0
"""Runs that are enqueued per second, were every call answered at once."""
PRODUCERS: Final = 20
BACKLOG: Final = 150
"""Unfinished runs beyond which nothing is enqueued: a slow machine has to come through within the time to settle."""
RETRY: Final = (0.05, 0.3)
"""Seconds before a call that was not answered is repeated, from and to."""
UNREACHABLE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
STORED: Final = """
    SELECT m.message_id::text AS id FROM runyard.messages m JOIN runyard.runs r USING (branch_id, run_id)
    WHERE r.thread_id = $1 AND r.run_id = $2
"""
UNFINISHED: Final = "SELECT count(*) AS runs FROM runyard.runs WHERE finished_at IS NULL"
LATE_ANSWERS: Final = (HitlAlreadyAnsweredError, HitlNoPendingRequestError, HitlStaleAnswerError)


@dataclass
class Load:
    """The clients of one run of chaos. ``url``: Postgres, for the transactions of a host. :meth:`run` works until cancelled;
    ``calm`` stops everything but the answers, so that what was accepted can end; ``quiet`` tells that every call
    before it was answered, so that nothing more is accepted."""

    client: Client
    url: str
    random: random.Random
    seen: Seen = field(default_factory=Seen)
    calm: asyncio.Event = field(default_factory=asyncio.Event)
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    threads: list[str] = field(default_factory=lambda: [f"t{n:02}" for n in range(THREADS)])
    ended: list[Key] = field(default_factory=list)
    backlog: int = 0
    _beside: set[Key] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _readers: set[asyncio.Task[None]] = field(default_factory=set)
    _senders: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self) -> None:
        """Work until :attr:`calm` is set, then only answer questions; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer(group))
            await asyncio.gather(
                *(self._until_calm(self._produce, PRODUCERS / RATE) for _ in range(PRODUCERS)),
                self._until_calm(self._look_back, 1.0),
                self._until_calm(self._cancel, 1.5),
                self._until_calm(self._fork, 1.5),
                self._until_calm(self._probe, 2.0),
                self._until_calm(self._follow, 0.5),
            )
            while self._senders:
                await asyncio.wait([*self._senders])
            self.quiet.set()

    async def readers_ended(self) -> None:
        """Wait for the live readers; they end with their runs."""
        while self._readers:
            await asyncio.wait([*self._readers])

    async def _until_calm(self, act: Callable[[], Awaitable[None]], every: float) -> None:
        while not self.calm.is_set():
            try:
                await act()
            except RunyardError as error:
                self.seen.complaints.append(f"{getattr(act, '__name__', act)}: {error!r}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self.calm.wait(), self.random.expovariate(1 / every))

    async def _answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat ``call`` until the backend answers."""
        while True:
            try:
                return await call()
            except BackendUnavailableError:
                await asyncio.sleep(self.random.uniform(*RETRY))

    def _plan(self) -> Plan:
        chance = self.random.random
        return Plan(
            steps=2,
            approve=self.random.choice((0, 1)) if chance() < 0.15 else None,
            deltas=self.random.randrange(5, 30) if chance() < 0.3 else 0,
            sleep=self.random.uniform(0.05, 0.5) if chance() < 0.5 else 0.0,
            block=self.random.uniform(0.02, 0.2) if chance() < 0.05 else 0.0,
            error=self.random.choice(("passing", "lasting")) if chance() < 0.08 else None,
            nap=self.random.uniform(0.1, 1.5) if chance() < 0.08 else 0.0,
            signal=chance() < 0.1,
            children=self.random.randint(1, 3) if chance() < 0.05 else 0,
            levels=self.random.choice((1, 1, 2)),
        )

    async def _produce(self) -> None:
        if self.backlog > BACKLOG:
            return
        plan, thread, run_id = self._plan(), self.random.choice(self.threads), new_id()
        late = self.random.random() < 0.05
        strategy = self.random.choices(("enqueue", "interrupt", "rollback"), (95, 3, 2))[0]
        parallel = self.random.random() < 0.05
        delay = self.random.uniform(0.2, 1.5) if late else None

        async def enqueue(connection: asyncpg.Connection | None = None) -> None:
            await self.client.enqueue(
                thread, plan.text(), run_id, delay=delay, max_attempts=3, retry=RetryPolicy(initial=0.1),
                multitask_strategy=strategy, parallel=parallel, connection=connection,
            )  # fmt: skip

        if plan.signal:
            task = asyncio.create_task(self._signal(thread, run_id))
            self._senders.add(task)
            task.add_done_callback(self._senders.discard)
        sent = time.monotonic()
        how = self.random.random()
        if how < 0.1:
            await self._in_a_transaction(enqueue, thread, run_id)
        elif how < 0.25:
            await asyncio.gather(*(self._answered(enqueue) for _ in range(self.random.choice((2, 3)))))
        else:
            await self._answered(enqueue)
        if parallel:
            self._beside.add((thread, run_id))
        told = time.monotonic()
        self.seen.accepts.append(Accept((thread, run_id), plan, sent, told, late=late, host=how < 0.1, parallel=parallel))

    async def _signal(self, thread: str, run_id: str) -> None:
        """Send a signal for a run that waits or will wait, twice. Another run of the thread may take it, and leave its own."""
        signal_id = f"signal-{run_id}"

        async def send() -> None:
            while True:
                try:
                    await self._answered(lambda: self.client.signal(thread, SIGNAL, signal_id, signal_id=signal_id))
                except ThreadNotFoundError:  # the first run of the thread is not admitted
                    await asyncio.sleep(self.random.uniform(*RETRY))
                else:
                    return

        await asyncio.sleep(self.random.uniform(0.0, 1.5))
        try:
            await asyncio.gather(send(), send())
        except RunyardError as error:
            self.seen.complaints.append(f"signal: {error!r}")
        else:
            self.seen.signals.append((thread, signal_id))

    async def _in_a_transaction(
        self, enqueue: Callable[[asyncpg.Connection], Awaitable[None]], thread: str, run_id: str
    ) -> None:
        """Enqueue beside a row of the host's. What became of a commit that was not answered, the row tells."""
        while True:
            try:
                connection = await asyncpg.connect(self.url, timeout=5, command_timeout=10)
                try:
                    if await connection.fetchrow("SELECT 1 FROM host_rows WHERE thread = $1 AND run = $2", thread, run_id):
                        return
                    async with connection.transaction():
                        await connection.execute("INSERT INTO host_rows VALUES ($1, $2)", thread, run_id)
                        await enqueue(connection)
                finally:
                    connection.terminate()
            except (BackendUnavailableError, *UNREACHABLE):
                await asyncio.sleep(self.random.uniform(*RETRY))
            else:
                return

    async def _cancel(self) -> None:
        """Cancel a recent run, whatever it does just now."""
        if not self.seen.accepts:
            return
        key = self.random.choice(self.seen.accepts[-40:]).key
        keep = self.random.random() < 0.5
        try:
            await self._answered(lambda: self.client.cancel(*key, keep=keep))
        except RunEndedError:
            return
        acked = time.time()
        ids = await self._answered(lambda: self._stored(key))
        self.seen.cancels.append(Cancel(key, acked, frozenset(ids)))

    async def _stored(self, key: Key) -> set[str]:
        """Ids of all messages of a run that Postgres holds."""
        return {row["id"] for row in await self._fetch(STORED, *key)}

    async def _look_back(self) -> None:
        [row] = await self._answered(lambda: self._fetch(UNFINISHED))
        self.backlog = row["runs"]

    async def _fetch(self, statement: str, *args: str) -> list[asyncpg.Record]:
        """Rows, over a connection of its own. Raises BackendUnavailableError."""
        try:
            connection = await asyncpg.connect(self.url, timeout=5, command_timeout=10)
            try:
                return await connection.fetch(statement, *args)
            finally:
                connection.terminate()
        except UNREACHABLE as error:
            raise BackendUnavailableError(str(error)) from error

    async def _fork(self) -> None:
        """Fork after a run that completed, and look at once at what the fork shows."""
        if not self.ended:
            return
        (source, after), new = self.random.choice(self.ended[-200:]), f"f-{new_id()}"
        await self._answered(lambda: self.client.fork(source, new, after_run_id=after))
        path = await self._answered(lambda: path_of(self.client, new))
        self.seen.forks.append(Fork(source, after, new, [message.id for message in path]))
        if len(self.threads) < THREADS + FORKED_THREADS:
            self.threads.append(new)

    async def _probe(self) -> None:
        """Ask what a thread showed after a run that completed: one probe, or three in one job. The job is dead if the faults
        kill its worker three times in succession (R21)."""
        if not self.ended:
            return
        try:
            await self._ask_a_fork()
        except RunNotCompletedError as error:
            if error.details.get("status") != RunStatus.DEAD:
                raise

    async def _ask_a_fork(self) -> None:
        (source, after), job = self.random.choice(self.ended[-200:]), new_id()
        plan = Plan(steps=1, sleep=self.random.uniform(0.0, 0.3), probe=True)
        words = [plan.text()] * 3
        answers: Sequence[ForkOnceResult]
        if self.random.random() < 0.5:
            answers = [await self._answered(lambda: self.client.fork_once(source, words[0], after, run_id=job))]
        else:
            many = await self._answered(
                lambda: self.client.fork_many(source, after, messages=words, max_parallel=2, run_id=job)
            )
            answers = many.results
        for answer in answers:
            self.seen.probes.append(Probe(source, after, plan, answer.text, answer.stop_reason, answer.messages))

    async def _follow(self) -> None:
        """Read a recent run live, in a task of its own."""
        if self.seen.accepts:
            key = self.random.choice(self.seen.accepts[-20:]).key
            task = asyncio.create_task(self._read(key))
            self._readers.add(task)
            task.add_done_callback(self._readers.discard)

    async def _read(self, key: Key) -> None:
        """Everything that a stream says until the run has ended, over interruptions and suspensions."""
        told: list[Told] = []
        while not told or told[-1].type not in TERMINAL:
            last = next((event.id for event in reversed(told) if event.id is not None), None)
            with suppress(BackendUnavailableError):
                async with aclosing(self.client.stream(*key, last_event_id=last)) as events:
                    async for event in events:
                        told.append(Told.of(event))  # noqa: PERF401 - what was told counts, also if the next never comes
            if not told or told[-1].type not in TERMINAL:
                await asyncio.sleep(self.random.uniform(*RETRY))
        self.seen.followed.append((key, told))
        if told[-1].type == f"run.{RunStatus.COMPLETED}" and key not in self._beside:
            self.ended.append(key)

    async def _answer(self, group: asyncio.TaskGroup) -> None:
        """Let two people answer each question at once, differently."""
        while True:
            cursor = None
            while True:
                page = await self._answered(lambda cursor=cursor: self.client.requests(cursor=cursor))  # type: ignore[misc]
                for request in page.items:
                    if request.request_id not in self._asked:
                        self._asked.add(request.request_id)
                        group.create_task(self._two_answers(request.request_id))
                cursor = page.next
                if cursor is None:
                    break
            await asyncio.sleep(0.2)

    async def _two_answers(self, request: str) -> None:
        if not self.calm.is_set():
            await asyncio.sleep(self.random.uniform(0.0, 1.5))
        await asyncio.gather(*(self._respond(request, person) for person in ("ann", "bob")))

    async def _respond(self, request: str, person: str) -> None:
        response = f"{request}-{person}"
        answer = {"approved": True, "reason": person}
        refused = None
        try:
            await self._answered(
                lambda: self.client.respond(None, answer, request_id=request, response_id=response, answered_by=person)
            )
        except LATE_ANSWERS as error:
            refused = error.code
        except RunyardError as error:
            refused = error.code
            self.seen.complaints.append(f"respond: {error!r}")
        self.seen.answers.append(Answer(request, response, person, refused))
