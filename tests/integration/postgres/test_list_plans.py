"""Every list and every filter costs its page: not what other tenants have, nor what the tenant's own history has become.

``RUNYARD_TEST_RUNS=1000000`` (and 50,000 threads) is the long form; ``-s`` shows the figures.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import json
import os
import time
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from runyard.domain.states import RunStatus
from runyard.domain.webhooks import DELIVERY_STATUSES
from runyard.models import HitlRequest
from runyard.ports import stores
from runyard.ports.commands import Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.results import Page
from runyard_backends.conformance.world import World, said, user
from runyard_backends.postgres.backend import PostgresBackend
from runyard_backends.postgres.backend import connect as postgres
from runyard_backends.postgres.database import Database, statements
from tests.support.fleet import SLACK
from tests.support.many_runs import COMMON, FORKED, LONG, RARE, RARE_TAG, TAG, TENANT, fill

RUNS = int(os.environ.get("RUNYARD_TEST_RUNS", "20000"))
TOGETHER = 5 if RUNS > 100_000 else 2
"""Filters that are tried together."""
THREADS = max(RUNS // 20, 1000)
LIMIT = 50
NOTHING, ONE_FILTER, ANY = 120, 600, 6000
"""Blocks that a tenant without anything may cost, a page by one filter, and a page by any of them together."""
A_PASS = 4000
"""Blocks that a pass over 500 entries of the feed may cost."""
QUICK = 0.02 * (1 + SLACK)
"""Seconds for a tenant without anything, the best of six."""

MIDDLE = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=RUNS // 2)
VALUES: dict[str, list[Any]] = {
    "thread_id": [LONG],
    "status": list(RunStatus),
    "agent": [COMMON, RARE],
    "since": [MIDDLE],
    "before": [MIDDLE],
    "parent_thread_id": [FORKED],
    "tags": [TAG, RARE_TAG, TAG | RARE_TAG],
    "pending": [True, False],
    "labelled": [True],
    "newest_first": [True, False],
}
"""What each filter is asked with; one that is not here fails the test."""

DAYS = """
INSERT INTO runyard.usage_days
SELECT w.tenant, CASE a WHEN 0 THEN '' ELSE 'agent-' || a END, date '2024-01-01' + d, 1, 1, 1, 1, 1, 1
FROM unnest($2::text[]) w(tenant), generate_series(0, $1 / 732) a, generate_series(0, 365) d ON CONFLICT DO NOTHING
"""
"""About as many rows as there are runs."""

OF_ONE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("threads", "messages"): (LONG,),
    ("threads", "branches"): ("thread-12",),
    ("runs", "attempts"): (LONG, "run-24"),
}
"""Lists of something that has to be named, and of which an empty tenant has nothing."""
NOT_LISTS = {
    "threads.ancestors": "a look-up by key for each ancestor",
    "runs.accept_many": "a verb",
    "runs.claim": "a verb of workers, by ids",
    "runs.context": "what one run sees, whole",
    "runs.recent": "what one run sees, from its end",
    "runs.append": "a verb",
    "runs.complete": "a verb",
    "runs.statuses": "of the runs that it names",
    "runs.run_events": "what one run did, a page at a time; tests/integration/redis/test_lost_streams.py",
    "webhooks.take": "the dispatcher's",
    "workers.running": "of one worker: as many as it has slots",
    "workers.cancelling": "of one worker: as many as it has slots",
    "workers.orphans": "the leader's; tests/integration/postgres/test_reconciler_reads.py",
    "workers.waiting": "the leader's; tests/integration/postgres/test_reconciler_reads.py",
    "workers.still_waiting": "the leader's, of runs that it names",
    "queues.queues": "of what is unfinished; tests/integration/postgres/test_reconciler_reads.py",
}


PROTOCOLS = {"threads": stores.ThreadStore, "runs": stores.RunStore, "feed": stores.Feed, "webhooks": stores.WebhookStore,
             "keys": stores.KeyStore, "limits": stores.LimitStore, "workers": stores.WorkerStore,
             "queues": stores.QueueStore}  # fmt: skip


def lists() -> Iterator[tuple[str, str]]:
    """Port and method of everything that answers with a list or a page."""
    for port, protocol in PROTOCOLS.items():
        for name, method in inspect.getmembers(protocol, inspect.isfunction):
            if typing.get_origin(typing.get_type_hints(method).get("return")) in (list, Page):
                yield port, name


def fields(port: str, name: str) -> Iterator[tuple[str, str, Any]]:
    """What the method can be asked for: the name of each field, the parameter that holds it, and the class of that value."""
    for parameter, kind in typing.get_type_hints(getattr(PROTOCOLS[port], name)).items():
        if dataclasses.is_dataclass(kind):
            yield from ((field.name, parameter, kind) for field in dataclasses.fields(kind))
        elif parameter != "return":
            yield parameter, parameter, None


def arguments(port: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the method that ask for the fields ``given``, without those that it does not have."""
    found: dict[str, Any] = {}
    for field, parameter, kind in fields(port, name):
        if field in given and kind is None:
            found[parameter] = given[field]
        elif field in given:
            found[parameter] = dataclasses.replace(found.get(parameter, kind()), **{field: given[field]})
    return found


def asked(port: str, name: str) -> Iterator[dict[str, Any]]:
    """The filters that the method offers, alone and together."""
    apart = ("limit", "cursor", "leaf_id", "run_id", "thread_id" if (port, name) in OF_ONE else "")
    filters = [field for field, _, _ in fields(port, name) if field not in apart]
    values = VALUES | ({"status": list(DELIVERY_STATUSES)} if port == "webhooks" else {})
    assert not (missing := [f for f in filters if f not in values]), f"{port}.{name} has filters without a case: {missing}"
    for chosen in itertools.product(*([None, *values[f]] for f in filters)):
        given = {f: value for f, value in zip(filters, chosen, strict=True) if value is not None}
        if len(given) <= TOGETHER or len(given) == len(filters):
            yield given


class Recording(Database):
    """Notes what is sent, and sends it all over one connection."""

    def __init__(self, connection: asyncpg.Connection | None) -> None:
        super().__init__(cast(Any, SimpleNamespace(get_max_size=lambda: 1)), cast(Any, None), command_timeout=30.0)
        self.connection, self.sent = connection, list[tuple[str, tuple[Any, ...]]]()

    async def rows(self, name: str, *args: Any) -> list[asyncpg.Record]:
        assert self.connection is not None
        self.sent.append((name, args))
        return await self.connection.fetch(statements()[name], *args)


@pytest.fixture(scope="module")
def filled(module_postgres_url: str) -> str:
    async def make() -> None:
        connection = await asyncpg.connect(module_postgres_url)
        began = time.perf_counter()
        await fill(connection, RUNS, THREADS)
        print(f"\nfilled with {RUNS} runs in {time.perf_counter() - began:.1f} s")
        await connection.close()

    asyncio.run(make())
    return module_postgres_url


@pytest.fixture
async def full(filled: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled)
    yield connection
    await connection.close()


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


async def blocks(connection: asyncpg.Connection, name: str, args: tuple[Any, ...], plans: str) -> int:
    """What the statement reads by a plan for these arguments, or by one for all."""
    await connection.execute(f"SET plan_cache_mode = {plans}; PREPARE asked AS {statements()[name]}")
    try:
        given = f"({', '.join(map(literal, args))})" if args else ""
        await connection.execute(f"EXECUTE asked{given}")  # what a connection reads only once is not the list's
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked{given}"
        found = [json.loads(await connection.fetchval(explain))[0]["Plan"] for _ in range(2)]
    finally:
        await connection.execute("DEALLOCATE asked; RESET plan_cache_mode")
    # An autovacuum between two of these statements ends the plan, and the next statement reads the catalogs again.
    return min(int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"]) for plan in found)


Ask = Callable[[str | None], Awaitable[Any]]


def ask(database: Recording, tenant: str, port: str, name: str, filters: dict[str, Any]) -> Ask:
    """The list as it is asked for, from a cursor on."""
    method = getattr(PostgresBackend(database, None, tenant, "").__dict__[port], name)
    given = {"limit": LIMIT, **filters}
    return lambda cursor: method(*OF_ONE.get((port, name), ()), **arguments(port, name, {**given, "cursor": cursor}))


async def cost(connection: asyncpg.Connection, tenant: str, port: str, name: str, filters: dict[str, Any]) -> tuple[int, float]:
    """The most blocks of the first and the second page, by either kind of plan, and the seconds of the best of six."""
    most, best, cursor = 0, 1e9, None
    for _ in range(2):
        database = Recording(connection)
        call = ask(database, tenant, port, name, filters)
        for _ in range(6):
            began = time.perf_counter()
            page = await call(cursor)
            best = min(best, time.perf_counter() - began)
        for plans in ("force_custom_plan", "force_generic_plan"):
            sent = database.sent[: len(database.sent) // 6]
            most = max(most, sum([await blocks(connection, *statement, plans) for statement in sent]))
        cursor = page.next if isinstance(page, Page) else None
        if cursor is None:
            break
    return most, best


CASES = [case for case in lists() if ".".join(case) not in NOT_LISTS]


@pytest.mark.parametrize("port, name", CASES)
@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_page_costs_its_entries(full: asyncpg.Connection, port: str, name: str, analyzed: bool) -> None:
    """A3: also before the tables have statistics, and by a plan that is kept for all arguments."""
    if analyzed:
        await full.execute("ANALYZE", timeout=600)
    dearest: dict[str, tuple[int, float, str]] = {}
    for filters in asked(port, name):
        words = " ".join(f"{f}={value}" for f, value in filters.items())
        if (port, name) not in OF_ONE:
            read, seconds = await cost(full, "nobody", port, name, filters)
            assert read <= NOTHING and seconds <= QUICK, (
                f"{words}: {read} blocks, {seconds * 1000:.1f} ms for a tenant without any"
            )
            dearest["nothing"] = max(dearest.get("nothing", (0, 0.0, "")), (read, seconds, words))
        read, seconds = await cost(full, TENANT, port, name, filters)
        kind = "one filter" if len(filters) < 2 else "several filters"
        most = ONE_FILTER if len(filters) < 2 and name != "branches" else ANY  # leaves are not paged: each costs its path
        assert read <= most, f"{words}: {read} blocks"
        dearest[kind] = max(dearest.get(kind, (0, 0.0, "")), (read, seconds, words))
    for kind, (read, seconds, words) in dearest.items():
        print(f"{port}.{name} | {kind} | {read} blocks | {seconds * 1000:.1f} ms | {words}")


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_report_of_usage_costs_its_days(full: asyncpg.Connection, analyzed: bool) -> None:
    """A3: whatever other tenants and other agents used."""
    await full.execute(DAYS, RUNS, [TENANT, "other"], timeout=600)
    if analyzed:
        await full.execute("ANALYZE runyard.usage_days", timeout=600)
    year = {"since": date(2024, 1, 1), "until": date(2024, 12, 31)}
    for tenant, agent in (("nobody", None), (TENANT, None), (TENANT, "agent-1"), (TENANT, "nobody")):
        database, best = Recording(full), 1e9
        usage = PostgresBackend(database, None, tenant, "").usage
        for _ in range(6):
            began = time.perf_counter()
            found = await usage.report(**year, agent=agent)
            best = min(best, time.perf_counter() - began)
        plans = ("force_custom_plan", "force_generic_plan")
        read = max([await blocks(full, *database.sent[0], plan) for plan in plans])
        nothing = "nobody" in (tenant, agent)
        assert found.total.runs == (0 if nothing else 366)
        assert read <= (NOTHING if nothing else ONE_FILTER) and best <= QUICK, f"{read} blocks, {best * 1000:.1f} ms"
        print(f"usage.report | {tenant} | {agent} | {read} blocks | {best * 1000:.1f} ms")


async def test_a_pass_that_counts_usage_costs_what_it_counts(full: asyncpg.Connection) -> None:
    """Whatever waits to be counted, and whoever has a feed."""
    values = "'a' || n, 't', 'thread.deleted' FROM generate_series(1, 1000) n"
    await full.execute(f"INSERT INTO runyard.outbox (tenant, thread_id, type) SELECT {values}")
    place = "SELECT transaction::text, position, tenant FROM runyard.usage_counter"
    async with asyncio.timeout(60):
        while not await full.fetchval("SELECT tenant > '' FROM runyard.usage_counter"):  # a transaction elsewhere is open
            await full.execute("SELECT runyard.count_usage(1)")
    before = await full.fetchrow(place)
    read = await blocks(full, "count_usage", (500,), "force_generic_plan")
    assert read <= A_PASS and await full.fetchrow(place) != before, f"{read} blocks"
    print(f"usage.count | {read} blocks")


@pytest.mark.parametrize("filters", [{"status": RunStatus.DEAD}, {"agent": RARE, "status": RunStatus.FAILED}])
async def test_short_pages_lead_to_the_end(full: asyncpg.Connection, filters: dict[str, Any]) -> None:
    """A page that comes short, for what it looked at in vain, goes on; nothing is left out or shown twice."""
    columns = {name: f"{name} = '{value}'" for name, value in filters.items()}
    count = await full.fetchval(f"SELECT count(*) FROM runyard.runs WHERE {' AND '.join(['NOT deleted', *columns.values()])}")
    found, cursor = list[str](), None
    while True:
        store = PostgresBackend(Recording(full), None, TENANT, "").runs
        page = await store.runs(RunFilter(**filters), PageRequest(limit=1000, cursor=cursor))
        found += [run.run_id for run in page.items]
        if (cursor := page.next) is None:
            break
    assert len(found) == len(set(found)) == count


async def test_no_verb_reads_an_index_of_lists(postgres_url: str) -> None:
    """A plan that is made while the tables are empty and kept as they grow takes the index that is for one row."""
    backend = await postgres(postgres_url, max_pool_size=1)
    world = World(backend, lambda: None)  # type: ignore[arg-type, return-value]
    for n in range(12):
        thread = f"t{n}"
        attempt = await world.start("asks", thread=thread, agent="a")
        await world.runs.append(attempt, [said("a")])
        await world.runs.suspend(Write(attempt=attempt), [HitlRequest(request_id=thread)])
        await world.runs.respond("yes", request_id=thread)
        await world.finish(await world.take("asks", thread=thread), said("b"))
        await world.accept("fails", thread=thread)
        await world.runs.cancel(thread, "fails")
        await world.threads.store_message(thread, user("more"))
        await world.fork(f"fork-{n}", thread, after_run_id="asks")
    await backend.close()
    connection = await asyncpg.connect(postgres_url)
    read = await connection.fetch("SELECT indexrelname, idx_scan FROM pg_stat_user_indexes WHERE indexrelname ~ '_list(_|$)'")
    await connection.close()
    assert len(read) == 10 and {name for name, scans in read if scans} == set()
