"""`runyard migrate` on SQLite and MariaDB."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

import runyard_backends.sql.migrate
from runyard.errors import SchemaMismatch
from runyard_api.cli.main import app
from tests.support.mariadb import PrivateMariaDB


@pytest.fixture(params=["sqlite", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    server: PrivateMariaDB = request.getfixturevalue("mariadb_server")
    return server.url(asyncio.run(server.create()))


def test_migrate_makes_the_tables_once(url: str) -> None:
    first, second = (CliRunner().invoke(app, ["--url", url, "migrate"], catch_exceptions=False) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert "from version 0 to 1" in first.output and "up to date, at version 1" in second.output


@pytest.mark.parametrize("option", ["--check", "--plan"])
def test_a_migrated_schema_lacks_nothing(url: str, option: str) -> None:
    before, _, after = (CliRunner().invoke(app, ["--url", url, "migrate", *given]) for given in ([option], [], [option]))
    assert isinstance(before.exception, SchemaMismatch) == (option == "--check") and "it lacks" in before.output
    assert after.exit_code == 0 and "up to date, at version 1" in after.output


def test_a_check_refuses_a_schema_that_excludes_this_code(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """U1"""
    CliRunner().invoke(app, ["--url", url, "migrate"], catch_exceptions=False)
    monkeypatch.setattr(runyard_backends.sql.migrate, "CODE_VERSION", 0)
    refused = CliRunner().invoke(app, ["--url", url, "migrate", "--check"])
    assert isinstance(refused.exception, SchemaMismatch) and "upgrade runyard" in str(refused.exception)
