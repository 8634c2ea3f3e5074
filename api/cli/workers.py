"""workers list | drain | stacks."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from dataclasses import asdict
from typing import Annotated, Final
from urllib.error import HTTPError, URLError

import typer

from runner.client import Client
from runner.errors import BackendUnavailableError
from runner.exchange import WorkerInfo

from . import options, output, session
from .output import escape

app = typer.Typer(help="Look at workers and drain them.", no_args_is_help=True)

WorkerArg = Annotated[str, typer.Argument(help="The worker's id, or a part of it that no other has.", show_default=False)]

SILENT: Final = 3.0
"""Seconds after which a heartbeat is late."""
_STYLE = {"live": "green", "draining": "yellow", "silent": "magenta", "dead": "bright_black"}


def state(worker: WorkerInfo) -> str:
    """What a worker is, in one word."""
    if worker.dead_at is not None:
        return "dead"
    if worker.silent_for is not None and worker.silent_for > SILENT:
        return "silent"
    return "draining" if worker.draining else "live"


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List workers: what they serve, how busy they are, and whether they live."""

    async def go() -> list[tuple[WorkerInfo, int]]:
        async with session.connect(context) as client:
            return [(worker, await _busy(client, worker)) for worker in await client.workers()]

    found = session.wait(go())
    if as_json:
        items = [asdict(worker) | {"state": state(worker), "slots_in_use": busy} for worker, busy in found]
        output.print_json({"items": items})
        return
    rows = (
        (
            escape(worker.worker_id),
            f"[{_STYLE[state(worker)]}]{state(worker)}[/]",
            output.duration(worker.silent_for),
            f"{busy}/{worker.slots}",
            escape(worker.app_version or ""),
            escape(", ".join(worker.queues)),
            escape(", ".join(worker.agents)),
        )
        for worker, busy in found
    )
    output.table(("WORKER", "STATE", "HEARTBEAT", "SLOTS", "VERSION", "QUEUES", "AGENTS"), rows, empty="no workers")


@app.command()
def drain(
    context: typer.Context,
    worker: WorkerArg,
    wait: Annotated[bool, typer.Option("--wait", envvar="RUNYARD_WAIT", help="Return when the worker has ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """Let a worker take nothing more, finish its runs however long they take, and end with code 0."""

    async def go() -> tuple[WorkerInfo, int]:
        async with session.connect(context) as client:
            found = await client.worker(worker)
            await client.drain_worker(found.worker_id)
            busy = await _busy(client, found)
            while wait and await _lives(client, found.worker_id):  # noqa: ASYNC110 - the state is in the store
                await asyncio.sleep(0.5)
            return found, busy

    found, busy = session.wait(go())
    if as_json:
        output.print_json({"worker_id": found.worker_id, "slots_in_use": busy, "ended": wait})
    else:
        output.print_line(found.worker_id)
        runs = output.count(busy, "run has", "runs have")
        what = "has ended" if wait else f"takes nothing more and ends when its {runs} ended" if busy else "ends now"
        output.notes().print(f"[bright_black]it {what}[/]")


@app.command()
def stacks(context: typer.Context, worker: WorkerArg, as_json: options.Json = False) -> None:
    """Print where each thread and each task of a worker is, also while user code blocks its main loop.

    The worker needs a port (RUNYARD_METRICS_PORT) and shows its stacks to its own machine only, unless it runs with
    RUNYARD_REMOTE_STACKS=true. Without a port, `kill -USR1 PID` writes the stacks of its threads to its standard error.
    """

    async def go() -> WorkerInfo:
        async with session.connect(context) as client:
            return await client.worker(worker)

    found = session.wait(go())
    text = _ask(found)
    if as_json:
        output.print_json({"worker_id": found.worker_id, "stacks": text})
    else:
        output.console().print(text, markup=False, emoji=False, end="")


def _ask(worker: WorkerInfo) -> str:
    if worker.address is None:
        raise BackendUnavailableError(
            f"worker {worker.worker_id} has no port: start it with RUNYARD_METRICS_PORT, or send its process SIGUSR1"
        )
    host, _, port = worker.address.rpartition(":")
    where = "localhost" if host == socket.gethostname() else host
    try:
        with urllib.request.urlopen(f"http://{where}:{port}/stacks", timeout=10) as reply:
            text: str = reply.read().decode()
            return text
    except HTTPError as error:
        with error:
            raise BackendUnavailableError(f"worker {worker.worker_id} refused: {error.read().decode()}") from None
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise BackendUnavailableError(
            f"worker {worker.worker_id} cannot be reached at {where}:{port} ({reason}); run this on its own machine"
        ) from None


async def _busy(client: Client, worker: WorkerInfo) -> int:
    return len(await client.backend.workers.running(worker.worker_id))


async def _lives(client: Client, worker_id: str) -> bool:
    return any(worker.worker_id == worker_id and worker.dead_at is None for worker in await client.workers())
