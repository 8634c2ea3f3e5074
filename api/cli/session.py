"""What every command shares: which deployment it talks to, and how its coroutine is run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import typer

from runner.client import Client, Connecting
from runner.errors import InvalidInputError
from runner.exchange import Page

from . import discovery

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """The root options."""

    url: str | None = None
    redis: str | None = None
    tenant: str = ""

    def resolve(self) -> tuple[str, str | None]:
        """Postgres and Redis: from an option, else the environment, else the ``runyard dev`` of this folder."""
        if self.url is not None:
            if self.redis is None and self.url.startswith("postgres"):
                raise InvalidInputError("Postgres is named but Redis is not: set RUNYARD_REDIS_URL or give --redis")
            return self.url, self.redis
        found = discovery.find()
        if found is None:
            raise InvalidInputError(
                "no deployment to talk to: start `runyard dev` in this folder, "
                "or set RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL"
            )
        return found.postgres_url, self.redis or found.redis_url


def target(context: typer.Context) -> Target:
    """The root options of the command that runs."""
    found = context.find_root().obj
    return found if isinstance(found, Target) else Target()


def connect(context: typer.Context) -> Connecting:
    """The client that the root options ask for."""
    options = target(context)
    url, redis = options.resolve()
    return Client.connect(url, tenant=options.tenant, **({"redis": redis} if redis else {}))


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine."""
    return asyncio.run(coroutine)


async def gather(ask: Callable[[int, str | None], Awaitable[Page[T]]], limit: int, cursor: str | None = None) -> Page[T]:
    """Up to ``limit`` items, over as many pages as they come in: a page may come short, or be empty, before the end."""
    found: list[T] = []
    while True:
        page = await ask(limit - len(found), cursor)
        found += page.items
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return Page(found, cursor)
