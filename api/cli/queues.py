"""queues list | pause | resume."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.exchange import QueueInfo

from . import options, output, session
from .output import escape

app = typer.Typer(help="Look at queues and pause them.", no_args_is_help=True)

QueueArg = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List the queues that hold runs, are paused or are served, over all tenants."""

    async def go() -> list[QueueInfo]:
        async with session.connect(context) as client:
            return await client.queues()

    found = session.wait(go())
    if as_json:
        output.print_json({"items": found})
        return
    rows = (
        (
            escape(info.queue),
            str(info.queued),
            output.duration(info.oldest),
            str(info.deepest),
            str(info.suspended),
            f"[red]{info.workers}[/]" if info.queued and not info.workers else str(info.workers),
            f"[yellow]paused since {output.clock(info.paused_at)}[/]" if info.paused_at else "open",
        )
        for info in found
    )
    output.table(("QUEUE", "QUEUED", "OLDEST", "DEEPEST LANE", "SUSPENDED", "WORKERS", "STATE"), rows, empty="no queues")


@app.command()
def pause(context: typer.Context, queue: QueueArg, as_json: options.Json = False) -> None:
    """Start no more runs of a queue. They are accepted and wait; what runs goes on."""

    async def go() -> None:
        async with session.connect(context) as client:
            since = await client.pause_queue(queue)
        if as_json:
            output.print_json({"queue": queue, "paused_at": since})
        else:
            output.console().print(f"paused since {output.clock(since)}")

    session.wait(go())


@app.command()
def resume(context: typer.Context, queue: QueueArg, as_json: options.Json = False) -> None:
    """Start runs of a queue again."""

    async def go() -> bool:
        async with session.connect(context) as client:
            return await client.resume_queue(queue)

    was = session.wait(go())
    if as_json:
        output.print_json({"queue": queue, "was_paused": was})
    else:
        output.console().print("resumed" if was else "it was not paused")
