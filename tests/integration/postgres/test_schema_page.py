"""``schema.sql`` shows what the migrations and functions amount to."""

from __future__ import annotations

import asyncio

from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.postgres.migrate import migrate
from tests.conftest import Databases
from tests.support.schema_page import PAGE, page


async def test_the_page_is_current(postgres_server: EmbeddedPostgres) -> None:
    """If this fails: `make schema`. On the private server: pg_dump is the one that came with it."""
    databases = Databases(postgres_server.url)
    url = await databases.create()
    try:
        await migrate(url)
        assert await asyncio.to_thread(page, url) == PAGE.read_text("utf-8")
    finally:
        await databases.drop(url)
