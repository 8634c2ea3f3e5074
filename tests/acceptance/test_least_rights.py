"""A deployment whose processes have no more rights than they need, over TLS with certificates on both sides."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from runyard import Client
from runyard.errors import BackendUnavailableError, InvalidInputError
from runyard_backends.postgres.rights import grant
from runyard_backends.redis import RedisServer
from tests.support.certificates import Certificates
from tests.support.fleet import Fleet, until
from tests.support.redis_nodes import RedisNode, SentinelRedis
from tests.support.tls_proxy import PostgresTlsProxy

pytestmark = pytest.mark.xdist_group("failovers")

ROOT = Path(__file__).parents[2]
RIGHTS_PAGE = ROOT / "docs/how-to/least-rights.md"
LUA = ROOT / "backends/runyard_backends/redis/lua"


def documented_user() -> str:
    """The line of the page that makes the user of Redis."""
    [line] = re.findall(r"^user runyard .*$", RIGHTS_PAGE.read_text(), re.MULTILINE)
    return str(line)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The owner of the schema."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def test_workers_with_the_least_rights_over_tls(app_url: str, certificates: Certificates) -> None:
    """The documented user of Redis under sentinels, and the documented role of Postgres, each with TLS and a certificate of the
    client: prompts, questions, cancels, deletions, streams and the work of the leader."""
    user = documented_user().removeprefix("user ").replace("PASSWORD", "secret")
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(SentinelRedis(user=user, tls=certificates))
        proxy = await stack.enter_async_context(PostgresTlsProxy(urlsplit(app_url).port or 0, certificates.server_context()))
        postgres = over_tls(app_url, proxy.port, certificates, "verify-full")
        redis_url = redis.url_for("runyard:secret")
        client = await stack.enter_async_context(Client.connect(postgres, redis=redis_url))
        fleet = Fleet(postgres, redis_url, client, client.backend)
        stack.push_async_callback(fleet.stop)
        await fleet.start()
        handle = await client.enqueue("t", "say one | ask which | say two")

        async def asked() -> bool:
            return bool((await client.requests()).items)

        await until(asked)
        await client.respond("t", "blue")
        assert [event.type async for event in handle.stream()][-1] in ("run.suspended", "run.completed")
        assert (await handle.result(20)).ok
        running = await client.enqueue("u", "sleep 30")
        await fleet.holder("u", running.id, messages=0)
        await running.cancel()

        async def cancelled() -> bool:
            return (await client.run("u", running.id)).ended

        await until(cancelled)
        await client.delete_thread("t")
        await client.drain_worker(next(worker.worker_id for worker in await client.workers()))

        async def drained() -> bool:
            return all(process.returncode is not None for process in fleet.processes.values())

        await until(drained)


def over_tls(url: str, port: int, certificates: Certificates, mode: str) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    files = f"sslrootcert={certificates.authority}&sslcert={certificates.client}&sslkey={certificates.client}"
    return parts._replace(netloc=f"{login}@127.0.0.1:{port}", query=f"sslmode={mode}&{files}").geturl()


def test_the_user_of_redis_has_the_commands_that_the_code_sends_and_no_others() -> None:
    """The list of the page is complete and as short as possible."""
    granted = {word[1:].replace("|", " ") for word in documented_user().split() if word.startswith("+")}
    scripts = {name.lower() for file in LUA.glob("*.lua") for name in re.findall(r"redis\.p?call\('(\w+)'", file.read_text())}
    sent = {
        "evalsha",
        "script load",
        "blpop",
        "set",
        "get",
        "getrange",
        "xrange",
        "spublish",
        "ssubscribe",
        "sunsubscribe",
        "ping",
        "info",
    }
    drivers = {"client setname", "select"}
    topology = {"cluster slots"}
    assert {name for name in granted if " " not in name} | {"xinfo"} >= scripts
    assert granted - {"xinfo stream"} == (scripts - {"xinfo"}) | sent | drivers | topology | {"time"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("ssl_ca_certs={authority}&ssl_certfile={client}&ssl_keyfile={client}", None),
        ("ssl_ca_certs={authority}", "alert|closed|reset|certificate required|EOF"),
        ("ssl_certfile={client}&ssl_keyfile={client}", "verify failed"),
    ],
)
async def test_redis_over_tls_checks_both_sides(certificates: Certificates, given: str, says: str | None) -> None:
    with RedisNode("secret", tls=certificates) as node:
        parameters = given.format(authority=certificates.authority, client=certificates.client)
        server = RedisServer(f"rediss://:secret@127.0.0.1:{node.port}?{parameters}")
        try:
            if says is None:
                await server.ping()
            else:
                with pytest.raises(BackendUnavailableError, match=says):
                    await server.ping()
        finally:
            await server.close()


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
async def test_postgres_over_tls_checks_the_host(app_url: str, certificates: Certificates, mode: str) -> None:
    """sslmode=verify-full refuses a certificate of the same authority for another host. verify-ca accepts it."""
    context = certificates.server_context(certificates.other_host)
    async with PostgresTlsProxy(urlsplit(app_url).port or 0, context) as proxy:
        url = over_tls(app_url, proxy.port, certificates, mode)
        if mode == "verify-ca":
            async with Client.connect(url) as client:
                assert (await client.runs()).items == []
        else:
            with pytest.raises(BackendUnavailableError, match="verify failed"):
                async with Client.connect(url):
                    pass


async def test_the_role_of_workers_writes_only_through_functions(app_url: str) -> None:
    """It reads every table. It can neither change runs and messages itself nor change the schema."""
    connection = await asyncpg.connect(app_url)
    try:
        assert await connection.fetchval("SELECT runyard.accept('t', 'hi', run_id => 'r1')") == "r1"
        assert await connection.fetchval("SELECT count(*) FROM runyard.runs") == 1
        for statement in (
            "UPDATE runyard.runs SET status = 'completed'",
            "DELETE FROM runyard.messages",
            "INSERT INTO runyard.schema_versions (version, name, oldest_code) VALUES (99, 'x', 99)",
            "TRUNCATE runyard.workers",
            "DELETE FROM runyard.api_keys",
            "CREATE TABLE runyard.mine (x int)",
            "DROP FUNCTION runyard.beat",
            "ALTER TABLE runyard.limits ADD x int",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()


async def test_a_grant_takes_other_rights(admin: asyncpg.Connection, postgres_url: str, app_role: str) -> None:
    await admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA runyard TO {app_role}")
    await grant(postgres_url, app_role)
    assert not await admin.fetchval(f"SELECT has_table_privilege('{app_role}', 'runyard.runs', 'UPDATE')")
    assert await admin.fetchval(f"SELECT has_table_privilege('{app_role}', 'runyard.limits', 'UPDATE')")


async def test_roles_that_cannot_get_rights_are_refused(admin: asyncpg.Connection, postgres_url: str) -> None:
    """The owner would lose its own rights. A role that does not exist is named in the error."""
    with pytest.raises(InvalidInputError, match="nobody's"):
        await grant(postgres_url, "nobody's")
    with pytest.raises(InvalidInputError, match="superuser or owns"):
        await grant(postgres_url, await admin.fetchval("SELECT current_user"))
