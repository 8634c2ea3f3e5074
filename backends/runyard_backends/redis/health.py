"""Facts about a Redis server for an operator."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runyard.errors import RunyardError

from .connection import RedisServer
from .servers import redis_servers


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Facts about a Redis server. ``server``: name and version of the server. ``role``: the role in the reply of INFO,
    ``master`` or ``slave``. ``refuses_writes``: the reason why the server refuses writes, or None. ``maxmemory``: maximum
    bytes of memory, 0 for no maximum. ``eviction``: the name of the policy by which Redis removes keys at this maximum.
    ``appendonly``: True if Redis appends every write to a file. ``clock_ahead``: seconds by which the server's clock is ahead
    of this machine's clock. ``round_trip``: seconds for reading the server's clock. ``clock_ahead`` can be wrong by up to half
    of ``round_trip``."""

    server: str
    role: str
    refuses_writes: str | None
    maxmemory: int
    eviction: str
    appendonly: bool
    clock_ahead: float
    round_trip: float


async def diagnose(url: str) -> list[RedisFacts]:
    """Read the facts of the server at ``url``. If ``url`` names a cluster, read the facts of each server that takes writes.
    Raises BackendUnavailableError, InvalidInputError."""
    servers = redis_servers(url, name="runyard-doctor")
    try:
        return [await _facts(server) for server in await servers.primaries()]
    finally:
        await servers.close()


async def _facts(server: RedisServer) -> RedisFacts:
    info = _parse(await server.command("INFO"))
    asked, began = time.time(), time.monotonic()
    seconds, microseconds = await server.command("TIME")
    took = time.monotonic() - began
    refuses_writes = None
    try:
        await server.ping()
    except RunyardError as error:
        refuses_writes = error.message
    valkey = info.get("valkey_version")
    return RedisFacts(
        server=f"Valkey {valkey}" if valkey else f"Redis {info.get('redis_version', '?')}",
        role=info.get("role", "?"),
        refuses_writes=refuses_writes,
        maxmemory=int(info.get("maxmemory", "0")),
        eviction=info.get("maxmemory_policy", "?"),
        appendonly=info.get("aof_enabled") == "1",
        clock_ahead=int(seconds) + int(microseconds) / 1e6 - asked - took / 2,
        round_trip=took,
    )


def _parse(reply: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in reply.decode().splitlines() if not line.startswith("#"))
    return {name: value for name, colon, value in lines if colon}
