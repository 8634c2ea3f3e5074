"""Write ``schema.sql``, the schema that all migrations and functions make together (``make schema``).

Tables, types and indexes are those of a database that was migrated, as pg_dump prints them, with the comments of the
migrations. Functions are shown without their bodies, file by file.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import runyard_backends.postgres
from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.embedded.binaries import find_postgres
from runyard_backends.postgres.migrate import Release, migrate

PAGE = Path(runyard_backends.postgres.__file__).parent / "schema.sql"
HEAD = """\
-- The schema "runyard": every sequence, type and table, and the signature of every function, with the comments of migrations/
-- and functions/. Written by `make schema`. To read, not to edit or run: `runyard migrate` applies the files of those folders.
"""
_OBJECT = re.compile(
    r"^--\n-- Name: (?P<name>[^;]+); Type: (?P<kind>[^;]+); [^\n]*\n--\n\n(?P<text>.*?)(?=^--\n|\Z)", re.S | re.M
)
_SHORTER = (
    ("timestamp with time zone", "timestamptz"),
    (" USING btree", ""),
    (r"::jsonb\b", ""),
    (r"::text\b", ""),
    (r"nextval\('(\S+)'::regclass\)", r"nextval('\1')"),
    (r"'(-?\d+)'::(integer|bigint)", r"\1"),
    (r"\t", "    "),
    (r"^(CREATE [^\n]{20,}?) (WHERE [^\n]*)$", r"\1\n    \2"),
)


@dataclass(frozen=True, slots=True)
class Thing:
    """One object of the database. ``name``: if the object belongs to a table, the name begins with that table's name."""

    kind: str
    name: str
    sql: str


def things(url: str) -> list[Thing]:
    """Return the objects that pg_dump prints for the schema at ``url``."""
    command = [str(find_postgres().bin / "pg_dump"), "--schema=runyard", "--schema-only", "--no-owner", "--no-acl", url]
    dump = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = []
    for match in _OBJECT.finditer(dump):
        sql = re.sub(r"^(SET|\\)[^\n]*\n", "", match[3], flags=re.M)
        for pattern, shorter in _SHORTER:
            sql = re.sub(pattern, shorter, sql, flags=re.M)
        found.append(Thing(match[2], match[1], sql.strip() + "\n"))
    return found


def comments(release: Release) -> dict[str, str]:
    """Return the comments above the objects in the migrations, by the objects' names, in their order."""
    said: dict[str, str] = {}
    for migration in release.migrations:
        pattern = r"(?P<comment>(?:^--[^\n]*\n)*)^CREATE (?:UNIQUE )?(?:[A-Z]+) (?:runyard\.)?(?P<name>\w+)"
        for match in re.finditer(pattern, migration.sql, re.M):
            said[match["name"]] = match["comment"]
    return said


def table(thing: Thing, parts: list[Thing], said: dict[str, str]) -> str:
    """Return the SQL of a table with its keys and identities, then the SQL of its indexes and triggers."""
    sql = thing.sql
    for part in parts:
        if part.kind == "CONSTRAINT":
            constraint = re.search(r"ADD (CONSTRAINT .*);", part.sql)
            assert constraint is not None
            sql = re.sub(r"\n\)(?=[;\n])", lambda _, text=constraint[1]: f",\n    {text}\n)", sql, count=1)  # type: ignore[misc]
        elif identity := re.search(r"ALTER COLUMN \"?(\w+)\"? ADD (GENERATED \w+( \w+)? AS IDENTITY)", part.sql):
            sql = re.sub(rf"(^    \"?{identity[1]}\"? [^,\n]+)", rf"\1 {identity[2]}", sql, count=1, flags=re.M)
    rest = sorted((part for part in parts if part.kind in ("INDEX", "TRIGGER")), key=lambda part: place(part, said))
    return sql + "".join(said.get(part.name.split()[-1], "") + part.sql for part in rest)


def place(thing: Thing, said: dict[str, str]) -> tuple[int, str]:
    """Return the sort key of an object: its place in the migrations, or else its name."""
    name = thing.name.partition("(")[0].split()[-1]
    return (list(said).index(name) if name in said else len(said), name)


def owner(thing: Thing) -> str | None:
    """Return the table to which an object belongs, or None."""
    found = re.search(r"(?:ALTER TABLE (?:ONLY )?|INDEX \w+ ON (?:ONLY )?|TRIGGER .* ON )runyard\.(\w+)", thing.sql)
    return found[1] if found else None


def functions(release: Release) -> str:
    """Return the comment and signature of every function, file by file."""
    pages = []
    pattern = r"(?P<comment>(?:^--[^\n]*\n)*)^CREATE OR REPLACE FUNCTION (?P<signature>.*?)\s+LANGUAGE "
    for file in sorted(release.functions, key=lambda file: file.name):
        purpose = re.match(r"(?:--[^\n]*\n)+", file.sql)
        assert purpose is not None
        signatures = (
            f"{match['comment']}FUNCTION {match['signature']};\n" for match in re.finditer(pattern, file.sql, re.M | re.S)
        )
        pages.append(f"-- functions/{file.name}.sql {'-' * (110 - len(file.name))}\n{purpose[0]}\n" + "\n".join(signatures))
    return "\n".join(pages)


def page(url: str) -> str:
    """Return the text of ``schema.sql`` for the database at ``url``, which this release has migrated."""
    release = Release.installed()
    said = comments(release)
    found = things(url)
    made = {thing.name.partition("(")[0] for thing in found if thing.kind == "FUNCTION"}
    outside = made - {name for file in release.functions for name in file.functions}
    kinds = ("SEQUENCE", "TYPE", "DOMAIN", "TABLE", "VIEW")
    own = [thing for thing in found if thing.kind in kinds or thing.name.partition("(")[0] in outside]
    parts = []
    for thing in sorted((thing for thing in own if not owner(thing)), key=lambda thing: place(thing, said)):
        comment = said.get(thing.name.partition("(")[0], "")
        if thing.kind == "SEQUENCE":
            parts.append(f"{comment}CREATE SEQUENCE runyard.{thing.name};\n")
        elif thing.kind == "TABLE":
            parts.append(comment + table(thing, [part for part in found if owner(part) == thing.name], said))
        else:
            parts.append(comment + thing.sql)
    return f"{HEAD}\n" + "\n".join(parts) + "\n" + functions(release)


def current() -> str:
    """Return the text of ``schema.sql`` for a new database."""
    with EmbeddedPostgres(durable=False) as server:
        asyncio.run(migrate(server.url))
        return page(server.url)


if __name__ == "__main__":
    PAGE.write_text(current(), "utf-8")
