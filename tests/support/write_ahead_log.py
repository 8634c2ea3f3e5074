"""What a private Postgres has written into its write-ahead log: records by type, and their bytes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

import asyncpg

from runyard_backends.embedded.binaries import find_postgres

_LINE = re.compile(r"^(\w+/[\w+ ]+?)\s+(\d+) \(\s*[\d.]+\)\s+(\d+) \(", re.MULTILINE)
BACKGROUND = ("XLOG/", "Standby/", "CLOG/", "RelMap/")
"""Records that the server writes by itself, such as those of checkpoints."""
ENTRIES = ("Btree/INSERT_LEAF", "Btree/INSERT_POST", "Btree/SPLIT_L", "Btree/SPLIT_R")
"""Records that add one entry to an index."""


@dataclass(frozen=True, slots=True)
class Written:
    """The records between two places of the log. ``counts``: type → number. ``bytes``: without the images of whole pages."""

    counts: Mapping[str, int]
    bytes: int

    @property
    def commits(self) -> int:
        return self.counts.get("Transaction/COMMIT", 0)

    @property
    def entries(self) -> int:
        """The number of new entries of indexes."""
        return sum(self.counts.get(name, 0) for name in ENTRIES)


async def place(connection: asyncpg.Connection) -> str:
    """Return the end of the log, and write the log to its file up to this place."""
    end: str = await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    await connection.execute("SELECT pg_switch_wal()")
    return end


async def written(connection: asyncpg.Connection, start: str, end: str) -> Written:
    """Return the records from ``start`` to ``end``. The role must be a superuser, and the server on this machine."""
    directory = await connection.fetchval("SHOW data_directory")
    dump = find_postgres().bin / "pg_waldump"
    command = [str(dump), "--stats=record", "-p", f"{directory}/pg_wal", "-s", start, "-e", end]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said = (await process.communicate())[0].decode()
    found = {name: (int(count), int(size)) for name, count, size in _LINE.findall(said) if not name.startswith(BACKGROUND)}
    assert found, said
    return Written({name: count for name, (count, _) in found.items()}, sum(size for _, size in found.values()))
