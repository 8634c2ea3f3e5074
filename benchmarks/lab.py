"""The servers of a benchmark. A benchmark creates databases on them and drops these databases at the end."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from benchmarks.board import Board

N = TypeVar("N", int, float)


@dataclass
class Lab:
    """Servers and a directory for files. ``quick``: whether measurements are short. ``token``: part of the database names."""

    postgres_url: str
    redis_url: str
    scratch: Path
    quick: bool = False
    token: str = field(default_factory=lambda: secrets.token_hex(3))
    _databases: dict[str, str] = field(default_factory=dict)

    async def database(self, name: str) -> str:
        """Return the URL of the database ``name``. Creates the database on first use."""
        if name not in self._databases:
            database = f"bench_{self.token}_{name}"
            connection = await asyncpg.connect(self.postgres_url)
            try:
                await connection.execute(f'CREATE DATABASE "{database}"')
            finally:
                await connection.close()
            self._databases[name] = database
        return urlunsplit(urlsplit(self.postgres_url)._replace(path=f"/{self._databases[name]}"))

    async def drop_databases(self) -> None:
        """Drop the databases that :meth:`database` created."""
        connection = await asyncpg.connect(self.postgres_url)
        try:
            for database in self._databases.values():
                await connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        finally:
            await connection.close()

    def board(self, slots: int) -> Board:
        """Make a board of ``slots`` slots."""
        return Board(self.scratch / f"{secrets.token_hex(4)}.board", slots)

    def scaled(self, full: N, quick: N) -> N:
        """Return ``full``, or ``quick`` in a quick run."""
        return quick if self.quick else full


@asynccontextmanager
async def open_lab(postgres_url: str, redis_url: str, *, quick: bool) -> AsyncIterator[Lab]:
    """Open a lab on these servers. Delete its databases and files when the block ends."""
    with tempfile.TemporaryDirectory(prefix="runyard-bench-") as scratch:
        lab = Lab(postgres_url, redis_url, Path(scratch), quick=quick)
        try:
            yield lab
        finally:
            await lab.drop_databases()
