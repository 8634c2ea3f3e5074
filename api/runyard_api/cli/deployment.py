"""The deployment to which a command connects, and the event loop of the command.

The scheme of the URL selects the backend, for example Postgres or the HTTP API (``runyard.support.backend_urls``).
``locate`` in ``runyard.support.location`` finds the URL in options, environment, the file of ``runyard dev``, or ``.env``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import typer

from runyard.client.client import Client, Connecting
from runyard.errors import InvalidInputError
from runyard.support.location import Location, locate

T = TypeVar("T")


@dataclass(frozen=True)
class Target:
    """The root options."""

    url: str | None = None
    redis: str | None = None
    tenant: str = ""
    namespace: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def locate(self) -> Location:
        """Return the deployment. Its URLs come from the first of these sources that has them: the root options, the
        environment, the ``runyard dev`` of this folder, ``.env``. Raises the errors of
        :func:`runyard.support.location.locate`."""
        return locate(self.url, redis=self.redis, api_key=self.api_key)


def target(context: typer.Context) -> Target:
    """Return the root options of the present command."""
    found = context.find_root().obj
    return found if isinstance(found, Target) else Target()


def connect(context: typer.Context) -> Connecting:
    """Return a client of the deployment that the root options name."""
    options = target(context)
    found = options.locate()
    return Client.connect(
        found.url, tenant=options.tenant, namespace=options.namespace, redis=found.redis, api_key=found.api_key
    )


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine to its end, and return its result."""
    return asyncio.run(coroutine)


async def run_of(client: Client, ids: Sequence[str]) -> tuple[str, str]:
    """Return the thread id and the run id for the arguments ``[THREAD] RUN`` of a command.

    A single argument is the id of a run on any thread, or the beginning of such an id. Raises RunNotFoundError,
    RunAmbiguousError.
    """
    if len(ids) > 2:
        raise InvalidInputError(f"give the run, or the thread and the run; got {len(ids)} arguments")
    if len(ids) == 2:
        return ids[0], ids[1]
    run = await client.find_run(ids[0])
    return run.thread_id, run.run_id
