"""runyard's contestants: a queue (the public client and one worker process) and a store (the Postgres checkpointer)."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from urllib.parse import urlsplit

import asyncpg
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from benchmarks import fixtures
from benchmarks.board import Board, stamp
from benchmarks.lab import Lab
from benchmarks.ports import Facts
from benchmarks.process import exit_with_parent, worker_process
from runyard import App, Client, Message, Prompt, RunContext, RunyardError, ToolCallPart, ToolResultPart, new_id
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard.ports.worker_defaults import DEFAULT_HISTORY_CACHE_BYTES
from runyard.ports.workers import WorkerInfo
from runyard.support.settings import Settings
from runyard.worker.health_server import METRICS_CACHE_SECONDS
from runyard_api.worker.process import MAIN_CONNECTION, run_worker
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.codec import new_message
from runyard_backends.postgres.migrate import migrate
from tests.growth.load import Sizes, load

__all__ = ["MAIN_CONNECTION", "fill", "intake", "queue", "store"]

INTAKE_DATABASE = 9
"""Number of the Redis database of :func:`intake`."""
WORKER = "bench"
"""Id of the worker whose turns a store executes."""

LOOK = 0.02
"""Seconds between two checks in Postgres whether the runs are finished."""

PROGRESS = """
SELECT thread_id, count(*) FILTER (WHERE status = 'completed') AS completed
FROM runyard.runs WHERE tenant = '' AND NOT deleted AND thread_id = ANY ($1) GROUP BY thread_id
"""
ORDER = """
SELECT count(*) FILTER (WHERE messages <> $2) AS missing, count(*) FILTER (WHERE started < before) AS out_of_order
FROM (SELECT (SELECT count(*) FROM runyard.messages m WHERE m.branch_id = r.branch_id AND m.run_id = r.run_id) AS messages,
             r.first_seq AS started, lag(r.last_seq) OVER (PARTITION BY r.thread_key ORDER BY r.lane_seq) AS before
      FROM runyard.runs r WHERE r.tenant = '' AND NOT r.deleted AND r.thread_id = ANY ($1)) runs
"""
ROW_BYTES = """
WITH t AS (SELECT thread_key FROM runyard.threads WHERE thread_id = $1),
     b AS (SELECT * FROM runyard.branches WHERE thread_key = (SELECT thread_key FROM t))
SELECT (SELECT coalesce(sum(pg_column_size(x.*)), 0) FROM runyard.threads x WHERE thread_id = $1)
     + (SELECT coalesce(sum(pg_column_size(b.*)), 0) FROM b)
     + (SELECT coalesce(sum(pg_column_size(l.*)), 0) FROM runyard.levels l JOIN b USING (branch_id))
     + (SELECT coalesce(sum(pg_column_size(m.*)), 0) FROM runyard.messages m JOIN b USING (branch_id))
     + (SELECT coalesce(sum(pg_column_size(r.*)), 0) FROM runyard.runs r WHERE thread_key = (SELECT thread_key FROM t))
     + (SELECT coalesce(sum(pg_column_size(o.*)), 0) FROM runyard.outbox o WHERE thread_key = (SELECT thread_key FROM t))
"""

FILL_RUNS = """
INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash,
    branch_id, first_seq, last_seq, completion_seq, high_water_seq, fence, admitted_at, started_at, finished_at, snapshot_tip,
    snapshot_cutoff)
SELECT '', $1, 'run-' || n, $2, 'prompt', 'completed', '', nextval('runyard.lane_numbers'), 'default', 'normal', '{}', $3,
    $4 + 2 * n, $4 + 2 * n + 1, n, $4 + 2 * n + 1, n, now(), now(), now(), $4 + 2 * n - 1, n - 1
FROM generate_series($5::int, $6::int) n
"""
MOVE_THREAD = "UPDATE runyard.threads SET next_seq = $2, next_completion_seq = $3 WHERE thread_key = $1"
MOVE_BRANCH = """
UPDATE runyard.branches b SET high_water_seq = $2, leaf_seq = $2, leaf_id = m.message_id
FROM runyard.messages m WHERE b.branch_id = $1 AND m.branch_id = $1 AND m.seq = $2
"""

app = App(version="bench")


@app.agent
async def noop(ctx: RunContext) -> None:
    stamp(int(ctx.run_id))
    await ctx.append(Message.assistant("done"))


@app.agent
async def asks(ctx: RunContext) -> None:
    slot = int(ctx.run_id)
    if ctx.attempt == 1:
        stamp(slot)
    await ctx.approve(ToolCallPart(id=ctx.run_id, name="go"))
    stamp(slot + 1)
    await ctx.append(Message.assistant("done"))


@app.agent
async def tools(ctx: RunContext) -> None:
    """Call two tools, one after the other, as a model would. Each call and each result is a message."""
    stamp(int(ctx.run_id))
    for number in range(2):
        call = ToolCallPart(id=f"{ctx.run_id}-{number}", name="look", arguments={"number": number})
        await ctx.append(Message(role="assistant", content=[call]))
        found = await ctx.step(look, number, key=call.id)
        await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=found)))
    await ctx.append(Message.assistant("done"))


async def look(number: int) -> str:
    return f"found {number}"


MESSAGES = {"noop": 2, "asks": 2, "tools": 6}
"""Agent → number of messages of its run."""


class RunyardQueue:
    """runyard as a queue. The ids of threads have a prefix, so that a turn never uses the runs of another turn.

    ``metrics``: the URLs of the metrics of the workers.
    """

    def __init__(self, client: Client, database: asyncpg.Pool, prefix: str, metrics: Sequence[str], agent: str) -> None:
        self._client, self._database, self._prefix, self._metrics = client, database, prefix, metrics
        self._agent = agent

    def _thread(self, key: str) -> str:
        return f"{self._prefix}-{key}"

    async def enqueue(self, slot: int, key: str) -> None:
        await self._client.enqueue(self._thread(key), "go", run_id=str(slot), agent=self._agent)

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        threads = [self._thread(key) for key in keys]
        while await self._completed(threads) != {self._thread(key): count for key, count in keys.items()}:  # noqa: ASYNC110 -- the runs are another process's
            await asyncio.sleep(LOOK)
        order = await self._database.fetchrow(ORDER, threads, MESSAGES[self._agent])
        assert order is not None
        rescues = await self._total("runyard_rescues_total")
        return {"rescues_total": rescues, "missing_total": order["missing"], "out_of_order_total": order["out_of_order"]}

    async def _completed(self, threads: list[str]) -> dict[str, int]:
        return {row["thread_id"]: row["completed"] for row in await self._database.fetch(PROGRESS, threads)}

    async def ask(self, slot: int, key: str) -> None:
        handle = await self._client.enqueue(self._thread(key), "go", run_id=str(slot), agent="asks")
        async for event in handle.stream():
            if event.type == "run.suspended":
                return
        raise RuntimeError("the run was not suspended")

    async def answer(self, slot: int, key: str) -> None:
        await self._client.respond(self._thread(key), True)

    async def cpu_seconds(self) -> float:
        """Return the CPU time of the workers' processes. They keep their metrics for a moment, which this call waits for."""
        await asyncio.sleep(METRICS_CACHE_SECONDS)
        return await self._total("process_cpu_seconds_total")

    async def _total(self, metric: str) -> float:
        return sum(await asyncio.gather(*(asyncio.to_thread(_metric, url, metric) for url in self._metrics)))

    async def enqueue_in_transaction(self, slot: int, key: str) -> int:
        async with self._database.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await self._client.enqueue(self._thread(key), "go", run_id=str(slot), agent="noop", connection=connection)
            before = time.monotonic_ns()
            await transaction.commit()
        return before


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(url, timeout=5) as reply:
        families = text_string_to_metric_families(reply.read().decode())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)


@asynccontextmanager
async def queue(
    lab: Lab,
    board: Board,
    *,
    slots: int,
    agent: str = "noop",
    workers: int = 1,
    database: str = "runyard",
    environment: dict[str, str] | None = None,
    redis_database: int = 0,
) -> AsyncIterator[RunyardQueue]:
    """Start worker processes with ``slots`` slots and further variables, and connect a client. ``agent``: the agent of the
    jobs. ``redis_database``: the number of the database in Redis. Deployments that run at the same time need different
    numbers."""
    redis = urlsplit(lab.redis_url)._replace(path=f"/{redis_database}").geturl()
    url = await lab.database(database)
    await migrate(url)
    ports = _free_ports(workers)
    async with AsyncExitStack() as stack:
        for port in ports:
            command = [__name__, url, redis, str(slots), str(port)]
            await stack.enter_async_context(worker_process(command, board, environment=environment))
        client = await stack.enter_async_context(Client.connect(url, redis=redis))
        pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=1, max_size=2))
        metrics = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        if workers > 1:
            await _serving(metrics)
        yield RunyardQueue(client, pool, board.path.stem, metrics, agent)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [probe.getsockname()[1] for probe in probes]


async def _serving(metrics: Sequence[str]) -> None:
    """Wait until all workers serve. The warm-up of a queue waits for one worker only."""
    for url in metrics:
        while True:
            try:
                await asyncio.to_thread(_metric, url, "process_cpu_seconds_total")
                break
            except OSError:
                await asyncio.sleep(LOOK)


class RunyardIntake:
    """A client without workers. Each thread and run has a prefix, so that a turn never uses those of another turn."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client, self._prefix = client, prefix

    def _prompt(self, slot: int, threads: int) -> Prompt:
        return Prompt(f"{self._prefix}-{threads}-{slot % threads}", "go", f"{self._prefix}-{slot}", agent="noop")

    async def enqueue_many(self, slots: range, threads: int) -> None:
        outcomes = await self._client.enqueue_many(self._prompt(slot, threads) for slot in slots)
        refused = [outcome for outcome in outcomes if isinstance(outcome, RunyardError) or not outcome.created]
        if refused or len(outcomes) != len(slots):
            raise AssertionError(f"{len(refused)} of {len(outcomes)} prompts were not accepted: {refused[:1]}")

    async def enqueue(self, slot: int, threads: int) -> None:
        prompt = self._prompt(slot, threads)
        await self._client.enqueue(prompt.thread_id, prompt.message, prompt.run_id, agent=prompt.agent)


@asynccontextmanager
async def intake(lab: Lab) -> AsyncIterator[RunyardIntake]:
    """Connect a client to a database without workers. Its jobs in Redis are deleted at the end."""
    redis = urlsplit(lab.redis_url)._replace(path=f"/{INTAKE_DATABASE}").geturl()
    url = await lab.database("runyard_intake")
    await migrate(url)
    async with Client.connect(url, redis=redis) as client, Redis.from_url(redis) as server:
        try:
            yield RunyardIntake(client, new_id())
        finally:
            await server.flushdb()


async def fill(lab: Lab, database: str, runs: int) -> None:
    """Store ``runs`` ended runs with their messages. Neither the leader nor autovacuum has work to do for them."""
    url = await lab.database(database)
    await migrate(url)
    await load(url, Sizes(parked=0, queued=0, ended=runs, threads=max(runs // 20, 1), tenants=max(runs // 500, 1)))
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("TRUNCATE runyard.outbox")
        await connection.execute("VACUUM ANALYZE", timeout=600)
    finally:
        await connection.close()


class RunyardStore:
    """runyard as a store, through its checkpointer.

    Only :meth:`build` and :meth:`row_bytes`, which are not timed, access the tables directly.
    """

    def __init__(self, backend: Backend, url: str) -> None:
        self._backend, self._url, self._registered = backend, url, False

    async def build(self, thread_id: str, messages: int, *, depth: int = 0) -> str:
        runs = messages // 2
        parts = depth + 1
        last, source = 0, ""
        for part in range(parts):
            name = thread_id if part == parts - 1 else f"{thread_id}-{part}"
            if part == 0:
                await self._backend.checkpointer.save_extra(name, {})
            else:
                cut = Cut(after_run_id=fixtures.run_id(last))
                await self._backend.threads.fork(ForkRequest(src=source, new=name, cut=cut))
            upto = runs * (part + 1) // parts
            await self._fill(name, last + 1, upto)
            last, source = upto, name
        return fixtures.run_id(runs)

    async def _fill(self, thread_id: str, first: int, last: int) -> None:
        connection = await asyncpg.connect(self._url)
        try:
            thread = await connection.fetchrow("SELECT * FROM runyard.threads WHERE thread_id = $1", thread_id)
            assert thread is not None
            branch, seq = thread["head_branch"], thread["next_seq"] - 2 * first
            await connection.copy_records_to_table(
                "messages", schema_name="runyard", records=_rows(branch, seq, first, last), columns=_COLUMNS
            )
            await connection.execute(FILL_RUNS, thread_id, thread["thread_key"], branch, seq, first, last)
            end = seq + 2 * last + 1
            await connection.execute(MOVE_THREAD, thread["thread_key"], end + 1, last + 1)
            await connection.execute(MOVE_BRANCH, branch, end)
            await connection.execute("VACUUM ANALYZE runyard.messages, runyard.runs, runyard.threads, runyard.branches")
        finally:
            await connection.close()

    async def fork(self, source: str, new: str, *, after_run_id: str) -> None:
        await self._backend.checkpointer.fork(source, new, after_run_id=after_run_id)

    async def load(self, thread_id: str) -> int:
        data = await self._backend.checkpointer.load(thread_id)
        return len(data.messages) if data else 0

    async def run(self, thread_id: str, run_id: str) -> None:
        cp = self._backend.checkpointer
        await cp.claim_run(thread_id, run_id)
        await cp.load(thread_id)
        await cp.append(thread_id, [Message.user(fixtures.prompt(1), run_id=run_id)])
        await cp.append(thread_id, [Message.assistant(fixtures.answer(1), run_id=run_id)])
        await cp.mark_run_complete(thread_id, run_id)

    async def turn(self, thread_id: str, *, used: bool = False) -> float:
        """Execute a run as a worker does. Return the milliseconds in which the attempt gets its context. ``used``: whether the
        text of each message is read in this time."""
        runs, key = self._backend.runs, await self._backend.threads.thread_key(thread_id)
        assert key is not None
        if not self._registered:
            await self._backend.workers.register(WorkerInfo(worker_id=WORKER, queues=["default"]))
            self._registered = True
        request = AcceptRequest(thread_id=thread_id, run_id=new_id(), input=Message.user(fixtures.prompt(1)))
        await runs.accept(request)
        (claim,) = await runs.claim(WORKER, [RunRef(key, request.run_id)])
        assert claim.attempt is not None
        begin = time.perf_counter()
        messages = await runs.context(claim.attempt)
        if used:
            _ = [message.text for message in messages]
        taken = (time.perf_counter() - begin) * 1000
        await runs.complete([Write(attempt=claim.attempt, messages=[Message.assistant(fixtures.answer(1))])])
        return taken

    async def row_bytes(self, thread_id: str) -> int:
        connection = await asyncpg.connect(self._url)
        try:
            return int(await connection.fetchval(ROW_BYTES, thread_id))
        finally:
            await connection.close()


_COLUMNS = ["branch_id", "seq", "message_id", "parent_id", "run_id", "role", "payload"]


def _rows(branch: int, seq: int, first: int, last: int) -> Iterator[tuple[object, ...]]:
    parent: uuid.UUID | None = None
    for number in range(first, last + 1):
        turn = Message.user(fixtures.prompt(number)), Message.assistant(fixtures.answer(number))
        for offset, message in enumerate(turn):
            _, role, payload, _, _ = new_message(message)
            id_ = uuid.UUID(message.id)
            yield branch, seq + 2 * number + offset, id_, parent, fixtures.run_id(number), role, payload
            parent = id_


@asynccontextmanager
async def store(lab: Lab) -> AsyncIterator[RunyardStore]:
    """Open a store on its own database."""
    url = await lab.database("runyard_store")
    await migrate(url)
    backend = await connect(url, history_cache_bytes=DEFAULT_HISTORY_CACHE_BYTES)
    try:
        yield RunyardStore(backend, url)
    finally:
        await backend.close()


def main(url: str, redis_url: str, slots: str, port: str) -> None:
    exit_with_parent()
    run_worker(
        app, Settings(postgres_url=url, redis_url=redis_url, slots=int(slots), metrics_port=int(port), log_level="warning")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
