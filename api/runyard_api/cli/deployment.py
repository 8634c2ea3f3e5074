"""The deployment that a command connects to, and the event loop of the command.

The scheme of the URL selects the backend, for example Postgres or the HTTP API (``runyard.support.backend_urls``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import typer

from runyard.client.client import Client, Connecting
from runyard.errors import InvalidInputError
from runyard.ports.results import Page

from .dev import dev_file

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """The root options."""

    url: str | None = None
    redis: str | None = None
    tenant: str = ""

    def resolve(self) -> tuple[str, str | None]:
        """Return the URLs of Postgres and Redis: from an option, the environment, or the ``runyard dev`` of this folder.

        Raises InvalidInputError if no deployment is named, or if Postgres is named without Redis.
        """
        if self.url is not None:
            if self.redis is None and self.url.startswith("postgres"):
                raise InvalidInputError("Postgres is named but Redis is not: set RUNYARD_REDIS_URL or give --redis")
            return self.url, self.redis
        found = dev_file.find()
        if found is None:
            raise InvalidInputError(
                "no deployment to connect to: start `runyard dev` in this folder, "
                "or set RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL"
            )
        return found.postgres_url, self.redis or found.redis_url


def target(context: typer.Context) -> Target:
    """Return the root options of the command that runs."""
    found = context.find_root().obj
    return found if isinstance(found, Target) else Target()


def connect(context: typer.Context) -> Connecting:
    """Return a client of the deployment that the root options name."""
    options = target(context)
    url, redis = options.resolve()
    return Client.connect(url, tenant=options.tenant, **({"redis": redis} if redis else {}))


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine."""
    return asyncio.run(coroutine)


async def gather(ask: Callable[[int, str | None], Awaitable[Page[T]]], limit: int, cursor: str | None = None) -> Page[T]:
    """Return up to ``limit`` items as one page. ``ask``: returns a page for a limit and a cursor.

    Several pages are read if necessary: a page before the last one may be short or empty.
    """
    found: list[T] = []
    while True:
        page = await ask(limit - len(found), cursor)
        found += page.items
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return Page(found, cursor)
