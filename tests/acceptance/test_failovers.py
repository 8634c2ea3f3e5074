"""Servers that change roles: the old primary of Redis or Postgres comes back as a replica, and nobody restarts a worker."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.errors import BackendUnavailableError
from runyard_api.http.app import asgi_app
from runyard_backends.postgres.backend import PostgresBackend
from runyard_backends.postgres.migrate import migrate
from tests.http.conftest import transport
from tests.support.failovers import PostgresPair, RedisPair, several_hosts, through
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import SLACK, Fleet, until

pytestmark = pytest.mark.xdist_group("failovers")

SOON = 5.0
"""Seconds after a failover within which readiness tells the truth and writes succeed."""


def readiness(fleet: Fleet) -> tuple[int, list[str]]:
    """The status and the reasons of ``/readyz`` of the only worker."""
    [metrics] = fleet.metrics.values()
    url = metrics.replace("/metrics", "/readyz")
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, json.load(reply)["reasons"]
    except urllib.error.HTTPError as reply:
        return reply.code, json.load(reply)["reasons"]


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until ``condition``, and check that it took at most ``seconds``."""
    began = time.monotonic()

    async def holds() -> bool:
        return await asyncio.to_thread(condition)

    await until(holds, seconds + SLACK)
    print(f"{condition.__name__}: {time.monotonic() - began:.2f} s")


def is_ready(fleet: Fleet) -> Callable[[], bool]:
    def ready() -> bool:
        return readiness(fleet) == (200, [])

    return ready


def is_not_ready(fleet: Fleet, reason: str) -> Callable[[], bool]:
    def not_ready() -> bool:
        status, reasons = readiness(fleet)
        return status == 503 and any(reason in said for said in reasons)

    return not_ready


async def writes_again(fleet: Fleet, thread_id: str) -> None:
    """A run is accepted, executed and read within SOON."""
    began = time.monotonic()
    async with asyncio.timeout(SOON + SLACK):
        while True:
            try:
                handle = await fleet.client.enqueue(thread_id, "say hello")
                break
            except BackendUnavailableError:
                await asyncio.sleep(0.1)
        result = await handle.result()
    assert (result.text, result.run.attempt) == ("hello", 1)
    print(f"a run completed after {time.monotonic() - began:.2f} s")


class TestRedis:
    @pytest.fixture
    async def pair(self) -> AsyncIterator[RedisPair]:
        async with RedisPair() as pair:
            yield pair

    async def test_old_primary_lives_on_as_replica(self, pair: RedisPair, postgres_url: str) -> None:
        """I1, E1: its connections stay open and refuse writes. Readiness says so, Postgres goes on, and the name leads to the
        new primary at the next connect."""
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy("127.0.0.1", pair.primary.port))
            url = through(pair.primary.url, proxy.port)
            client = await stack.enter_async_context(Client.connect(postgres_url, redis=url))
            fleet = Fleet(postgres_url, url, client, client.backend)
            stack.push_async_callback(fleet.stop)
            await fleet.start()
            app = asgi_app(client, auth="off")
            assert (await (await client.enqueue("before", "hi")).result(20)).ok
            await within(SOON, is_ready(fleet))
            running = await client.enqueue("running", "say one | sleep 4 | say two")
            reading = asyncio.create_task(_types(client, "running", running.id))
            await fleet.holder("running", running.id)

            await pair.fail_over()
            late = await client.enqueue("late", "hi", delay=0.2)
            await within(SOON, is_not_ready(fleet, "Redis has taken no writes lately"))
            assert any("replica" in reason for reason in readiness(fleet)[1])
            [said] = (await _api_readiness(app))["degraded"]
            assert "replica" in said

            async def admitted() -> bool:
                return (await late.run()).admitted_at is not None

            await until(admitted)  # what only the store decides goes on
            assert (await running.result(30)).status is RunStatus.COMPLETED

            proxy.upstream_port = pair.primary.port
            await writes_again(fleet, "after")
            assert (await late.result(SOON + SLACK)).ok
            await within(SOON, is_ready(fleet))
            assert (await _api_readiness(app))["degraded"] == []
            assert (await asyncio.wait_for(reading, SOON + SLACK))[-1] == "run.completed"

            async def nobody_there() -> bool:
                async with Redis.from_url(pair.replica.url) as redis:
                    return not [entry for entry in await redis.client_list() if entry["name"].startswith("runyard")]

            await until(nobody_there)


async def _types(client: Client, thread_id: str, run_id: str) -> list[str]:
    return [event.type async for event in client.stream(thread_id, run_id)]


async def _api_readiness(app: object) -> dict[str, list[str]]:
    import httpx

    async with httpx.AsyncClient(transport=transport(app), base_url="http://api") as api:  # type: ignore[arg-type]
        found: dict[str, list[str]] = (await api.get("/readyz")).json()
        return found


class TestPostgres:
    @pytest.fixture
    def pair(self) -> PostgresPair:  # type: ignore[misc]
        with PostgresPair() as pair:
            yield pair

    async def test_old_primary_comes_back_as_standby_at_its_address(self, pair: PostgresPair, redis_url: str) -> None:
        """I1: one address, which leads to a standby for a while. No connection stays there."""
        await migrate(pair.primary.url)
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(FaultProxy("127.0.0.1", pair.primary.port))
            url = through(pair.primary.url, proxy.port)
            client = await stack.enter_async_context(Client.connect(url, redis=redis_url))
            fleet = Fleet(url, redis_url, client, client.backend)
            stack.push_async_callback(fleet.stop)
            await fleet.start()
            await within(SOON, is_ready(fleet))
            await writes_again(fleet, "before")

            pair.primary.shut_down()
            await pair.promote()
            pair.take_back()
            with pytest.raises(BackendUnavailableError, match="standby"):
                await _refused(client)
            await within(SOON, is_not_ready(fleet, "Postgres has taken no writes lately"))
            await until(lambda: nobody_at(pair))

            proxy.upstream_port = pair.primary.port
            await writes_again(fleet, "after")
            await within(SOON, is_ready(fleet))
            await until(lambda: nobody_at(pair))

    async def test_several_hosts_of_which_one_is_the_primary(self, pair: PostgresPair, redis_url: str) -> None:
        """I1: the standby comes first in the URL, the roles change, and at last the first host does not answer."""
        await migrate(pair.primary.url)
        url = several_hosts(pair.standby, pair.primary)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client.connect(url, redis=redis_url))
            fleet = Fleet(url, redis_url, client, client.backend)
            stack.push_async_callback(fleet.stop)
            await fleet.start()
            await writes_again(fleet, "before")
            pair.primary.shut_down()
            await pair.promote()
            pair.take_back()
            await writes_again(fleet, "after")
            await until(lambda: nobody_at(pair))
            await within(SOON, is_ready(fleet))

            pair.primary.shut_down()
            await pair.promote()
            pair.take_back()
            pair.standby.pause()
            try:
                await writes_again(fleet, "beside a host that does not answer")
                await within(SOON, is_ready(fleet))
            finally:
                pair.standby.resume()


async def nobody_at(pair: PostgresPair) -> bool:
    """Whether no connection is at the standby: those that try it are closed at once."""
    return await pair.sessions(pair.standby) == 0


async def _refused(client: Client) -> None:
    """Enqueue until the server is found to be a standby: before that, connections were cut."""
    assert isinstance(client.backend, PostgresBackend)
    while True:
        try:
            await client.enqueue("refused", "hi")
        except BackendUnavailableError as error:
            if "standby" in str(error):
                raise
        await asyncio.sleep(0.05)
