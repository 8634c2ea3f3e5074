"""A page of a path reads its own messages, however many other branches the thread has (B2)."""

from __future__ import annotations

import asyncpg

from runyard.models import Message
from runyard_backends.postgres.backend import connect
from tests.integration.postgres.test_long_lanes import blocks

MESSAGES, BRANCHES, OWN = 200, 80, 4
PAGE = "SELECT * FROM runyard.path_page('', 't', $1::uuid, -1, 9000000000, 50, $2, NULL)"


async def test_a_page_of_a_path_reads_no_other_branch(postgres_url: str) -> None:
    backend = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        ids = [(await backend.threads.store_message("t", Message.user(f"m{n}"))).id for n in range(MESSAGES)]

        async def pages() -> list[int]:
            return [
                await blocks(connection, PAGE, leaf, newest_first) for leaf in (None, ids[-1]) for newest_first in (False, True)
            ]

        await pages()  # makes the plans
        alone = await pages()
        for n in range(BRANCHES):
            parent = ids[n]
            for _ in range(OWN):
                parent = (await backend.threads.store_message("t", Message.user("aside"), parent)).id
        await backend.threads.store_message("t", Message.user("back"), ids[-1])  # the first branch is the head again
        among_others = await pages()
    finally:
        await connection.close()
        await backend.close()
    for before, after in zip(alone, among_others, strict=True):
        assert after <= before + 10, (alone, among_others)
