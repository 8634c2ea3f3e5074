"""Which code starts on which schema (U1)."""

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from runyard.errors import BackendUnavailableError, RunyardError, SchemaMismatch, SchemaUninitialized
from runyard.support import backend_urls
from runyard_api.cli import exit_codes
from runyard_api.cli.main import main
from runyard_backends.postgres.database import statements
from runyard_backends.postgres.migrate import CODE_VERSION, OLDEST_SCHEMA, Migrated, Release, migrate, plan


async def starts(url: str) -> type[RunyardError] | None:
    """Whether this code connects to the database; the error if not."""
    try:
        backend = await backend_urls.connect(url)
    except RunyardError as error:
        return type(error)
    await backend.close()
    return None


async def record(url: str, version: int, oldest_code: int) -> None:
    """A schema version that a later release made."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("INSERT INTO runyard.schema_versions VALUES ($1, 'later', $2)", version, oldest_code)
    finally:
        await connection.close()


async def test_code_starts_from_its_oldest_schema_to_the_newest_that_admits_it(postgres_url: str) -> None:
    """Expansions do not stop old code; a contraction does, whatever is applied after it."""
    assert await starts(postgres_url) is None
    await record(postgres_url, 101, CODE_VERSION)
    assert await starts(postgres_url) is None
    assert await migrate(postgres_url) == Migrated(101, 101, (), 0, None)
    await record(postgres_url, 102, CODE_VERSION + 1)
    assert await starts(postgres_url) is SchemaMismatch
    with pytest.raises(SchemaMismatch, match="upgrade runyard"):
        await plan(postgres_url)
    await record(postgres_url, 103, 1)
    assert await starts(postgres_url) is SchemaMismatch


async def test_code_does_not_start_on_a_schema_that_lacks_what_it_uses(postgres_url: str) -> None:
    """Migrations are applied before the code that needs them is rolled out."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("DELETE FROM runyard.schema_versions WHERE version >= $1", OLDEST_SCHEMA)
    await connection.close()
    assert await starts(postgres_url) is SchemaMismatch


async def test_without_a_schema(empty_postgres_url: str) -> None:
    assert await starts(empty_postgres_url) is SchemaUninitialized
    release = Release.installed()
    done = await migrate(empty_postgres_url)
    assert (done.before, done.after) == (0, release.migrations[-1].version)
    assert done.migrations[0] == "0001_threads" and len(done.migrations) == len(release.migrations)
    assert done.functions == sum(len(file.functions) for file in release.functions)
    assert await starts(empty_postgres_url) is None


async def test_the_command_says_what_it_did(
    empty_postgres_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From which version to which, and how many functions were replaced."""
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", empty_postgres_url)
    release = Release.installed()
    newest, functions = release.migrations[-1].version, sum(len(file.functions) for file in release.functions)

    async def told() -> str:
        assert await asyncio.to_thread(main, ["migrate"]) == exit_codes.Exit.OK
        return " ".join(capsys.readouterr().out.split())

    async def planned(*options: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, ["migrate", *options])
        return code, " ".join(capsys.readouterr().out.split())

    for options, expected in ((["--plan"], exit_codes.Exit.OK), (["--check"], exit_codes.Exit.UNAVAILABLE)):
        code, said = await planned(*options)
        assert code == expected and f"at version 0, and this code has {newest}; it lacks 0001_threads" in said
    assert await starts(empty_postgres_url) is SchemaUninitialized, "a plan changes nothing"
    said = await told()
    assert f"went from version 0 to {newest}; {functions} functions made or replaced 0001_threads" in said
    assert "functions/claim.sql" in said
    assert f"up to date, at version {newest}" in await told()
    assert await planned("--check") == (exit_codes.Exit.OK, f"● the schema is up to date, at version {newest}")
    connection = await asyncpg.connect(empty_postgres_url)
    await connection.execute("UPDATE runyard.schema_functions SET digest = '' WHERE file = 'suspend'")
    assert (await planned("--check"))[0] == exit_codes.Exit.UNAVAILABLE
    count = next(len(file.functions) for file in release.functions if file.name == "suspend")
    assert (await told()).endswith(f"at version {newest}, as before; {count} functions made or replaced functions/suspend.sql")
    await connection.execute("UPDATE runyard.schema_functions SET release = '{99, 1}' WHERE file = 'suspend'")
    await connection.close()
    assert "those of release 99.1, which is newer" in await told()


def test_the_oldest_schema_is_one_of_this_code() -> None:
    versions = [migration.version for migration in Release.installed().migrations]
    assert versions == list(range(1, len(versions) + 1))
    assert OLDEST_SCHEMA in versions


async def test_concurrent_calls_wait_for_each_other(postgres_url: str) -> None:
    """The timeout is for locks on tables, and not for another call, whose migrations may take longer. Timeouts of the role or
    the database do not count."""
    other = await asyncpg.connect(postgres_url)
    for setting in ("lock_timeout", "statement_timeout"):
        await other.execute(f"ALTER DATABASE {urlsplit(postgres_url).path[1:]} SET {setting} = '200ms'")
    try:
        async with other.transaction():
            await other.execute(statements()["schema_lock"])
            waiting = asyncio.create_task(migrate(postgres_url, lock_timeout=0.05))
            done, _ = await asyncio.wait((waiting,), timeout=0.5)
            assert not done
        assert (await asyncio.wait_for(waiting, 20)).migrations == ()
    finally:
        await other.close()


async def test_a_lock_on_a_table_is_not_waited_for_longer(postgres_url: str) -> None:
    other = await asyncpg.connect(postgres_url)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE runyard.schema_functions")
            with pytest.raises(BackendUnavailableError, match="try again later"):
                await migrate(postgres_url, lock_timeout=0.05)
    finally:
        await other.close()
