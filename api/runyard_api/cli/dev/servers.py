"""The servers of ``dev`` and ``demo``: private ones, or those that the environment names."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from runyard.errors import BackendUnavailableError

from .dev_file import LOCK, try_lock

SERVER_LOCKS: Final = "*/lock"
"""The files that the servers of a folder lock while they run."""
SERVER_END_SECONDS: Final = 5.0
"""Seconds to wait for the servers of a ``runyard dev`` that was killed. They end within five seconds after it."""


@contextmanager
def private_servers(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the URLs of Postgres and Redis. ``folder`` keeps their data; None keeps no data. Raises BackendUnavailableError."""
    try:
        from runyard_backends.embedded import EmbeddedServerError, servers
    except ImportError as error:
        raise BackendUnavailableError(
            f"{error}; install runyard[server], or set RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL"
        ) from None
    with ExitStack() as stack:
        try:
            found = stack.enter_context(servers(folder))
        except EmbeddedServerError as error:
            raise BackendUnavailableError(str(error)) from error
        yield found.postgres_url, found.redis_url


def forget(folder: Path) -> None:
    """Remove all data of the servers of ``folder``, also data outside the folder. The caller holds the lock of ``folder``.

    The lock's file stays: a second ``runyard dev`` would lock a new file beside the first one.
    """
    for lock in folder.glob(SERVER_LOCKS):
        _wait_for_end(lock)
    with suppress(ImportError):
        from runyard_backends.embedded.postgres import forget_cluster

        forget_cluster(folder / "postgres")
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def _wait_for_end(lock: Path) -> None:
    """Wait until no server holds ``lock``, at most SERVER_END_SECONDS."""
    deadline = time.monotonic() + SERVER_END_SECONDS
    with lock.open("rb") as opened:
        while not try_lock(opened.fileno()) and time.monotonic() < deadline:
            time.sleep(0.02)
