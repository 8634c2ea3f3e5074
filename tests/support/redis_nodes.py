"""Servers of Redis that fail over by themselves: a primary and its replica under three sentinels, and a cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from runyard_backends.embedded import EmbeddedRedis
from runyard_backends.embedded.process import free_port
from tests.support.certificates import Certificates
from tests.support.fleet import until

SERVICE: Final = "runyard"
SLOTS: Final = 16384
DOWN_MS: Final = 1000
"""Milliseconds without an answer after which a server counts as down."""


class RedisNode(EmbeddedRedis):
    """A server with a given password, so that one URL fits several servers. ``user``: a line of the configuration that makes
    another user. ``tls``: the server speaks TLS only. It is then the system's, because the server of the wheel has no TLS."""

    def __init__(self, given_password: str, *, user: str | None = None, tls: Certificates | None = None) -> None:
        super().__init__()
        self._given_password, self._other_user, self._tls = given_password, user, tls

    @property
    def url(self) -> str:
        if self._tls is None:
            return super().url
        return f"rediss://:{self.password}@127.0.0.1:{self.port}/0?{self._tls.redis_parameters}"

    def _prepare(self) -> None:
        (self.home / "password").write_text(self._given_password)
        super()._prepare()
        if self._tls is not None:
            self._binary = Path(shutil.which("redis-server") or "redis-server")

    def _settings(self) -> dict[str, object]:
        settings = super()._settings() | {"masterauth": self._given_password, "repl-diskless-sync-delay": 0}
        if self._other_user is not None:
            settings["user"] = self._other_user
        return settings | self._tls_settings()

    def _tls_settings(self) -> dict[str, object]:
        if self._tls is None:
            return {}
        return {
            "port": 0,
            "tls-port": self.port,
            "tls-ca-cert-file": self._tls.authority,
            "tls-cert-file": self._tls.server,
            "tls-key-file": self._tls.server,
            "tls-auth-clients": "yes",
            "tls-replication": "yes",
        }

    def _is_ready(self) -> bool:
        if self._tls is None:
            return super()._is_ready()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as plain:
                context = self._tls.client_context()
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                    connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                    return connection.makefile("rb").read(len(b"+OK\r\n+PONG\r\n")) == b"+OK\r\n+PONG\r\n"
        except OSError:
            return False

    def connect(self) -> Redis:
        """Return a client of this server alone."""
        return Redis.from_url(self.url)


class SentinelNode(RedisNode):
    """A sentinel that watches ``primary``. Its password differs from that of the servers."""

    def __init__(self, given_password: str, primary: RedisNode, tls: Certificates | None = None) -> None:
        super().__init__(given_password, tls=tls)
        self._primary = primary

    def _command(self) -> tuple[list[str], Path]:
        config = self.home / "sentinel.conf"
        if not config.exists():  # the sentinel keeps in it what it knows
            lines = (
                "bind 127.0.0.1",
                *(f"{name} {value}" for name, value in ({"port": self.port} | self._tls_settings()).items()),
                f"requirepass {self.password}",
                f"sentinel sentinel-pass {self.password}",
                f"sentinel monitor {SERVICE} 127.0.0.1 {self._primary.port} 2",
                f"sentinel auth-pass {SERVICE} {self._primary.password}",
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS}",
                f"sentinel failover-timeout {SERVICE} 5000",
            )
            with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write("\n".join(lines) + "\n")
        return [str(self._binary), str(config), "--sentinel"], self.home


class SentinelRedis:
    """Use as ``async with SentinelRedis() as redis``. ``nodes``: the two servers, whichever of them is the primary. ``url``:
    the URL for runyard. The sentinels promote the replica when the primary does not answer for DOWN_MS. ``user``, ``tls``: see
    RedisNode."""

    def __init__(self, *, user: str | None = None, tls: Certificates | None = None) -> None:
        self.nodes = [RedisNode("of-the-servers", user=user, tls=tls) for _ in range(2)]
        self.sentinels = [SentinelNode("of-the-sentinels", self.nodes[0], tls) for _ in range(3)]
        self._tls = tls

    @property
    def url(self) -> str:
        return self.url_for(f":{self.nodes[0].password}")

    def url_for(self, login: str) -> str:
        """Return the URL with another login."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        scheme, parameters = ("redis", "") if self._tls is None else ("rediss", f"&{self._tls.redis_parameters}")
        own = f"sentinel_password={self.sentinels[0].password}"
        return f"{scheme}+sentinel://{login}@{hosts}/{SERVICE}/0?{own}{parameters}"

    async def __aenter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            async with self.nodes[1].connect() as redis:
                await redis.replicaof("127.0.0.1", str(self.nodes[0].port))
            for sentinel in self.sentinels:
                sentinel.start()
            await until(self.is_whole)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in (*self.sentinels, *self.nodes):
            node.stop()

    async def primary(self) -> RedisNode:
        """Return the server that the first sentinel names as the primary."""
        async with self.sentinels[0].connect() as sentinel:
            _, port = await sentinel.sentinel_get_master_addr_by_name(SERVICE)
        return next(node for node in self.nodes if node.port == int(port))

    async def is_whole(self) -> bool:
        """Return True if each sentinel sees the others, and both servers with the replica in sync."""
        for node in self.sentinels:
            async with node.connect() as sentinel:
                state = await sentinel.sentinel_master(SERVICE)
                replicas = await sentinel.sentinel_slaves(SERVICE)
            healthy = [one for one in replicas if one["flags"] == "slave" and one["master-link-status"] == "ok"]
            if state["flags"] != "master" or int(state["num-other-sentinels"]) != 2 or len(healthy) != 1:
                return False
        return True

    async def primaries(self) -> list[RedisNode]:
        """Return the primary alone."""
        return [await self.primary()]

    async def lose(self, primary: RedisNode, *, frozen: bool = False) -> None:
        """Kill or stop the primary, and wait until the sentinels have promoted its replica."""
        await asyncio.to_thread(primary.pause if frozen else primary.kill)
        [other] = [node for node in self.nodes if node is not primary]

        async def promoted() -> bool:
            try:
                async with other.connect() as redis:
                    return await self.primary() is other and (await redis.role())[0] == b"master"
            except RedisError:
                return False

        await until(promoted, 30)


class ClusterNode(RedisNode):
    """A server of a cluster. ``node_id``: its id in the cluster, once it was asked for it."""

    def __init__(self, given_password: str) -> None:
        super().__init__(given_password)
        self.node_id = ""
        self._bus_port = free_port()

    def _settings(self) -> dict[str, object]:
        own = {
            "cluster-enabled": "yes",
            "cluster-port": self._bus_port,
            "cluster-node-timeout": DOWN_MS,
            "cluster-require-full-coverage": "no",
        }
        return super()._settings() | own

    def _launch(self) -> bool:
        if super()._launch():
            return True
        if not self.node_id:  # another process may have taken the port of the bus
            self._bus_port = free_port()
        return False

    async def join(self, other: ClusterNode) -> None:
        """Join the cluster of ``other``."""
        async with self.connect() as redis:
            await redis.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other._bus_port)

    async def view(self) -> dict[str, tuple[str, str, str]]:
        """Return what the server knows of each server: its flags, the id of its primary, and the state of the link, by id."""
        async with self.connect() as redis:
            lines = (await redis.execute_command("CLUSTER", "NODES")).decode().splitlines()
        fields = [line.split() for line in lines]
        return {one[0]: (one[2].removeprefix("myself,"), one[3], one[7]) for one in fields}


class ClusterRedis:
    """Use as ``async with ClusterRedis() as redis``. ``nodes``: three primaries with a third of the slots each, then a replica
    of each; whichever of them are primaries later. ``url``: the URL for runyard, with the first three."""

    def __init__(self) -> None:
        self.nodes = [ClusterNode("of-the-cluster") for _ in range(6)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:3])
        return f"redis+cluster://:{self.nodes[0].password}@{hosts}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def start(self) -> None:
        """Start the servers, and make them a cluster."""
        try:
            for node in self.nodes:
                node.start()
            await self._found()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the servers."""
        for node in self.nodes:
            node.stop()

    async def _found(self) -> None:
        third = SLOTS // 3
        for n, node in enumerate(self.nodes):
            async with node.connect() as redis:
                node.node_id = (await redis.execute_command("CLUSTER", "MYID")).decode()
                await redis.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
                if n < 3:
                    last = SLOTS - 1 if n == 2 else (n + 1) * third - 1
                    await redis.execute_command("CLUSTER", "ADDSLOTSRANGE", n * third, last)
        for node in self.nodes[1:]:
            await node.join(self.nodes[0])
        await until(self._all_know_all, 30)
        for primary, replica in zip(self.nodes[:3], self.nodes[3:], strict=True):
            async with replica.connect() as redis:
                await redis.execute_command("CLUSTER", "REPLICATE", primary.node_id)
        await until(self.is_whole, 30)

    async def _all_know_all(self) -> bool:
        views = await asyncio.gather(*(node.view() for node in self.nodes))
        return all(len(view) == len(self.nodes) for view in views)

    async def is_whole(self) -> bool:
        """Return True if each server sees three primaries with slots, and a replica in sync of each."""
        for node in self.nodes:
            view = await node.view()
            primaries = {id_ for id_, (flags, _, _) in view.items() if flags == "master"}
            followed = {primary for flags, primary, _ in view.values() if flags == "slave"}
            async with node.connect() as redis:
                state = await redis.execute_command("CLUSTER", "INFO")
                role = await redis.role()
            linked = role[0] == b"master" or role[3] == b"connected"
            if len(primaries) != 3 or followed != primaries or b"cluster_state:ok" not in state or not linked:
                return False
        return True

    async def primary_of(self, key: str) -> RedisNode:
        """Return the server that holds the slot of ``key``, as a live server sees it."""
        return await self._holder(key_slot(key.encode()))

    async def _holder(self, slot: int) -> RedisNode:
        for node in self.nodes:
            try:
                async with node.connect() as redis:
                    ranges = await redis.execute_command("CLUSTER", "SLOTS")
            except RedisError:
                continue
            port = next(one[2][1] for one in ranges if one[0] <= slot <= one[1])
            return next(found for found in self.nodes if found.port == port)
        raise AssertionError("no server of the cluster answers")

    async def primaries(self) -> list[RedisNode]:
        """Return the servers that hold slots."""
        return [await self._holder(slot) for slot in (0, SLOTS // 2, SLOTS - 1)]

    async def lose(self, primary: RedisNode) -> None:
        """Kill a primary, and wait until its replica holds its slots."""
        [slot] = [slot for slot in (0, SLOTS // 2, SLOTS - 1) if await self._holder(slot) is primary]
        await asyncio.to_thread(primary.kill)

        async def promoted() -> bool:
            return await self._holder(slot) is not primary

        await until(promoted, 30)
