"""The feed under transactions that overlap in every way."""

import asyncio
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard import Client
from runyard.models import FeedEntry, Message
from runyard.ports.queries import PageRequest
from runyard.ports.stores import Backend
from runyard.ports.workers import Retention
from runyard_backends.postgres.backend import connect

WRITERS, EACH, READERS = 12, 25, 6


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url, max_pool_size=12)
    yield backend
    await backend.close()


async def store(connection: asyncpg.Connection, thread: str) -> None:
    """One entry, in whatever transaction the connection is in."""
    message = "(gen_random_uuid(), 'user', convert_to('{\"content\": []}', 'UTF8'), NULL, NULL)::runyard.new_message"
    await connection.execute(f"SELECT runyard.store_message('', $1, {message}, NULL, NULL)", thread)


async def test_feed_entry_never_appears_behind_a_reader(postgres_url: str, backend: Backend) -> None:
    """E5: transactions of every length commit or roll back while readers come and go with their cursors; each sees every entry
    once, and all see them in one order."""
    dice = random.Random(7)
    written: set[str] = set()
    over = asyncio.Event()

    async def write(writer: int) -> None:
        connection = await asyncpg.connect(postgres_url)
        for n in range(EACH):
            names = [f"w{writer}-{n}-{k}" for k in range(dice.randint(1, 3))]
            transaction = connection.transaction()
            await transaction.start()
            for name in names:
                await store(connection, name)
                await asyncio.sleep(dice.choice((0, 0, 0.002, 0.02)))
            if dice.random() < 0.2:
                await transaction.rollback()
            else:
                await transaction.commit()
                written.update(names)
        await connection.close()

    async def read() -> list[FeedEntry]:
        seen: list[FeedEntry] = []
        cursor: str | None = None
        while True:
            finishing = over.is_set()
            page = await backend.feed.read(PageRequest(limit=dice.randint(1, 9), cursor=cursor))
            kept = page.items[: dice.randint(0, len(page.items))] if dice.random() < 0.3 else page.items
            seen += kept
            cursor = page.next if len(kept) == len(page.items) else kept[-1].cursor if kept else cursor
            if finishing and not page.items:
                return seen
            await asyncio.sleep(dice.choice((0, 0.001, 0.01)))

    long_one = await asyncpg.connect(postgres_url)
    open_long = long_one.transaction()
    await open_long.start()
    await store(long_one, "long")
    readers = [asyncio.create_task(read()) for _ in range(READERS)]
    await asyncio.gather(*(write(n) for n in range(WRITERS // 2)))
    assert (await backend.feed.read()).items == [], "nobody passes the transaction that is open"
    await open_long.commit()
    await long_one.close()
    await asyncio.gather(*(write(n) for n in range(WRITERS // 2, WRITERS)))
    over.set()
    first, *others = await asyncio.gather(*readers)
    assert sorted(entry.thread_id for entry in first) == sorted({*written, "long"})
    assert all(other == first for other in others)


async def test_pruning_stops_before_open_transactions(postgres_url: str, backend: Backend) -> None:
    """E5: an entry that commits late is never below what was pruned."""
    kept_nothing = Retention(feed=Retention().feed * 0)
    start = (await backend.feed.read()).next
    slow = await asyncpg.connect(postgres_url)
    async with slow.transaction():
        await store(slow, "slow")
        await backend.threads.store_message("quick", Message.user("x"))
        for _ in range(3):
            await backend.usage.count()
        await backend.workers.prune(kept_nothing)
    assert [entry.thread_id for entry in (await backend.feed.read(PageRequest(cursor=start))).items] == ["slow", "quick"]
    await slow.close()


async def test_followers_hear_what_comes(postgres_url: str) -> None:
    """E5: a follower goes on without being asked, and from any entry it saw."""
    async with Client.connect(postgres_url) as client, asyncio.timeout(20):
        follower = client.follow_feed()
        heard = asyncio.create_task(anext(follower))
        await client.store_message("one", "x")
        entry = await heard
        await client.store_message("two", "x")
        assert ((await anext(follower)).thread_id, entry.thread_id) == ("two", "one")
        again = client.follow_feed(entry.cursor)
        assert (await anext(again)).thread_id == "two"
        await again.aclose()
        await follower.aclose()


async def test_reading_does_not_depend_on_the_length(postgres_url: str) -> None:
    """A look is a probe of the index, whatever the feed holds and whatever other tenants wrote."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(
        "INSERT INTO runyard.outbox (tenant, thread_id, type) SELECT CASE WHEN n % 1000 = 0 THEN '' ELSE 'other' END, 't', "
        "'message.stored' FROM generate_series(1, 50000) n"
    )
    async with connection.transaction(readonly=True):
        rows = await connection.fetch("SELECT * FROM runyard.feed('', NULL, NULL, 30)")
        scans = "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'outbox'"
        sequential, fetched = await connection.fetchrow(scans) or (None, None)
    await connection.close()
    assert (len(rows), sequential, fetched) == (30, 0, 30)
