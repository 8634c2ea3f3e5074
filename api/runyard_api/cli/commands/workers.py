"""The commands ``workers list``, ``drain`` and ``stacks``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from runyard import Client
from runyard.errors import CapabilityMissingError
from runyard.ports.workers import WorkerInfo

from ... import quantities
from ...diagnosis.workers import blocked_words, outage_words, stacks_of, state
from .. import deployment, options
from ..view import output
from ..view.output import escape

app = typer.Typer(help="List and drain workers, and print their stacks.", no_args_is_help=True)

WorkerArg = Annotated[str, typer.Argument(help="Id of the worker, or a part that only this id contains.", show_default=False)]

_STYLE = {
    "live": "green",
    "draining": "yellow",
    "blocked": "red",
    "no redis": "red",
    "silent": "magenta",
    "dead": "bright_black",
}


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List workers with their state, slots, version, queues and agents."""

    async def go() -> list[tuple[WorkerInfo, int | None]]:
        async with deployment.connect(context) as client:
            return [(worker, await _busy(client, worker)) for worker in await client.workers()]

    found = deployment.wait(go())
    if as_json:
        items = [asdict(worker) | {"state": state(worker), "slots_in_use": busy} for worker, busy in found]
        output.print_json({"items": items})
        return
    rows = (
        (
            escape(worker.worker_id),
            f"[{_STYLE[state(worker)]}]{state(worker)}[/]",
            quantities.duration(worker.silent_for),
            str(worker.slots) if busy is None else f"{busy}/{worker.slots}",
            escape(worker.app_version or ""),
            escape(", ".join(worker.queues)),
            escape(", ".join(worker.agents)),
        )
        for worker, busy in found
    )
    output.table(("WORKER", "STATE", "HEARTBEAT", "SLOTS", "VERSION", "QUEUES", "AGENTS"), rows, empty="no workers")
    for worker, _ in found:
        for words in (blocked_words(worker), outage_words(worker)):
            if words is not None:
                output.print_line(f"{worker.worker_id}: {words}")


@app.command()
def drain(
    context: typer.Context,
    worker: WorkerArg,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the worker has ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """Drain a worker. The worker claims no more runs, finishes its runs without a time limit, and ends with code 0."""

    async def go() -> tuple[WorkerInfo, int | None]:
        async with deployment.connect(context) as client:
            found = await client.worker(worker)
            await client.drain_worker(found.worker_id)
            busy = await _busy(client, found)
            while wait and await _lives(client, found.worker_id):  # noqa: ASYNC110 - the state is in the store
                await asyncio.sleep(0.5)
            return found, busy

    found, busy = deployment.wait(go())
    if as_json:
        output.print_json({"worker_id": found.worker_id, "slots_in_use": busy, "ended": wait})
    else:
        output.print_line(found.worker_id)
        runs = "runs have" if busy is None else quantities.count(busy, "run has", "runs have")
        what = "has ended" if wait else f"claims no more runs and ends when its {runs} ended" if busy != 0 else "ends now"
        output.notes().print(f"[bright_black]the worker {what}[/]")


@app.command()
def stacks(context: typer.Context, worker: WorkerArg, as_json: options.Json = False) -> None:
    """Print the stack of each thread and each task of a worker. The command also works while the worker's event loop is
    blocked by user code.

    The worker needs a port (RUNYARD_METRICS_PORT). By default, the worker sends its stacks only to callers on its own machine.
    RUNYARD_REMOTE_STACKS=true allows callers on other machines. Without a port, `kill -USR1 PID` writes the stacks of the
    worker's threads to its standard error.
    """

    async def go() -> WorkerInfo:
        async with deployment.connect(context) as client:
            return await client.worker(worker)

    found = deployment.wait(go())
    text = stacks_of(found)
    if as_json:
        output.print_json({"worker_id": found.worker_id, "stacks": text})
    else:
        output.console().print(text, markup=False, emoji=False, end="")


async def _busy(client: Client, worker: WorkerInfo) -> int | None:
    """Return the number of runs of a worker. Return None over HTTP, because the API does not report this number."""
    try:
        return len(await client.backend.workers.running(worker.worker_id))
    except CapabilityMissingError:
        return None


async def _lives(client: Client, worker_id: str) -> bool:
    return any(worker.worker_id == worker_id and worker.dead_at is None for worker in await client.workers())
