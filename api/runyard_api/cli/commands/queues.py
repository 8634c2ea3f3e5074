"""The commands ``queues list``, ``pause`` and ``resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from runyard.ports.results import Page
from runyard.ports.workers import QueueInfo

from ... import pages, quantities
from .. import deployment, options
from ..view import output
from ..view.output import escape

app = typer.Typer(help="List, pause and resume queues.", no_args_is_help=True)

QueueArg = Annotated[str, typer.Argument(help="Name of the queue.", show_default=False)]


@app.command("list")
def list_(
    context: typer.Context, limit: options.Limit = 100, cursor: options.Cursor = None, as_json: options.Json = False
) -> None:
    """List the queues that have runs, are paused or have a worker, for all tenants."""

    async def go() -> Page[QueueInfo]:
        async with deployment.connect(context) as client:
            return await pages.gather(lambda most, at: client.queues(limit=most, cursor=at), limit, cursor)

    page = deployment.wait(go())
    if as_json:
        output.print_json({"items": page.items, "next": page.next})
        return
    rows = (
        (
            escape(info.queue),
            str(info.queued),
            quantities.duration(info.oldest),
            str(info.deepest),
            str(info.scheduled),
            str(info.running),
            str(info.suspended),
            f"[red]{info.workers}[/]" if info.queued and not info.workers else str(info.workers),
            f"[yellow]paused since {quantities.clock(info.paused_at)}[/]" if info.paused_at else "open",
        )
        for info in page.items
    )
    head = ("QUEUE", "QUEUED", "OLDEST", "DEEPEST LANE", "SCHEDULED", "RUNNING", "SUSPENDED", "WORKERS", "STATE")
    output.table(head, rows, empty="no queues")


@app.command()
def pause(context: typer.Context, queue: QueueArg, as_json: options.Json = False) -> None:
    """Pause a queue. New runs are accepted and wait. Runs that have started continue."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            since = await client.pause_queue(queue)
        if as_json:
            output.print_json({"queue": queue, "paused_at": since})
        else:
            output.console().print(f"paused since {quantities.clock(since)}")

    deployment.wait(go())


@app.command()
def resume(context: typer.Context, queue: QueueArg, as_json: options.Json = False) -> None:
    """Resume a queue. Workers claim its runs again."""

    async def go() -> bool:
        async with deployment.connect(context) as client:
            return await client.resume_queue(queue)

    was = deployment.wait(go())
    if as_json:
        output.print_json({"queue": queue, "was_paused": was})
    else:
        output.console().print("resumed" if was else "the queue was not paused")
