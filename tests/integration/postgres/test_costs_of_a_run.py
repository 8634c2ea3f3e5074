"""What a run and a tool call cost in Postgres: statements, commits, entries of indexes, and bytes of the write-ahead log.

These counts do not depend on the load of the machine. Redis: tests/integration/redis/test_commands_per_run.py.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple, dataclass
from typing import Any

import asyncpg
import pytest

from runyard.app import App
from runyard.domain.states import RunStatus
from runyard.events.writer import EventWriter
from runyard.execution.context import RunContext
from runyard.execution.executor import Execution, WorkerServices
from runyard.models import Message, ToolCallPart, ToolResultPart
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Accepted
from runyard.ports.workers import WorkerInfo
from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.postgres.backend import PostgresBackend, connect
from tests.support.write_ahead_log import place, written

ROUNDS = 8
"""Rounds that are measured. Two earlier rounds make the threads, the plans and the first pages."""
TOGETHER = 32
TOOLS = 2

CALLS = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE schemaname = 'runyard'"


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run. ``statements``: round trips to Postgres. ``functions``: calls of stored functions, nested calls
    included. ``entries``: new entries of indexes. ``wal``: bytes of the write-ahead log without images of whole pages."""

    statements: float
    commits: float
    functions: float
    entries: float
    wal: float


CEILINGS = {
    ("simple", 1): Cost(statements=3, commits=3, functions=25, entries=23, wal=4_650),
    ("tools", 1): Cost(statements=11, commits=11, functions=110, entries=37, wal=9_100),
    ("simple", TOGETHER): Cost(statements=3 / TOGETHER, commits=3 / TOGETHER, functions=4.4, entries=28, wal=5_300),
    ("tools", TOGETHER): Cost(statements=11 / TOGETHER, commits=11 / TOGETHER, functions=45.5, entries=43.5, wal=9_950),
}
"""The measured costs of a run without tools and with two tool calls, alone and among 32 whose writes share transactions. The
bytes have a margin of 2 %, because message ids are random and split the pages of an index at random. Lower a ceiling when a
change makes it possible."""
CONDITIONS = """
SELECT g.tgrelid::regclass || ' ' || g.tgname, length(g.tgqual::text) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
WHERE c.relnamespace = 'runyard'::regnamespace AND g.tgqual IS NOT NULL
"""
CONDITION_BYTES = 1_000
"""Maximum length of the condition of a trigger, as a tree of nodes. A comparison of two columns has 600 bytes."""

numbers = itertools.count()


async def simple(ctx: RunContext) -> None:
    await ctx.append(Message.assistant("done"))


async def tools(ctx: RunContext) -> None:
    for number in range(TOOLS):
        await ctx.append(tool_call(number))
        await ctx.step(look, number, key=f"call-{number}")
        await ctx.append(tool_result(number))
    await ctx.append(Message.assistant("done"))


async def look(number: int) -> str:
    return f"found {number}"


def tool_call(number: int) -> Message:
    return Message(role="assistant", content=[ToolCallPart(id=f"call-{number}", name="look", arguments={"number": number})])


def tool_result(number: int) -> Message:
    return Message.tool(ToolResultPart(call_id=f"call-{number}", content=f"found {number}"))


@dataclass
class Deployment:
    """A backend without a worker process, its writer of events, and the statements that were sent."""

    backend: PostgresBackend
    connection: asyncpg.Connection
    statements: list[str]

    def prompts(self, together: int) -> list[AcceptRequest]:
        return [
            AcceptRequest(thread_id=f"t{n}", run_id=f"r{next(numbers)}", agent="agent", input=Message.user("go"))
            for n in range(together)
        ]

    async def alone(self, agent: Callable[[RunContext], Awaitable[None]]) -> None:
        """Accept, claim and execute one run, as a client and a worker do."""
        [request] = self.prompts(1)
        accepted = await self.backend.runs.accept(request)
        [claim] = await self.backend.runs.claim("w", [accepted.effects.jobs[0].ref])
        services = WorkerServices.of(App({"agent": agent}), self.backend, EventWriter(self.backend.events))
        ended = await Execution(services, claim).run()
        assert ended is not None and ended.status is RunStatus.COMPLETED

    async def together(self, tool_calls: int) -> None:
        """Execute the verbs of many runs that are always at the same verb, so that each verb shares its transaction."""
        accepted = await self.backend.runs.accept_many(self.prompts(TOGETHER))
        refs = [one.effects.jobs[0].ref for one in accepted if isinstance(one, Accepted)]
        attempts = [claim.attempt for claim in await self.backend.runs.claim("w", refs) if claim.attempt is not None]
        assert len(attempts) == TOGETHER
        runs = self.backend.runs

        async def each(verb: Callable[[AttemptToken], Awaitable[Any]]) -> None:
            await asyncio.gather(*map(verb, attempts))

        for n in range(tool_calls):
            await each(lambda attempt, n=n: runs.append(attempt, [tool_call(n)], first_event=3 + 2 * n))
            await each(lambda attempt, n=n: runs.start_step(attempt, f"call-{n}"))
            await each(lambda attempt, n=n: runs.finish_step(attempt, f"call-{n}", f"found {n}"))
            await each(lambda attempt, n=n: runs.append(attempt, [tool_result(n)], first_event=4 + 2 * n))
        done = Message.assistant
        ended = await runs.complete([Write(attempt=attempt, messages=[done("done")], first_event=20) for attempt in attempts])
        assert not any(isinstance(one, Exception) for one in ended)

    async def calls(self) -> int:
        """Return the number of calls of stored functions so far."""
        pool = self.backend.db.pool  # a session adds its own counts only
        await pool.execute("SELECT pg_stat_force_next_flush()")
        return int(await pool.fetchval(CALLS))


@asynccontextmanager
async def deployed(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployment]:
    backend = await connect(url, min_pool_size=1, max_pool_size=1)
    assert isinstance(backend, PostgresBackend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"], agents={"agent": "default"}))
    statements: list[str] = []
    send = backend.db._send

    async def counted(method: str, name: str, args: Any) -> Any:
        statements.append(name)
        return await send(method, name, args)

    monkeypatch.setattr(backend.db, "_send", counted)
    connection = await asyncpg.connect(url)
    try:
        yield Deployment(backend, connection, statements)
    finally:
        await connection.close()
        await backend.close()


@pytest.mark.parametrize(("kind", "together"), CEILINGS, ids=[f"{kind}-{n}" for kind, n in CEILINGS])
async def test_a_run_costs_at_most_its_ceiling(
    postgres_server: EmbeddedPostgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch, kind: str, together: int
) -> None:
    """Q2: a count that rises is a regression, on every machine."""
    admin = await asyncpg.connect(postgres_url)
    await admin.execute(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET track_functions = ''pl''', current_database()); END $$"
    )
    await admin.close()
    async with deployed(postgres_url, monkeypatch) as deployment:

        async def rounds(number: int) -> None:
            for _ in range(number):
                if together == 1:
                    await deployment.alone(simple if kind == "simple" else tools)
                else:
                    await deployment.together(TOOLS if kind == "tools" else 0)

        await rounds(2)
        calls, start = await deployment.calls(), await place(deployment.connection)
        deployment.statements.clear()
        await rounds(ROUNDS)
        sent = len(deployment.statements)
        wal = await written(deployment.connection, start, await place(deployment.connection))
        called = await deployment.calls() - calls
    runs = ROUNDS * together
    found = Cost(*(count / runs for count in (sent, wal.commits, called, wal.entries, wal.bytes)))
    print(f"{kind}, {together} at once: {found}; {deployment.statements[: sent // ROUNDS]}; {wal.counts}")
    ceiling = CEILINGS[kind, together]
    assert all(one <= most for one, most in zip(astuple(found), astuple(ceiling), strict=True)), f"{found} exceeds {ceiling}"


async def test_the_conditions_of_triggers_are_short(postgres_url: str) -> None:
    """Q2: Postgres parses the condition of a row's trigger again for every statement. A long condition took a tenth of the
    time of a claim."""
    connection = await asyncpg.connect(postgres_url)
    try:
        lengths = dict(await connection.fetch(CONDITIONS))
    finally:
        await connection.close()
    print(lengths)
    assert lengths and {name: length for name, length in lengths.items() if length > CONDITION_BYTES} == {}
