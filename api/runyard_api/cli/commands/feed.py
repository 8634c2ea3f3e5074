"""The command ``feed``: list the changes of all threads in the order of their commits."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from runyard.models import FeedEntry

from ... import quantities
from .. import deployment, options
from ..view import output
from ..view.output import escape


def feed(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new entries until Ctrl-C.")] = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """Print the feed: ended and suspended runs, stored messages, forked threads and deleted threads.

    The command starts at the oldest stored entry, or after --cursor. With --json, each line has a cursor. To continue after
    this line, give this cursor as --cursor.
    """

    def show(entry: FeedEntry) -> None:
        if as_json:
            output.print_json_line(entry)
        else:
            run = f"  [bright_black]{escape(entry.run_id)}[/]" if entry.run_id else ""
            if entry.parent_thread_id is not None:
                after = f" after {escape(entry.forked_after_run_id)}" if entry.forked_after_run_id is not None else ""
                run = f"  [bright_black]from {escape(entry.parent_thread_id)}{after}[/]"
            output.console().print(f"{quantities.clock(entry.created_at)}  {entry.type:15} {escape(entry.thread_id)}{run}")

    async def go() -> None:
        async with deployment.connect(context) as client:
            if follow:
                async with aclosing(client.follow_feed(cursor)) as entries:
                    async for entry in entries:
                        show(entry)
            page = await client.feed(cursor, limit=limit)
            for entry in page.items:
                show(entry)
            if len(page.items) == limit and not as_json:
                output.more(page.next)

    deployment.wait(go())
