"""The deployment to which a command connects, and the event loop of the command.

The scheme of the URL selects the backend, for example Postgres or the HTTP API (``runyard.support.backend_urls``).
``locate`` in ``runyard.support.location`` finds the URL in options, environment, the file of ``runyard dev``, or ``.env``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import typer

from runyard.client.client import Client, Connecting
from runyard.client.run_handle import RunHandle
from runyard.domain.agent_names import is_agent, served_words
from runyard.errors import InvalidInputError, RunyardError
from runyard.support import dev_file
from runyard.support.location import REDIS, URL, Location, locate

from .view.output import without_password

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
        """Return the deployment. Search the URLs first in the root options, then in the environment, then in the ``runyard
        dev`` of this folder, and then in ``.env``. Raises the errors of :func:`runyard.support.location.locate`."""
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


def locate_servers(context: typer.Context) -> Location:
    """Return the deployment for a process that serves it. Raises InvalidInputError if the URL of the deployment is the URL of
    an HTTP API. Also raises the errors of :meth:`Target.locate`."""
    found = target(context).locate()
    if found.url.startswith(("http://", "https://")):
        given = without_password(found.url)
        raise InvalidInputError(
            f"`runyard {context.info_name}` needs the URLs of Postgres and Redis, in {URL} and {REDIS}; "
            f"{given} is the URL of an HTTP API"
        )
    return found


def trouble_of_dev(context: typer.Context) -> str:
    """Return a line about the end of the last worker of ``runyard dev``. Return an empty text if ``dev`` has all its workers,
    if it has stopped, or if this command connects to another deployment."""
    with suppress(RunyardError):
        place, found = target(context).locate(), dev_file.find()
        if place.source == "runyard dev" and found is not None and found.postgres_url == place.url:
            return found.trouble
    return ""


async def explain(context: typer.Context, handle: RunHandle, *, stopped: bool | None = None) -> str:
    """Return the sentence of ``explain``. If the run has not stopped, add the text of :func:`trouble_of_dev`. ``stopped``:
    whether the run has stopped, or None to read this from the store."""
    sentence = await handle.explain()
    if stopped or not (trouble := trouble_of_dev(context)):
        return sentence
    return sentence if stopped is None and (await handle.run()).stopped else f"{sentence}; {trouble}"


async def unserved(client: Client, agent: str | None) -> str:
    """Return a phrase that says that no live worker serves ``agent``. Return an empty text if a worker serves the agent, if
    ``agent`` does not name one agent, or if the caller may not list workers."""
    if not is_agent(agent):
        return ""
    with suppress(RunyardError):  # the call that names the agent has succeeded
        if not any(worker.dead_at is None and worker.serves(agent) for worker in await client.workers()):
            return f"no live worker serves {served_words(agent)}"
    return ""


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
