"""House rules for SQL: where a function stands, how long it may be, and that files and statements say what they are for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import runyard_backends.postgres
from runyard_backends.postgres.migrate import OLDEST_SCHEMA
from runyard_backends.sql.migrate import migrations
from runyard_backends.statements import named_statements

PACKAGE = Path(runyard_backends.postgres.__file__).parent
FILES = sorted((PACKAGE / "functions").glob("*.sql"))
MIGRATIONS = sorted((PACKAGE / "migrations").glob("*.sql"))
FUNCTION = re.compile(
    r"^CREATE OR REPLACE FUNCTION runyard\.(\w+)\(.*?(?:^END \$\$;|^\$\$;|RETURNS \w+ [^\n]*RETURN \d+;)$",
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize("path", [*FILES, *MIGRATIONS], ids=lambda path: path.stem)
def test_a_file_says_what_it_is_for_and_is_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.match(r"-- [A-Z]", text)
    assert text.count("\n") < 250


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_functions_can_be_applied_again(path: Path) -> None:
    """It holds functions and their triggers, and replaces them."""
    text = re.sub(r"^--[^\n]*\n", "", FUNCTION.sub("", path.read_text("utf-8")), flags=re.MULTILINE)
    rest = [statement for statement in text.split(";") if statement.strip()]
    assert [statement for statement in rest if not statement.strip().startswith("CREATE OR REPLACE TRIGGER ")] == []


def test_a_function_stands_in_one_file_and_fits_a_screen() -> None:
    found = [match for path in FILES for match in FUNCTION.finditer(path.read_text("utf-8"))]
    assert len(found) > 150
    assert [name for name, count in Counter(match[1] for match in found).items() if count > 1] == []
    assert {match[1]: match[0].count("\n") + 1 for match in found if match[0].count("\n") >= 80} == {}


def test_migrations_make_no_function_but_those_that_a_table_needs() -> None:
    """A constraint's function belongs to its table: another text would say something else of rows that are there.
    A migration makes only an empty body for a trigger's function, unless rows of the functions before it need the trigger."""
    made = [name for path in MIGRATIONS for name in re.findall(r"FUNCTION runyard\.(\w+)\(", path.read_text("utf-8"))]
    assert sorted(set(made)) == [
        "choose_default_agent",
        "choose_delivery_owner",
        "follow_accepts",
        "follow_run",
        "forget_runs",
        "run_is_sound",
    ]


def test_code_needs_the_schema_that_has_its_last_table_and_column() -> None:
    """A3: Code that started on an earlier schema would fail in the first statement that uses them."""
    adds = re.compile("^(CREATE TABLE|CREATE TYPE|ALTER TABLE .* ADD COLUMN)", re.MULTILINE)
    last = max(int(path.stem[:4]) for path in MIGRATIONS if adds.search(path.read_text("utf-8")))
    assert last <= OLDEST_SCHEMA


@pytest.mark.parametrize("package", ["postgres", "sql"])
def test_a_statement_says_what_it_answers(package: str) -> None:
    parts = re.split(r"^-- name: (\w+)\n", (PACKAGE.parent / package / "queries.sql").read_text("utf-8"), flags=re.MULTILINE)
    assert [name for name, part in zip(parts[1::2], parts[2::2], strict=True) if not re.match(r"-- [A-Z].*\n", part)] == []
    found = named_statements(f"runyard_backends.{package}")
    assert not [name for name, statement in found.items() if "--" in statement]


def test_each_statement_is_sent() -> None:
    """A statement of the SQL stores that no code names is dead."""
    code = "".join(path.read_text("utf-8") for path in (PACKAGE.parent / "sql").glob("*.py"))
    assert [name for name in named_statements("runyard_backends.sql") if f'"{name}"' not in code] == []


def test_both_databases_have_the_same_tables() -> None:
    """The migrations of SQLite and of MySQL have the same versions, tables and columns."""

    def tables(database: str) -> dict[str, list[str]]:
        text = "\n".join(migration.sql for migration in migrations(database))
        found = re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+) \((.*?)^\)", text, re.DOTALL | re.MULTILINE)
        return {name: re.findall(r"^    ([a-z_]+) +[A-Z]", body, re.MULTILINE) for name, body in found}

    assert tables("sqlite") == tables("mysql") != {}
    assert [each.version for each in migrations("sqlite")] == [each.version for each in migrations("mysql")]


def test_the_page_of_growth_says_what_bounds_each_table() -> None:
    tables = re.findall(r"^CREATE TABLE runyard\.(\w+)", (PACKAGE / "schema.sql").read_text("utf-8"), re.MULTILINE)
    rows = re.findall(r"^\| (`[^|]+) \|", (PACKAGE.parents[2] / "docs" / "growth.md").read_text("utf-8"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(tables)
