"""The servers of ``dev`` and ``demo``: private ones, or those that the environment names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from runyard.errors import BackendUnavailableError


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
    """Remove ``folder`` and all data of its servers, also data outside the folder."""
    with suppress(ImportError):
        from runyard_backends.embedded.postgres import forget_cluster

        forget_cluster(folder / "postgres")
    shutil.rmtree(folder)
