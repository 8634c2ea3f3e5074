"""How a worker starts if a server does not answer, or refuses the login of its URL."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from uuid_utils.compat import uuid7

from runyard.errors import BackendUnavailableError, LoginRefusedError
from runyard.support import backend_urls
from runyard.support.settings import Settings
from runyard_api.cli import exit_codes
from runyard_api.cli.exit_codes import Exit
from runyard_api.worker import process
from tests.support.fleet import free_port, until


async def start(postgres: str, redis: str) -> None:
    connect, _ = process.connectors(Settings(postgres_url=postgres, redis_url=redis))
    backend = await process.open_backend(connect)
    await backend.close()


def changed(url: str, path: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=path))


async def test_a_worker_with_a_wrong_database_or_user_ends_at_once(postgres_url: str, redis_url: str) -> None:
    nobody = urlsplit(postgres_url)
    wrong = nobody._replace(netloc=f"nobody:wrong@{nobody.netloc.rpartition('@')[2]}")
    for url, word in ((changed(postgres_url, "/missing"), "missing"), (urlunsplit(wrong), "nobody")):
        with pytest.raises(LoginRefusedError, match=word) as refused:
            await start(url, redis_url)
        assert exit_codes.of_error(refused.value) is Exit.USAGE


async def test_a_worker_with_a_wrong_password_or_database_of_redis_ends_at_once(postgres_url: str, redis_url: str) -> None:
    login = urlsplit(redis_url)
    password = urlunsplit(login._replace(netloc=f":wrong@{login.netloc.rpartition('@')[2]}"))
    for url in (password, changed(redis_url, "/99999")):
        with pytest.raises(LoginRefusedError, match="Redis refuses the user, the password or the database"):
            await start(postgres_url, url)


async def test_a_worker_waits_for_redis_and_then_ends(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "CONNECT_SECONDS", 0.3)
    with pytest.raises(BackendUnavailableError, match="Redis is unreachable") as absent:
        await start(postgres_url, f"redis://127.0.0.1:{free_port()}")
    assert exit_codes.of_error(absent.value) is Exit.UNAVAILABLE
    said = capsys.readouterr()
    assert (said.out + said.err).count("server_unavailable") == 1


async def test_a_process_that_was_connected_waits_for_its_access(postgres_url: str) -> None:
    """A login that is refused to a running process is an outage, which its calls report and which ends by itself."""
    role = f"guest_{uuid7().hex}"
    login = urlsplit(postgres_url)
    owner = await asyncpg.connect(postgres_url)
    try:
        await owner.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'word'")
        guest = login._replace(netloc=f"{role}:word@{login.netloc.rpartition('@')[2]}")
        backend = await backend_urls.connect(urlunsplit(guest))
        try:
            await backend.check()
            await owner.execute(f"ALTER ROLE {role} NOLOGIN")
            await owner.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1", role)

            async def refused() -> bool:
                try:
                    await backend.check()
                except BackendUnavailableError as error:
                    return isinstance(error, LoginRefusedError)
                raise AssertionError("a process without access reached the database")

            async def admitted() -> bool:
                with suppress(BackendUnavailableError):
                    await backend.check()
                    return True
                return False

            await until(refused)
            await owner.execute(f"ALTER ROLE {role} LOGIN")
            await until(admitted)
        finally:
            await backend.close()
    finally:
        await owner.execute(f"DROP ROLE IF EXISTS {role}")
        await owner.close()
