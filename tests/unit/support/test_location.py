"""Which deployment a client and a command find if the caller names none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runyard import Client
from runyard.errors import InvalidInputError
from runyard.support import dev_file
from runyard.support.location import Location, locate
from runyard.support.settings import Settings
from runyard_api.http.settings import ApiSettings

PG, REDIS = "postgresql://h/db", "redis://h"
OF_BACKENDS = {
    *(("postgresql", "min_pool_size"), ("mysql", "min_pool_size"), ("mariadb", "min_pool_size")),
    *(("sqlite", "busy_seconds"), ("http", "patience"), ("http", "timeout")),
}
"""Scheme and option of a backend that has it."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("RUNYARD_POSTGRES_URL", "RUNYARD_REDIS_URL", "RUNYARD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def env_file(folder: Path, text: str) -> None:
    (folder / ".env").write_text(text)


def test_the_environment_comes_before_dev_and_dev_before_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_file(folder, f"RUNYARD_POSTGRES_URL={PG}/file\nRUNYARD_REDIS_URL={REDIS}/1\n")
    assert locate() == Location(f"{PG}/file", f"{REDIS}/1", None, ".env")
    private = folder / dev_file.FOLDER
    private.mkdir(mode=0o700)
    with dev_file.locked(private):
        dev_file.write(private, dev_file.Deployment(1, f"{PG}/dev", f"{REDIS}/2", "app:app"))
        assert locate() == Location(f"{PG}/dev", f"{REDIS}/2", None, "runyard dev")
        monkeypatch.setenv("RUNYARD_POSTGRES_URL", f"{PG}/env")
        monkeypatch.setenv("RUNYARD_REDIS_URL", f"{REDIS}/3")
        assert locate() == Location(f"{PG}/env", f"{REDIS}/3", None, "environment")
        assert locate("memory://x") == Location("memory://x", f"{REDIS}/3")
        assert locate(PG, redis=REDIS) == Location(PG, REDIS)


def test_an_api_key_goes_to_the_http_api_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env_file(folder, "RUNYARD_POSTGRES_URL=https://api\nRUNYARD_API_KEY=secret\n")
    assert locate() == Location("https://api", None, "secret", ".env")
    assert "secret" not in repr(locate())
    monkeypatch.setenv("RUNYARD_API_KEY", "mine")
    assert locate("https://other", redis=REDIS) == Location("https://other", None, "mine")
    assert locate(PG, redis=REDIS).options == {"redis": REDIS}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="start `runyard dev` in this folder"):
        locate()
    with pytest.raises(InvalidInputError, match="set RUNYARD_REDIS_URL"):
        locate(PG)


async def test_a_client_finds_the_deployment_and_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", "memory://found")
    async with Client.connect() as client, Client.connect("memory://found") as same:
        await client.enqueue("t", "hi", "r")
        assert (await same.run("t", "r")).run_id == "r"
    with pytest.raises(InvalidInputError, match="postgresql:// has no option api_key"):
        await Client.connect(PG, api_key="k")
    with pytest.raises(InvalidInputError, match="memory:// has no option max_pool_size"):
        await Client.connect("memory://found", max_pool_size=1)
    with pytest.raises(AttributeError, match="is not connected"):
        Client.connect("memory://found").enqueue("t", "hi")  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", [PG, "sqlite:///runyard.db", "mysql://u:p@h/db", "mariadb://u:p@h/db", "memory://", "http://h"])
@pytest.mark.parametrize("option", ["nonsense", "patience", "busy_seconds", "min_pool_size", "min_size", "timeout"])
async def test_an_option_that_the_backend_lacks_is_refused(url: str, option: str) -> None:
    """A misspelt option, one of another backend, and one of a driver are refused before anything is connected."""
    if (url.split(":")[0], option) in OF_BACKENDS:
        return
    options: Any = {option: 1}
    with pytest.raises(InvalidInputError, match=f"has no option {option}") as refused:
        await Client.connect(url, **options)
    assert refused.value.details["field"] == option


def test_a_file_of_variables_gets_nothing_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A1: a folder that somebody else filled does not get the key or the Redis of the user."""
    monkeypatch.setenv("RUNYARD_API_KEY", "mine")
    monkeypatch.setenv("RUNYARD_REDIS_URL", REDIS)
    env_file(folder, "RUNYARD_POSTGRES_URL=https://other/${RUNYARD_API_KEY}\n")
    assert locate() == Location("https://other/${RUNYARD_API_KEY}", None, None, ".env")
    env_file(folder, f"RUNYARD_POSTGRES_URL={PG}\n")
    with pytest.raises(InvalidInputError, match="set RUNYARD_REDIS_URL"):
        locate()


def test_a_file_of_variables_that_others_can_change_is_refused(folder: Path) -> None:
    env_file(folder, "RUNYARD_POSTGRES_URL=https://api\n")
    (folder / ".env").chmod(0o666)
    with pytest.raises(InvalidInputError, match="can be changed by others and is not used"):
        locate()


@pytest.mark.parametrize("content", [b"", b"OTHER=1\n", b"OTHER=\xff\xfe\n", b"RUNYARD_REDIS_URL=redis://h\n"])
def test_a_file_of_variables_without_a_deployment_is_not_read_further(folder: Path, content: bytes) -> None:
    """The file of another program does not stop a command, whoever may change it and whatever is in it."""
    (folder / ".env").write_bytes(content)
    (folder / ".env").chmod(0o666)
    with pytest.raises(InvalidInputError, match="no deployment to connect to"):
        locate()


def test_settings_come_from_a_file_that_can_be_read(folder: Path) -> None:
    """The settings of a process read the same file. The environment has precedence."""
    (folder / ".env").write_bytes(b"OTHER=\xff\n")
    assert Settings().slots == Settings.model_fields["slots"].default
    env_file(folder, "runyard_slots=7\nRUNYARD_API_PORT=99\nOTHER=1\n")
    assert (Settings().slots, Settings(slots=8).slots, ApiSettings().port) == (7, 8, 99)
    (folder / ".env").write_bytes(b"RUNYARD_SLOTS=7\nOTHER=\xff\n")
    for read in (Settings, ApiSettings):
        with pytest.raises(InvalidInputError, match=r"\.env is not UTF-8"):
            read()


def test_settings_may_name_another_file_or_none(folder: Path) -> None:
    env_file(folder, "RUNYARD_SLOTS=7\n")
    (folder / "other.env").write_text("RUNYARD_SLOTS=9\nRUNYARD_API_PORT=99\n")
    default = Settings.model_fields["slots"].default
    assert (Settings(_env_file=None).slots, Settings(_env_file="other.env").slots, Settings().slots) == (default, 9, 7)
    assert (ApiSettings(_env_file=folder / "other.env").port, Settings(_env_file=".env").slots) == (99, 7)
    (folder / ".env").write_bytes(b"RUNYARD_SLOTS=7\nOTHER=\xff\n")
    assert (Settings(_env_file=None).slots, Settings(_env_file="other.env").slots) == (default, 9)


def test_a_file_of_variables_belongs_to_the_user_or_to_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have a file of root. A file of anybody else could send prompts to another server."""
    env_file(folder, "RUNYARD_POSTGRES_URL=https://api\n")
    real = os.fstat

    def owned_by(owner: int) -> None:
        def fstat(opened: int) -> os.stat_result:
            fields = list(real(opened))
            fields[4] = owner
            return os.stat_result(fields)

        monkeypatch.setattr(os, "fstat", fstat)

    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for owner in (0, 54321):
        owned_by(owner)
        assert locate().url == "https://api"
    owned_by(54322)
    with pytest.raises(InvalidInputError, match=r"belongs to another user \(id 54322\)"):
        locate()


def test_a_file_of_variables_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").write_bytes(b"OTHER=\xff\nRUNYARD_POSTGRES_URL=https://api\n")
    with pytest.raises(InvalidInputError, match=r"\.env is not UTF-8"):
        locate()

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(InvalidInputError, match=r"\.env cannot be read \(Permission denied\)"):
        locate()
