"""The servers of ``dev`` and ``demo``: private servers, or the servers that the environment names."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import typer

from runyard.errors import BackendUnavailableError, InvalidInputError
from runyard.support import location
from runyard.support.dev_file import LOCK, try_lock

from ..view.output import is_terminal, without_password

SERVER_LOCKS: Final = "*/lock"
"""The files that the servers of a folder keep locked while they run."""
IN_PROCESS: Final = ("memory", "fakeredis")
"""URL schemes of servers inside the process."""
SERVER_END_SECONDS: Final = 5.0
"""Seconds to wait for the end of servers whose ``runyard dev`` was killed. Such servers end within five seconds after the
command."""


@contextmanager
def private_servers(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the URLs of Postgres and Redis. ``folder``: the folder that keeps their data, or None to keep no data. Raises
    BackendUnavailableError."""
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


def named_servers() -> dict[str, str]:
    """Return the URLs of the servers that the environment names, by variable."""
    return {name: url for name in (location.URL, location.REDIS) if (url := os.environ.get(name))}


def check_servers(*, configured: bool = False) -> None:
    """If the servers are on other machines, ask the user first. Raises InvalidInputError if the answer is no, or if there is no
    terminal.

    ``configured``: True if the user has already agreed with the option ``--configured``.
    """
    elsewhere = [f"{name}={without_password(url)}" for name, url in named_servers().items() if not is_local(url)]
    if not elsewhere or configured:
        return
    words = ", ".join(elsewhere)
    if is_terminal(sys.stdin) and typer.confirm(f"{words}: migrate these servers and serve their runs with this app?"):
        return
    raise InvalidInputError(
        f"{words} names a server on another machine. `runyard dev` migrates the schema of a named server and serves its runs. "
        "Unset the variable, or agree with `runyard dev --configured`"
    )


def is_local(url: str) -> bool:
    """Return True if every host of ``url`` is this machine: a loopback address, ``localhost`` or a socket.

    If a URL of Postgres has no host, PGHOST names the host. A URL with a service file is not local, because the file may name
    any host.
    """
    parts = urlsplit(url)
    if parts.scheme in IN_PROCESS:
        return True
    query = dict(parse_qsl(parts.query))
    if "service" in query:
        return False
    named = [part for part in (*parts.netloc.rpartition("@")[2].split(","), *query.get("host", "").split(",")) if part]
    if not named and parts.scheme.startswith("postgres"):
        named = [part for part in os.environ.get("PGHOST", "").split(",") if part]
    return all(_is_loopback(urlsplit(f"//{part}").hostname or "") for part in named if not part.startswith("/"))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def forget(folder: Path) -> None:
    """Remove all data of the servers of ``folder``, also data outside the folder. The caller must hold the lock of ``folder``.

    Keep the lock file. Without it, a second ``runyard dev`` could make and lock a new file while the caller still holds the
    lock.
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
