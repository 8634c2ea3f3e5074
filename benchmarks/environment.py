"""The conditions under which a figure was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping

import asyncpg
from redis.asyncio import Redis

from benchmarks.lab import Lab

POSTGRES_SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_connections")
PACKAGES = ("runyard", "arq", "saq", "dbos", "cubeloop", "langgraph-checkpoint-postgres", "redis", "asyncpg", "psycopg")


async def describe(lab: Lab) -> dict[str, str]:
    """Return the conditions as name → value. They are printed above the results and stored with them."""
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "load average": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        **await _postgres(lab.postgres_url),
        **await _redis(lab.redis_url),
        "packages": ", ".join(f"{name} {version}" for name, version in _versions().items()),
    }


async def _postgres(url: str) -> Mapping[str, str]:
    connection = await asyncpg.connect(url)
    try:
        settings = {name: await connection.fetchval(f"SHOW {name}") for name in POSTGRES_SETTINGS}
        return {"postgres": await connection.fetchval("SHOW server_version"), **settings}
    finally:
        await connection.close()


async def _redis(url: str) -> Mapping[str, str]:
    async with Redis.from_url(url) as redis:
        server = await redis.info("server")
        persistence = await redis.info("persistence")
    name = server.get("server_name", "redis")
    version = server.get("valkey_version", server["redis_version"])
    return {"redis": f"{name} {version}, appendonly {'yes' if persistence['aof_enabled'] else 'no'}"}


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions
