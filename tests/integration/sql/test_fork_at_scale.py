"""A fork of a long thread takes the time of a fork of a thread of 100 (F1)."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator

import pytest

from runyard.models import Message, new_id
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.stores import Backend
from runyard_backends.sql.database import Database, Transaction
from runyard_backends.sql.writes import branch_of
from tests.support.checkpoint_writer import connect
from tests.support.long_form import LONG

MANY = 100_000 if LONG else 20_000
FILLED = 5_000
"""Rows of one transaction: a slow machine writes them within the time limit of a statement."""
FORKS = 40


@pytest.fixture(params=["sqlite", "mysql"])
async def backend(request: pytest.FixtureRequest, new_sqlite_url: str, migrated_mysql: str) -> AsyncIterator[Backend]:
    connected = await connect(new_sqlite_url if request.param == "sqlite" else migrated_mysql)
    yield connected.for_tenant(new_id())
    await connected.close()


async def grown(backend: Backend, thread_id: str, count: int) -> None:
    """Make a thread with ``count`` messages, a completed run in the middle and a completed run at the end."""
    await backend.checkpointer.append(thread_id, [Message.user("first")])
    for run_id, part in (("middle", count // 2), ("end", count - count // 2 - 3)):
        for begun in range(0, part, FILLED):
            await fill(backend.db, thread_id, backend.tenant, min(FILLED, part - begun))  # type: ignore[attr-defined]
        await backend.checkpointer.claim_run(thread_id, run_id)
        await backend.checkpointer.append(thread_id, [Message.user(run_id, run_id=run_id)])
        await backend.checkpointer.mark_run_complete(thread_id, run_id)


async def fill(db: Database, thread_id: str, tenant: str, count: int) -> None:
    """Copy the first message of a thread to its end, ``count`` times."""

    async def verb(tx: Transaction) -> None:
        thread = await tx.row("lock_thread", tenant, thread_id)
        assert thread is not None
        branch = await branch_of(tx, thread["head_branch"])
        [(_, _, _, _, role, payload, *_)] = await tx.tuples("stored_message", branch["branch_id"], 1)
        first, now = thread["next_seq"], await tx.now()
        rows = [(branch["branch_id"], first + n, new_id(), None, None, role, payload, 0, None, None, now) for n in range(count)]
        await tx.send_many("add_message", rows)
        await tx.send("move_leaf", rows[-1][2], first + count - 1, branch["branch_id"])
        await tx.send("save_numbers", first + count, thread["next_completion_seq"], now, thread["thread_key"])

    await db.write(verb)


async def test_f1_a_fork_of_a_long_thread_is_as_fast_as_one_of_a_short_thread(backend: Backend) -> None:
    """F1: Forks after a run in the middle, and after the last run, differ by less than a factor of two."""
    await grown(backend, "short", 100)
    await grown(backend, "long", MANY)
    seconds: dict[str, list[float]] = {"short": [], "long": []}
    for n in range(FORKS):
        for thread in seconds:  # alternate the two threads, so that other load slows both
            cut = Cut(after_run_id="middle" if n % 2 else "end")
            begun = time.perf_counter()
            await backend.threads.fork(ForkRequest(src=thread, new=f"{thread}-{n}", cut=cut))
            seconds[thread].append(time.perf_counter() - begun)
    short, long = (statistics.median(times) for times in seconds.values())
    print(f"fork of 100: {short * 1000:.2f} ms, of {MANY}: {long * 1000:.2f} ms")
    assert long < 2 * short
    page = await backend.threads.messages("long-0")
    assert len(page.items) == MANY
