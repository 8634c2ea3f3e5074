"""Redis in this process: what `tests/support/suites` asks of a server, on fakeredis."""

import asyncio
from collections.abc import Iterator
from secrets import token_hex

import pytest

from runyard_backends.redis import RedisServer, fake
from tests.support.suites.scheduler import SomebodyWaits


@pytest.fixture
def redis_url() -> Iterator[str]:
    """An empty server of fakeredis, for one test."""
    url = f"fakeredis://{token_hex(4)}"
    server = fake.server(url)  # kept while the test has no connection to it
    yield url
    assert server is fake.server(url)


@pytest.fixture
def somebody_waits(redis_url: str) -> SomebodyWaits:
    async def until_somebody_waits(server: RedisServer) -> None:
        async with asyncio.timeout(30):
            while not any(socket._blocked for socket in fake.server(redis_url).sockets):  # noqa: ASYNC110
                await asyncio.sleep(0)

    return until_somebody_waits
