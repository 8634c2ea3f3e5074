"""Stored functions across releases: which are replaced, by whom, and which code runs on them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from runyard.errors import SchemaMismatch
from runyard.support import backend_urls
from runyard_backends.postgres.health import diagnose
from runyard_backends.postgres.migrate import FunctionFile, Migrated, Release, called_functions, migrate
from tests.support.fleet import Fleet

HERE = Release.installed()

CLAIM_V2 = """
CREATE OR REPLACE FUNCTION runyard.claim_v2(
    worker_id text, thread_keys bigint[], run_ids text[], patience integer, eager boolean
) RETURNS SETOF runyard.claimed
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
"""
"""What follows is the body of ``claim``: a later release gave it one more parameter, and with it a new name."""

CLAIM_KEPT = """
-- Kept for the release before.
CREATE OR REPLACE FUNCTION runyard.claim(worker_id text, thread_keys bigint[], run_ids text[], patience integer DEFAULT 0)
RETURNS SETOF runyard.claimed
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT c.* FROM runyard.claim_v2(worker_id, thread_keys, run_ids, patience, false) c;
END $$;
"""


def changed(release: Release, name: str, sql: str) -> Release:
    """A release in which a file of functions has another text."""
    kept = tuple(file for file in release.functions if file.name != name)
    return replace(release, functions=(*kept, FunctionFile(name, sql)))


def later() -> Release:
    """A release in which ``claim`` has another signature."""
    [claim] = [file for file in HERE.functions if file.name == "claim"]
    header, _, rest = claim.sql.partition("CREATE OR REPLACE FUNCTION runyard.claim(")
    signature, _, end = rest.partition("\nDECLARE\n")
    assert signature.endswith("AS $$") and end
    body = "\nDECLARE\n" + end.replace("claim.worker_id", "claim_v2.worker_id")
    return changed(replace(HERE, number=(99, 0)), "claim", header + CLAIM_V2.strip("\n") + body + CLAIM_KEPT)


CLAIMING = len(next(file for file in HERE.functions if file.name == "claim").functions) + 1


async def texts(url: str) -> dict[str, str]:
    """The body of every function."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'runyard'::regnamespace")
    finally:
        await connection.close()
    return {row["proname"]: row["prosrc"] for row in rows}


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_only_the_files_whose_text_changed_are_applied_again(postgres_url: str) -> None:
    assert (await migrate(postgres_url)).functions == 0
    [steps] = [file for file in HERE.functions if file.name == "steps"]
    for name in ("start_step(bigint, text, bigint, text)", "repeats(text[])"):
        await execute(postgres_url, f"ALTER FUNCTION runyard.{name} SET work_mem = '1MB'")  # until it is replaced
    done = await migrate(postgres_url, release=changed(HERE, "steps", steps.sql + "-- Another text.\n"))
    newest = HERE.migrations[-1].version
    assert done == Migrated(newest, newest, (), len(steps.functions), None, ("steps",))
    connection = await asyncpg.connect(postgres_url)
    try:
        kept = await connection.fetch("SELECT proname FROM pg_proc WHERE 'work_mem=1MB' = ANY (proconfig)")
    finally:
        await connection.close()
    assert [row["proname"] for row in kept] == ["repeats"]


async def test_a_function_that_is_gone_is_made_again(postgres_url: str) -> None:
    await execute(postgres_url, "DROP FUNCTION runyard.isolate")
    assert (await migrate(postgres_url)).functions > 0
    assert "isolate" in await texts(postgres_url)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("max_crashes", "CREATE OR REPLACE FUNCTION runyard.max_crashes() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 300"),
        (
            "waits_for_worker",
            "CREATE OR REPLACE FUNCTION runyard.waits_for_worker(r runyard.runs, unchanged interval) RETURNS boolean "
            "LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN false; END $$",
        ),
        ("admit", "ALTER FUNCTION runyard.admit RESET search_path"),
        ("crashes", "DROP FUNCTION runyard.crashes"),
        ("tagged", "DROP TRIGGER tagged ON runyard.threads"),
        ("tagged_anew", "ALTER TABLE runyard.threads DISABLE TRIGGER tagged_anew"),
    ],
)
async def test_function_or_trigger_that_was_edited_by_hand_is_named_and_restored(
    postgres_url: str, name: str, edit: str
) -> None:
    before = await stored(postgres_url)
    assert (await diagnose(postgres_url)).edited == ()
    await execute(postgres_url, edit)
    assert (await diagnose(postgres_url)).edited == (name,)
    assert (await migrate(postgres_url)).functions > 0
    assert await stored(postgres_url) == before
    assert (await diagnose(postgres_url)).edited == ()
    assert (await migrate(postgres_url)).functions == 0


async def stored(url: str) -> set[tuple[str, ...]]:
    """The definition of every function and every trigger."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT proname, pg_get_functiondef(oid), '' FROM pg_proc WHERE pronamespace = 'runyard'::regnamespace UNION ALL "
            "SELECT tgname, pg_get_triggerdef(oid), tgenabled::text FROM pg_trigger WHERE NOT tgisinternal"
        )
    finally:
        await connection.close()
    return {tuple(row) for row in rows}


async def test_an_older_release_changes_nothing(postgres_url: str) -> None:
    """Its functions would be put over those of the newer one; every call of an old worker would then run the old text."""
    done = await migrate(postgres_url, release=later())
    assert done.functions == CLAIMING and done.newer_release is None
    after = await texts(postgres_url)
    assert "claim_v2" in after["claim"]
    done = await migrate(postgres_url)
    assert (done.migrations, done.functions, done.newer_release) == ((), 0, "99.0")
    assert await texts(postgres_url) == after


async def test_a_release_that_does_not_change_a_file_keeps_it_from_older_ones(postgres_url: str) -> None:
    """A release may move a function to another file; the file of an older one must not bring its text back."""
    await migrate(postgres_url, release=replace(HERE, number=(99, 0)))
    [cycles] = [file for file in HERE.functions if file.name == "tool_cycles"]
    older = changed(HERE, "a_file_of_an_older_release", cycles.sql)
    before = await texts(postgres_url)
    assert (await migrate(postgres_url, release=older)).newer_release == "99.0"
    assert await texts(postgres_url) == before


async def test_a_body_that_does_not_parse_stops_the_migration(postgres_url: str) -> None:
    """And nothing is changed, not by the other files either."""
    before = await texts(postgres_url)
    broken = "CREATE OR REPLACE FUNCTION runyard.broken() RETURNS void LANGUAGE plpgsql AS $$ BEGIN nonsense; END $$;"
    [steps] = [file for file in HERE.functions if file.name == "steps"]
    other = changed(HERE, "steps", steps.sql.replace("BEGIN\n", "BEGIN\n    -- Another body.\n"))
    release = changed(other, "broken", broken)
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await migrate(postgres_url, release=release)
    assert await texts(postgres_url) == before


async def test_a_worker_runs_on_the_functions_of_a_later_release(fleet: Fleet) -> None:
    """``claim`` got another signature, and so a new name; the old one stays for the workers of the release before."""
    await fleet.start()
    first = await fleet.client.enqueue("before", "say one | tool add 1 2")
    assert (await first.result(20)).ok
    assert (await migrate(fleet.postgres, release=later())).functions == CLAIMING
    second = await fleet.client.enqueue("after", "say one | tool add 1 2")
    assert (await second.result(20)).ok
    await fleet.stop()
    await fleet.start()
    third = await fleet.client.enqueue("restarted", "say one | tool add 1 2")
    assert (await third.result(20)).ok


async def test_code_refuses_a_schema_that_lacks_a_function_it_calls(fleet: Fleet, tmp_path: Path) -> None:
    """A worker says so when it starts, not at its first claim."""
    await execute(fleet.postgres, "DROP FUNCTION runyard.claim")
    with pytest.raises(SchemaMismatch, match=r"lacks functions that this code calls: claim;") as caught:
        await backend_urls.connect(fleet.postgres)
    assert caught.value.details == {"missing_functions": ["claim"]}
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    try:
        process = await fleet.spawn("runyard.testing.scripted_agent:app", log=log)
        assert await asyncio.wait_for(process.wait(), 30) != 0
    finally:
        os.close(log)
    assert "lacks functions that this code calls: claim;" in (tmp_path / "log").read_text()


async def test_every_function_that_is_called_is_one_of_this_release() -> None:
    made = {name for file in HERE.functions for name in file.functions}
    assert called_functions() <= made and len(called_functions()) > 50
