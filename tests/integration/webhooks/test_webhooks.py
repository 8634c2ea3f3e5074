"""From the feed to deliveries, under transactions that overlap and dispatchers that are several for a while."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard.domain.webhooks import DeliveryOutcome, Posting, Webhook
from runyard.models import Message
from runyard.ports.stores import Backend
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.migrate import Release, migrate

WRITERS, EACH, LOOKERS = 8, 20, 4


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url, max_pool_size=12)
    yield backend
    await backend.close()


async def subscribe(backend: Backend, webhook_id: str, tenant: str | None = "") -> None:
    url = f"https://{webhook_id}.example/"
    await backend.webhooks.add(Webhook(webhook_id=webhook_id, tenant=tenant, url=url, events=["message.stored"]))


async def store(connection: asyncpg.Connection, thread: str) -> None:
    """One entry, in whatever transaction the connection is in."""
    message = "(gen_random_uuid(), 'user', convert_to('{\"content\": []}', 'UTF8'), NULL, NULL)::runyard.new_message"
    await connection.execute(f"SELECT runyard.store_message('', $1, {message}, NULL, NULL)", thread)


async def test_every_entry_becomes_one_delivery(postgres_url: str, backend: Backend) -> None:
    """E5: whatever overlaps, what is committed after a subscription was made is delivered to it, once; what was committed
    before it is not."""
    dice = random.Random(11)
    written: set[str] = set()
    over = asyncio.Event()

    async def write(writer: int) -> None:
        connection = await asyncpg.connect(postgres_url)
        for n in range(EACH):
            name = f"w{writer}-{n}"
            transaction = connection.transaction()
            await transaction.start()
            await store(connection, name)
            await asyncio.sleep(dice.choice((0, 0.001, 0.01)))
            if dice.random() < 0.2:
                await transaction.rollback()
            else:
                await transaction.commit()
                written.add(name)
        await connection.close()

    taken: list[Posting] = []

    async def look() -> None:
        while True:
            finishing = over.is_set()
            postings = await backend.webhooks.take(busy={}, limit=dice.randint(1, 50), each=50, lease=600)
            taken.extend(postings)
            for posting in postings:
                await backend.webhooks.settle(posting, DeliveryOutcome("delivered", 204))
            if finishing and not postings:
                return
            await asyncio.sleep(dice.choice((0, 0.002)))

    for n in range(3):
        await backend.threads.store_message(f"early{n}", Message.user("x"))
    long_one = await asyncpg.connect(postgres_url)
    open_long = long_one.transaction()
    await open_long.start()
    await store(long_one, "long")
    await backend.threads.store_message("before", Message.user("x"))
    await subscribe(backend, "one")
    await subscribe(backend, "every", None)
    lookers = [asyncio.create_task(look()) for _ in range(LOOKERS)]
    await asyncio.gather(*(write(n) for n in range(WRITERS // 2)))
    assert taken == [], "nobody passes the transaction that is open"
    await open_long.commit()
    await long_one.close()
    await asyncio.gather(*(write(n) for n in range(WRITERS // 2, WRITERS)))
    over.set()
    await asyncio.gather(*lookers)
    for webhook_id in ("one", "every"):
        seen = Counter(posting.thread_id for posting in taken if posting.webhook_id == webhook_id)
        assert seen == Counter({*written, "long"})


async def test_a_look_that_finds_nothing_writes_nothing(postgres_url: str, backend: Backend) -> None:
    """The leader looks twice a second for as long as a deployment lives: no transaction id, no row, no scan."""
    await backend.threads.store_message("t", Message.user("x"))
    connection = await asyncpg.connect(postgres_url)
    look = "SELECT * FROM runyard.take_webhooks('{}', '', 64, 8, 30)"
    try:
        for _ in range(2):
            await connection.fetch(look)
            async with connection.transaction():
                assert await connection.fetch(look) == []
                assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
            await subscribe(backend, "one")
            await subscribe(backend, "every", None)
            await backend.threads.store_message("t2", Message.user("x"))
            assert len(await backend.webhooks.take(busy={}, lease=600)) == 2
            for posting in ("one", "every"):
                await backend.webhooks.remove(posting)
    finally:
        await connection.close()


async def test_quiet_subscriptions_write_nothing(postgres_url: str, backend: Backend) -> None:
    await subscribe(backend, "one")
    await subscribe(backend, "every", None)
    await backend.threads.store_message("t", Message.user("x"))
    assert len(await backend.webhooks.take(busy={}, lease=600)) == 2
    connection = await asyncpg.connect(postgres_url)
    async with connection.transaction():
        assert await connection.fetch("SELECT * FROM runyard.take_webhooks('{}', '', 64, 8, 30)") == []
        assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    await connection.close()


async def test_a_look_does_not_depend_on_what_is_kept(postgres_url: str, backend: Backend) -> None:
    """Probes of indexes, whatever the feed and the list of deliveries hold."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "INSERT INTO runyard.outbox (tenant, thread_id, type) SELECT '', 't', 'message.stored' FROM generate_series(1, 20000)"
    )
    await subscribe(backend, "one")
    await connection.execute(
        "INSERT INTO runyard.webhook_deliveries (tenant, url, type, thread_id, next_at, delivered_at) "
        "SELECT '', 'https://old.example/', 'message.stored', 't', NULL, now() FROM generate_series(1, 20000)"
    )
    await backend.threads.store_message("t", Message.user("x"))
    async with connection.transaction():
        found = await connection.fetch("SELECT * FROM runyard.take_webhooks('{}', '', 64, 8, 30)")
        rows = await connection.fetch(
            "SELECT relname, seq_scan, seq_tup_read, idx_tup_fetch FROM pg_stat_xact_user_tables "
            "WHERE relname IN ('outbox', 'webhook_deliveries')"
        )
    await connection.close()
    assert len(found) == 1
    assert all(row["seq_scan"] == 0 and row["idx_tup_fetch"] < 100 for row in rows), [dict(row) for row in rows]


async def test_old_deliveries_get_their_owners(empty_postgres_url: str) -> None:
    """U1: a tenant keeps its deliveries, those of older functions included. Only the tenant without a name sees deliveries to
    webhooks for all tenants, and to removed webhooks."""
    newest = Release.installed()

    async def upgrade(version: int) -> None:
        some = tuple(migration for migration in newest.migrations if migration.version <= version)
        await migrate(empty_postgres_url, release=dataclasses.replace(newest, migrations=some, functions=()))

    async def insert(when: str) -> None:
        """Insert deliveries as the functions of version 15 do."""
        for hook in ("own", "all", "removed", None):
            await connection.execute(
                "INSERT INTO runyard.webhook_deliveries (tenant, webhook_id, url, type, thread_id) "
                "SELECT tenant, $1, 'https://x.example/', 'message.stored', $2 FROM unnest($3::text[]) tenant",
                *(hook, f"{when} {hook}", ["a"] if hook == "own" else ["a", ""]),
            )

    await upgrade(15)
    connection = await asyncpg.connect(empty_postgres_url)
    await connection.execute(
        "INSERT INTO runyard.webhooks (webhook_id, tenant, url, events) "
        "VALUES ('own', 'a', 'https://x.example/', '{}'), ('all', NULL, 'https://x.example/', '{}')"
    )
    for version in (15, 16, 17, 18):
        await upgrade(version)
        await insert(str(version))
    assert await connection.fetchval("SELECT count(*) FROM runyard.webhook_deliveries WHERE owner IS NULL") == 4 * 3 + 2
    await connection.close()
    await migrate(empty_postgres_url)
    for tenant, hooks in (("a", ["own", "None"]), ("", ["all", "all", "removed", "removed", "None"])):
        backend = await connect(empty_postgres_url, tenant=tenant)
        seen = Counter(delivery.thread_id for delivery in (await backend.webhooks.deliveries()).items)
        assert seen == Counter(f"{version} {hook}" for version in (15, 16, 17, 18) for hook in hooks)
        await backend.close()
