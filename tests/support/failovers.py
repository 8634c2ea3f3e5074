"""Pairs of servers that change roles: a primary and its replica. The old primary becomes the replica of the new one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import asyncpg

from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.embedded.binaries import PostgresInstall, find_postgres
from tests.support.fleet import until
from tests.support.redis_nodes import RedisNode


class RedisPair:
    """Use as ``async with RedisPair() as pair``. ``pair.primary`` takes writes; ``pair.replica`` has the same password."""

    def __init__(self) -> None:
        self.primary, self.replica = RedisNode("of-both"), RedisNode("of-both")

    async def __aenter__(self) -> Self:
        self.primary.start()
        self.replica.start()
        await self._follow()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.replica.stop()
        self.primary.stop()

    async def fail_over(self) -> None:
        """Promote the replica. The old primary becomes its replica and closes no connection."""
        self.primary, self.replica = self.replica, self.primary
        async with self.primary.connect() as redis:
            await redis.replicaof("NO", "ONE")
        await self._follow()

    async def _follow(self) -> None:
        async with self.replica.connect() as redis:
            await redis.replicaof("127.0.0.1", str(self.primary.port))

    async def in_sync(self) -> None:
        """Wait until the replica has copied all data."""
        async with self.replica.connect() as redis:

            async def copied() -> bool:
                return (await redis.info("replication"))["master_link_status"] == "up"

            await until(copied)


class _Node(EmbeddedPostgres):
    """A server that can follow another one."""

    def __init__(self, source: _Node | None = None, *, durable: bool = False, max_connections: int = 200) -> None:
        super().__init__(durable=durable, max_connections=max_connections)
        self._source = source

    def _initdb(self, install: PostgresInstall) -> None:
        if self._source is None:
            super()._initdb(install)
            return
        (self.home / "password").write_text(self._source.password)
        new = self._area / "new"
        program = find_postgres().bin / "pg_basebackup"
        command = [program, "-d", self._source.url, "-D", new, "-X", "stream", "-c", "fast", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True)
        for path in (new, *new.rglob("*")):
            self._own(path)
        new.rename(self._data)
        self.follow(self._source)

    @property
    def _data(self) -> Path:
        return self._area / "data"

    def _own(self, path: Path) -> None:
        uid, gid = self._user()
        if uid is not None and gid is not None:
            os.chown(path, uid, gid)

    def follow(self, primary: _Node) -> None:
        """Make this server a standby of ``primary`` from its next start on."""
        parts = urlsplit(primary.url)
        login = f"host={parts.hostname} port={parts.port} user={parts.username} password={primary.password}"
        with (self._data / "postgresql.auto.conf").open("a") as out:
            out.write(f"primary_conninfo = '{login}'\nwal_retrieve_retry_interval = 100\n")
        (self._data / "standby.signal").touch()
        self._own(self._data / "standby.signal")

    def shut_down(self) -> None:
        """Shut the server down cleanly, so that a standby has every commit. The data stays for ``start``."""
        self._end(f"stop {int(self.graceful)}")


class PostgresPair:
    """Use as ``with PostgresPair() as pair``. ``pair.standby`` streams from ``pair.primary``; one password fits both."""

    def __init__(self, *, durable: bool = False, max_connections: int = 200) -> None:
        settings = {"durable": durable, "max_connections": max_connections}
        self.primary = _Node(**settings)  # type: ignore[arg-type]
        self.standby = _Node(self.primary, **settings)  # type: ignore[arg-type]

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            self.standby.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.standby.stop()
        self.primary.stop()

    async def in_sync(self) -> None:
        """Wait until the standby streams. It then has every commit after a shutdown of the primary."""
        connection = await asyncpg.connect(self.primary.url)
        try:
            await until(lambda: connection.fetchval("SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'"))
        finally:
            await connection.close()

    async def require_standby(self) -> None:
        """Let the primary acknowledge a commit only after the standby has stored it."""
        connection = await asyncpg.connect(self.primary.url)
        try:
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await connection.execute("SELECT pg_reload_conf()")
            await until(lambda: connection.fetchval("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
        finally:
            await connection.close()

    async def promote(self) -> None:
        """Promote the standby. The old primary has ended."""
        self.primary, self.standby = self.standby, self.primary
        connection = await asyncpg.connect(self.primary.url)
        try:
            assert await connection.fetchval("SELECT pg_promote()")
        finally:
            await connection.close()

    def take_back(self) -> None:
        """Start the old primary as the standby of the new one."""
        self.standby.follow(self.primary)
        self.standby.start()

    async def sessions(self, server: EmbeddedPostgres) -> int:
        """Return the number of runyard's connections to ``server``."""
        connection = await asyncpg.connect(server.url)
        try:
            found: int = await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^runyard'")
            return found
        finally:
            await connection.close()


def several_hosts(*servers: EmbeddedPostgres) -> str:
    """Return a URL with the hosts of all ``servers``, in this order."""
    parts = urlsplit(servers[0].url)
    login, _, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}@" + ",".join(f"127.0.0.1:{server.port}" for server in servers)).geturl()


def through(url: str, port: int) -> str:
    """Return ``url`` with another port of this machine, for example that of a proxy."""
    parts = urlsplit(url)
    login, _, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
