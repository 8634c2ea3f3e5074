"""Which code starts on which schema (design §11)."""

import asyncpg

from backends.postgres.migrate import CODE_VERSION, OLDEST_SCHEMA, migrate, migrations
from runner import registry
from runner.errors import RunyardError, SchemaMismatch, SchemaUninitialized


async def starts(url: str) -> type[RunyardError] | None:
    """Whether this code connects to the database; the error if not."""
    try:
        backend = await registry.connect(url)
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
    assert await migrate(postgres_url) == []
    await record(postgres_url, 102, CODE_VERSION + 1)
    assert await starts(postgres_url) is SchemaMismatch
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
    await migrate(empty_postgres_url)
    assert await starts(empty_postgres_url) is None


def test_the_oldest_schema_is_one_of_this_code() -> None:
    versions = [version for version, _, _ in migrations()]
    assert versions == list(range(1, len(versions) + 1))
    assert OLDEST_SCHEMA in versions
