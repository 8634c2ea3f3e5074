"""What the schema lets others do: whose functions its own functions call, and who may call them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from runyard import Client
from runyard.errors import SchemaRightsError
from runyard_backends.postgres.migrate import called_functions, migrate
from runyard_backends.postgres.rights import grant

OWN_PATH = "search_path=pg_catalog, pg_temp"
OF_PREVIOUS_RELEASES = {
    *("register", "suspend", "feed", "suspended_runs", "graph_delete_runs", "append", "start_step", "finish_step", "context"),
    "list_threads",
}
"""Functions that only the code of previous releases calls."""


@pytest.fixture
async def admin(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The owner of the schema."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.execute("DROP OWNED BY rights_test CASCADE") if await connection.fetchval(
        "SELECT 1 FROM pg_roles WHERE rolname = 'rights_test'"
    ) else None
    await connection.execute("DROP ROLE IF EXISTS rights_test")
    await connection.close()


async def test_functions_have_a_search_path_and_the_rights_of_their_owner(admin: asyncpg.Connection) -> None:
    """Both are handed on to whatever they call. An operator or function of another schema that fits better is not taken, and
    a caller needs no right to the tables. A function that clients do not call has the rights of its caller."""
    rows = await admin.fetch(
        "SELECT proname, prosecdef, coalesce(proconfig, '{}') AS settings FROM pg_proc "
        "WHERE pronamespace = 'runyard'::regnamespace"
    )
    of_owner = {row["proname"] for row in rows if row["prosecdef"]}
    assert {row["proname"] for row in rows if OWN_PATH in row["settings"]} == of_owner
    assert len(called_functions()) > 50
    assert of_owner == called_functions() | OF_PREVIOUS_RELEASES | {"worker_demand", "choose_default_agent"}


async def open_to_all(connection: asyncpg.Connection) -> list[str]:
    """The objects of the schema on which everybody has a right."""
    rows = await connection.fetch(
        """
        SELECT 'schema' FROM pg_namespace n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
        WHERE n.nspname = 'runyard' AND a.grantee = 0
        UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        WHERE p.pronamespace = 'runyard'::regnamespace AND a.grantee = 0
        UNION ALL SELECT c.oid::regclass::text FROM pg_class c, aclexplode(c.relacl) a
        WHERE c.relnamespace = 'runyard'::regnamespace AND a.grantee = 0
        UNION ALL SELECT c.oid::regclass || '.' || x.attname
        FROM pg_class c JOIN pg_attribute x ON x.attrelid = c.oid, aclexplode(x.attacl) a
        WHERE c.relnamespace = 'runyard'::regnamespace AND a.grantee = 0
        """
    )
    return [row[0] for row in rows]


async def test_other_roles_may_neither_call_functions_nor_use_the_schema(admin: asyncpg.Connection) -> None:
    """Of every function, and of those that a later migration makes."""
    assert await open_to_all(admin) == []


@pytest.mark.parametrize("path", ["public", "public, pg_catalog"])
async def test_functions_that_fit_better_are_not_called(admin: asyncpg.Connection, postgres_url: str, path: str) -> None:
    """Whoever may make functions in a schema of the caller's path has them run with the caller's rights, if that is not seen
    to: one whose arguments fit exactly comes before one of pg_catalog that takes anything."""
    await admin.execute(
        """
        CREATE FUNCTION public.jsonb_build_object(text, text, text, text) RETURNS jsonb LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'taken over'; END $$;
        CREATE FUNCTION public.length(text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'taken over'; END $$;
        CREATE FUNCTION public.format(text, text, jsonb) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'taken over'; END $$;
        """
    )
    await admin.execute(f"SET search_path = {path}")
    assert await admin.fetchval("SELECT runyard.accept('t', 'hi', run_id => 'r1')") == "r1"
    with pytest.raises(asyncpg.PostgresError, match="option x cannot be"):
        await admin.execute("SELECT runyard.accept('t', 'hi', options => '{\"x\": 1}')")


async def test_a_host_that_only_accepts(admin: asyncpg.Connection, postgres_url: str) -> None:
    """The role of the documents: it may accept with SQL, and read or change nothing."""
    await admin.execute("CREATE ROLE rights_test")
    await admin.execute("GRANT USAGE ON SCHEMA runyard TO rights_test")
    await admin.execute("GRANT EXECUTE ON FUNCTION runyard.accept TO rights_test")
    host = await asyncpg.connect(postgres_url)
    async with Client.connect(postgres_url) as client:
        try:
            await host.execute("SET ROLE rights_test")
            assert await host.fetchval("SELECT runyard.accept('t', 'hi', run_id => 'r1')") == "r1"
            assert [run.run_id for run in (await client.runs("t")).items] == ["r1"]
            for statement in ("TABLE runyard.runs", "TABLE runyard.api_keys", "DELETE FROM runyard.runs"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await host.execute(statement)
            callable_ = await host.fetch(
                "SELECT proname FROM pg_proc "
                "WHERE pronamespace = 'runyard'::regnamespace AND has_function_privilege(oid, 'EXECUTE')"
            )
            assert [row[0] for row in callable_] == ["accept"]
            with pytest.raises(asyncpg.PostgresError) as conflict:  # a hash would tell whether a guessed text is the message
                await host.fetchval("SELECT runyard.accept('t', 'ho', run_id => 'r1')")
            assert json.loads(conflict.value.detail or "") == {
                "thread_id": "t",
                "run_id": "r1",
                "differs": ["message"],
                "values": {},
            }
        finally:
            await host.close()


@pytest.mark.parametrize("command", ["migrate", "grant"])
async def test_the_rights_of_everybody_are_taken_back(
    admin: asyncpg.Connection, postgres_url: str, app_role: str, command: str
) -> None:
    """A dump that was restored without its privileges leaves every function open to every role. A right of everybody is one
    of the role of workers, too."""
    await admin.execute(
        """
        GRANT ALL ON SCHEMA runyard TO PUBLIC;
        GRANT ALL ON ALL FUNCTIONS IN SCHEMA runyard TO PUBLIC;
        GRANT INSERT ON runyard.runs TO PUBLIC;
        GRANT UPDATE (outcome) ON runyard.attempts TO PUBLIC;
        GRANT ALL ON ALL SEQUENCES IN SCHEMA runyard TO PUBLIC;
        """
    )
    assert len(await open_to_all(admin)) > 200
    if command == "grant":
        await grant(postgres_url, app_role)
    else:
        assert (await migrate(postgres_url)).functions == 0
    assert await open_to_all(admin) == []


async def test_code_refuses_a_schema_with_a_function_that_it_may_not_call(
    admin: asyncpg.Connection, postgres_url: str, app_role: str, app_url: str
) -> None:
    """For example after a migration without `--grant-to`. The error comes at the start, not at the first claim. It has the
    statement that mends this."""
    async with Client.connect(app_url) as client:
        await client.enqueue("t", "hi")
    await admin.execute(f"REVOKE EXECUTE ON FUNCTION runyard.claim, runyard.list_threads_v2 FROM {app_role}")
    with pytest.raises(SchemaRightsError, match=f"--grant-to {app_role}") as caught:
        async with Client.connect(app_url):
            pass
    assert caught.value.details["role"] == app_role
    functions = caught.value.details["functions"]
    assert [each.partition("(")[0] for each in functions] == ["runyard.claim", "runyard.list_threads_v2"]
    await admin.execute(caught.value.message.split("`")[1])
    async with Client.connect(app_url) as client:
        assert len((await client.threads()).items) == 1


WRITES = {
    "workers": {"UPDATE", "DELETE"},
    "limits": {"INSERT", "UPDATE", "DELETE"},
    "paused_queues": {"INSERT", "UPDATE", "DELETE"},
    "webhook_keys": {"INSERT", "UPDATE"},
    "api_keys": {"INSERT", "UPDATE"},
}
"""The statements of ``queries.sql`` that change tables."""


async def test_the_role_of_workers_has_these_rights_and_no_others(admin: asyncpg.Connection, app_role: str) -> None:
    rows = await admin.fetch(
        """
        SELECT 'schema' AS kind, n.nspname AS name, a.privilege_type AS privilege
        FROM pg_namespace n, aclexplode(n.nspacl) a WHERE a.grantee = $1::text::regrole AND n.nspname = 'runyard'
        UNION ALL SELECT CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, c.relname, a.privilege_type
        FROM pg_class c, aclexplode(c.relacl) a WHERE c.relnamespace = 'runyard'::regnamespace AND a.grantee = $1::text::regrole
        UNION ALL SELECT 'column', c.relname || '.' || x.attname, a.privilege_type
        FROM pg_class c JOIN pg_attribute x ON x.attrelid = c.oid, aclexplode(x.attacl) a
        WHERE c.relnamespace = 'runyard'::regnamespace AND a.grantee = $1::text::regrole
        UNION ALL SELECT 'function', p.proname, a.privilege_type
        FROM pg_proc p, aclexplode(p.proacl) a WHERE p.pronamespace = 'runyard'::regnamespace AND a.grantee = $1::text::regrole
        """,
        app_role,
    )
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        found.setdefault((row["kind"], row["name"]), set()).add(row["privilege"])
    tables = await admin.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'runyard'::regnamespace AND relkind IN ('r', 'p', 'v')"
    )
    of_owner = await admin.fetch("SELECT proname FROM pg_proc WHERE pronamespace = 'runyard'::regnamespace AND prosecdef")
    assert found == {
        ("schema", "runyard"): {"USAGE"},
        **{("table", row[0]): {"SELECT"} | WRITES.get(row[0], set()) for row in tables},
        **{("column", f"webhooks.{name}"): {"UPDATE"} for name in ("version", "both_until", "rotation_id")},
        **{("function", row[0]): {"EXECUTE"} for row in of_owner},
    }
