"""Servers and databases for every kind of test. Fixtures start what they need on first use: unit tests start nothing."""

import asyncio
import gc
import os
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from hypothesis import settings
from redis.asyncio import Redis

from runyard import Client
from runyard.support.logging import plain_tracebacks
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from runyard_backends.embedded.servers import POSTGRES_VARIABLE, REDIS_VARIABLE
from tests.support.authorities import AUTHORITIES, CALLERS_AUTHORITIES
from tests.support.fleet import Fleet

if TYPE_CHECKING:
    from tests.support.mariadb import PrivateMariaDB
    from tests.support.providers.server import Providers

# No deadline: a machine under load must not fail a property that holds.
settings.register_profile("ci", deadline=None, print_blob=True)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

plain_tracebacks()

pytest.register_assert_rewrite("tests.support.suites", "tests.stateful.scheduler_machine")

# A script that starts the suite in the background has Ctrl-C ignored, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The certificates that HTTP clients trust. To read those of all public authorities takes each client 20 ms. Only pip and npm
# call servers with public certificates. The workers of xdist inherit the variables.
if "PYTEST_XDIST_WORKER" not in os.environ:
    import trustme

    trusted = tempfile.TemporaryDirectory(prefix="runyard-trusted-")
    os.environ[CALLERS_AUTHORITIES] = os.environ.get(AUTHORITIES, "")
    os.environ[AUTHORITIES] = f"{trusted.name}/authority.pem"
    trustme.CA().cert_pem.write_to_path(os.environ[AUTHORITIES])

TESTS = Path(__file__).parent
NARROWING = ("keyword", "markexpr", "lf", "maxfail", "collectonly", "ignore", "ignore_glob", "deselect")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    """This process's private Postgres, with `pause`, `kill` and `restart`. Never the one from the environment.

    Autovacuum is off: a table analyzed during a test changes the plans and the reads that the test counts.
    """
    with EmbeddedPostgres(durable=False) as server:
        databases = Databases(server.url)
        for statement in ("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()"):
            asyncio.run(databases.run(statement))
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """This process's private Valkey, with `pause`, `kill` and `restart`. Never the one from the environment."""
    with EmbeddedRedis() as server:
        yield server


def with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def for_role(url: str, role: str) -> str:
    """The URL for a role whose password is its name."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}:{role}@{parts.netloc.rpartition('@')[2]}"))


@dataclass(frozen=True)
class Databases:
    """Makes and drops databases on one Postgres. Each statement has its own connection: event loops differ between tests."""

    admin_url: str

    async def run(self, statement: str) -> None:
        connection = await asyncpg.connect(self.admin_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    async def create(self, template: str = "template0") -> str:
        """A new database's URL."""
        name = f"t_{secrets.token_hex(6)}"
        await self.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return with_database(self.admin_url, name)

    async def drop(self, url: str) -> None:
        await self.run(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)")


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Databases:
    """The Postgres in use: the one from the environment, else the private one."""
    named = os.environ.get(POSTGRES_VARIABLE)
    return Databases(named or request.getfixturevalue("postgres_server").url)


@pytest.fixture(scope="session")
def app_role(databases: Databases) -> Iterator[str]:
    """The name of a role that may only log in. Its password is its name."""
    role = f"app_{secrets.token_hex(6)}"
    asyncio.run(databases.run(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'"))
    yield role
    asyncio.run(databases.run(f"DROP ROLE {role}"))


@pytest.fixture(scope="session")
def migrated_template(databases: Databases, app_role: str) -> Iterator[str]:
    """The name of a database with the current schema, to copy from. `app_role` has its rights there."""
    from runyard_backends.postgres.migrate import migrate
    from runyard_backends.postgres.rights import grant

    async def make() -> str:
        url = await databases.create()
        await migrate(url)
        await grant(url, app_role)
        return url

    url = asyncio.run(make())
    yield urlsplit(url).path[1:]
    asyncio.run(databases.drop(url))


@pytest.fixture
async def postgres_url(databases: Databases, migrated_template: str) -> AsyncIterator[str]:
    """A fresh database with the current schema, for one test."""
    url = await databases.create(migrated_template)
    yield url
    await databases.drop(url)


@pytest.fixture
def app_url(postgres_url: str, app_role: str) -> str:
    """The same database, for the role that has only the rights of workers and API processes."""
    return for_role(postgres_url, app_role)


@pytest.fixture(scope="module")
def module_postgres_url(databases: Databases, migrated_template: str) -> Iterator[str]:
    """A fresh database with the current schema, shared by the tests of one module."""
    url = asyncio.run(databases.create(migrated_template))
    yield url
    asyncio.run(databases.drop(url))


@pytest.fixture
async def empty_postgres_url(databases: Databases) -> AsyncIterator[str]:
    """A fresh database without any schema, for one test."""
    url = await databases.create()
    yield url
    await databases.drop(url)


@pytest.fixture(scope="session")
def mariadb_server() -> "Iterator[PrivateMariaDB]":
    """This process's private MariaDB, with `start` and `stop`. The machine must have `mariadbd`."""
    from tests.support.mariadb import PrivateMariaDB

    with PrivateMariaDB() as server:
        yield server


def make_mysql_database(server: "PrivateMariaDB") -> str:
    """Make a database with the current schema, and return its URL."""
    from runyard_backends.sql.mysql import migrate

    async def make() -> str:
        url = server.url(await server.create())
        await migrate(url)
        return url

    return asyncio.run(make())


@pytest.fixture(scope="session")
def migrated_mysql(mariadb_server: "PrivateMariaDB") -> str:
    """A database with the current schema, which the tests of this process share."""
    return make_mysql_database(mariadb_server)


@pytest.fixture
def new_sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def new_mysql_url(mariadb_server: "PrivateMariaDB") -> str:
    """A fresh database with the current schema, for one test. It takes longer than `mysql_url`."""
    return make_mysql_database(mariadb_server)


@pytest.fixture
async def mysql_url(mariadb_server: "PrivateMariaDB", migrated_mysql: str) -> str:
    """A database with the current schema and no rows, for one test."""
    database = urlsplit(migrated_mysql).path[1:]
    tables = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'runyard%' AND table_schema = "
    found = [name for (name,) in await mariadb_server.run(f"{tables} '{database}'")]
    await mariadb_server.run(*(f"DELETE FROM {database}.{name}" for name in found if name != "runyard_schema"))
    return migrated_mysql


@pytest.fixture
async def redis_url(request: pytest.FixtureRequest) -> str:
    """A Redis database that was emptied, for one test."""
    url = os.environ.get(REDIS_VARIABLE) or request.getfixturevalue("redis_server").url
    async with Redis.from_url(url) as client:
        await client.flushdb()
    return url


@pytest.fixture
async def fleet(postgres_url: str, redis_url: str) -> AsyncIterator[Fleet]:
    """Worker processes, as many as the test starts, and a client."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.connect(postgres_url, redis=redis_url))
        fleet = Fleet(postgres_url, redis_url, client, client.backend)
        stack.push_async_callback(fleet.stop)
        yield fleet


@pytest.fixture
def providers(monkeypatch: pytest.MonkeyPatch) -> "Iterator[Providers]":
    """Model providers for one test; the SDKs of this process and of processes it starts find them by the environment."""
    from tests.support.providers.server import Providers

    with Providers().serving() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def folder_of(path: Path) -> str | None:
    """The folder under tests/ that holds `path`."""
    return path.parent.relative_to(TESTS).as_posix() if path.parent.is_relative_to(TESTS) and path.parent != TESTS else None


class EveryFolderRuns:
    """Fails a run of the whole suite in which a folder with test files ran no test: that would look like success."""

    def __init__(self) -> None:
        self.executed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(TESTS.parent / report.nodeid.split("::")[0])
        if folder and report.when == "call" and not report.skipped:
            self.executed.add(folder)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        idle = sorted({folder for file in TESTS.rglob("test_*.py") if (folder := folder_of(file))} - self.executed)
        if idle and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print(f"\nno test ran in: {', '.join(f'tests/{folder}' for folder in idle)}")


def pytest_configure(config: pytest.Config) -> None:
    whole = [Path(argument).resolve() for argument in config.args] == [TESTS]
    narrowed = any(getattr(config.option, name, None) for name in NARROWING)
    if whole and not narrowed and not hasattr(config, "workerinput"):  # with xdist only the controller sees every report
        config.pluginmanager.register(EveryFolderRuns())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude what the collection makes from garbage collections: a million objects that live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
