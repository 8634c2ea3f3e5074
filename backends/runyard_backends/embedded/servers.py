"""Both embedded servers together. An environment variable for each of them can name a running server instead.

The caller chooses the directory of the data. ``runyard dev`` chooses FOLDER of ``runyard/support/dev_file.py``.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .postgres import EmbeddedPostgres
from .redis import EmbeddedRedis

POSTGRES_VARIABLE = "RUNYARD_POSTGRES_URL"
REDIS_VARIABLE = "RUNYARD_REDIS_URL"


@dataclass(frozen=True)
class Servers:
    """The URLs of the Postgres server and the Redis server."""

    postgres_url: str
    redis_url: str


@contextmanager
def servers(data_dir: Path | None = None, *, durable: bool = True) -> Iterator[Servers]:
    """Start the servers that RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL do not name, and stop them at the end.

    data_dir: the directory that keeps `postgres/` and `redis/` over several starts. If `data_dir` is None, the directories are
    temporary, and are removed at the end. durable: passed to EmbeddedPostgres. Raises EmbeddedServerError if a server cannot be
    found or started.
    """
    with ExitStack() as stack:
        postgres_url, redis_url = os.environ.get(POSTGRES_VARIABLE), os.environ.get(REDIS_VARIABLE)
        if not redis_url:
            redis_dir = data_dir / "redis" if data_dir else None
            redis_url = stack.enter_context(EmbeddedRedis(redis_dir, appendonly=data_dir is not None)).url
        if not postgres_url:
            postgres_dir = data_dir / "postgres" if data_dir else None
            postgres_url = stack.enter_context(EmbeddedPostgres(postgres_dir, durable=durable)).url
        yield Servers(postgres_url, redis_url)
