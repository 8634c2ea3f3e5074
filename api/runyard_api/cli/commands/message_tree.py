"""The commands ``threads branches``, ``label``, ``store``, ``lineage`` and ``diff``, and ``regenerate``."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args

import typer

from runyard.domain.threads import ChildRuns, Lineage, ThreadDiff
from runyard.errors import InvalidInputError
from runyard.formats.conversion import Format
from runyard.models import ROOT_ID, Message

from ... import pages, quantities
from .. import deployment, options
from ..view import output, waiting
from ..view.output import escape
from .threads import message_line


def branches(
    context: typer.Context,
    thread: options.ThreadArg,
    labelled: Annotated[bool, typer.Option("--labelled", help="List only branches that have a label.")] = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List the last message of each branch. `threads show --leaf ID` shows the messages of one branch."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await pages.gather(
                lambda most, at: client.branches(thread, labelled=labelled, limit=most, cursor=at), limit, cursor
            )
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        rows = (
            (
                leaf.message_id,
                str(leaf.depth),
                quantities.clock(leaf.created_at),
                escape(leaf.run_id or ""),
                output.status(leaf.run_status) if leaf.run_status else "",
                " ".join(name for name, is_it in (("head", leaf.head), ("trunk", leaf.trunk)) if is_it),
                escape(", ".join(leaf.labels)),
            )
            for leaf in page.items
        )
        output.table(
            ("LEAF", "DEPTH", "CREATED", "RUN", "STATUS", "END OF", "LABELS"),
            rows,
            empty="no labelled branches" if labelled else "no messages",
        )
        output.more(page.next)

    deployment.wait(go())


def label(
    context: typer.Context,
    thread: options.ThreadArg,
    label: Annotated[str, typer.Argument(help="The label, 1 to 64 characters.", show_default=False)],
    message: Annotated[str | None, typer.Option(help="Id of a message of the branch. Default: the head.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the label.")] = False,
) -> None:
    """Give a branch a label. The label follows the branch as the branch grows."""
    if remove and message is not None:
        raise InvalidInputError("give --message or --remove, not both", field="message")

    async def go() -> None:
        async with deployment.connect(context) as client:
            await (client.remove_label(thread, label) if remove else client.set_label(thread, label, message))
        output.print_line(f"{'removed' if remove else 'set'} {label}")

    deployment.wait(go())


def store(
    context: typer.Context,
    thread: options.ThreadArg,
    text: Annotated[str, typer.Argument(help="The message. With --format: JSON of the format.", show_default=False)],
    role: Annotated[str, typer.Option(help="Role of the message: system, user or assistant.")] = "user",
    format: Annotated[str | None, typer.Option(help=f"One of {', '.join(get_args(Format))}.")] = None,
    parent: Annotated[
        str | None, typer.Option(help=f"Store after this message, on a branch. {ROOT_ID}: store a new first message.")
    ] = None,
    expected_leaf: Annotated[str | None, typer.Option(help="Store only if this message is the last one.")] = None,
    as_json: options.Json = False,
) -> None:
    """Store a message without a run and print its id. The next run sees the message."""
    message: Any = text
    chosen: Format | None = options.choice(format, Format, "--format") if format is not None else None
    if chosen is not None:
        message = _json(text)
    elif role not in ("system", "user", "assistant"):
        raise InvalidInputError(f"--role is one of system, user, assistant; got {role!r}")
    else:
        message = Message(role=role, content=text)

    async def go() -> Message:
        async with deployment.connect(context) as client:
            return await client.store_message(thread, message, parent, expected_leaf=expected_leaf, format=chosen)

    stored = deployment.wait(go())
    if as_json:
        output.print_json(stored)
    else:
        output.print_line(stored.id)


def regenerate(
    context: typer.Context,
    thread: options.ThreadArg,
    text: Annotated[str | None, typer.Argument(help="New text for the user message (edit and resend).")] = None,
    message: Annotated[
        str | None, typer.Option(help="Id of the answer to replace, or of the user message. Default: the newest.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Id of the run. A repetition with the same id returns the same run.")
    ] = None,
    agent: options.Agent = None,
    parallel: Annotated[bool, typer.Option("--parallel", help="Do not wait for other runs of the thread.")] = False,
    wait: options.Wait = False,
    stream: options.Stream = False,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Answer a user message again, on a new branch. Print the id of the run, or the answer."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            handle = await client.regenerate(thread, message, run_id, message=text, agent=agent, parallel=parallel)
            await waiting.follow(context, client, handle, wait=wait, stream=stream, timeout=wait_timeout, as_json=as_json)

    deployment.wait(go())


def lineage(
    context: typer.Context, thread: options.ThreadArg, limit: options.Limit = 100, as_json: options.Json = False
) -> None:
    """List the ancestors of a thread, the thread, its forks, and the children of its runs."""

    async def go() -> Lineage:
        async with deployment.connect(context) as client:
            return await client.lineage(thread, limit=limit)

    found = deployment.wait(go())
    if as_json:
        output.print_json(found)
        return
    kinds = [("ancestor" if one.deleted_at is None else "deleted", one) for one in found.ancestors[::-1]]
    kinds.append(("thread", found.thread))
    rows = [
        (kind, *map(escape, (one.thread_id, one.title or "", one.forked_after_run_id or "")), quantities.clock(one.created_at))
        for kind, one in [*kinds, *(("fork", one) for one in found.children)]
    ]
    output.table(("KIND", "THREAD", "TITLE", "FORKED AFTER", "CREATED"), rows, empty="no threads")
    if found.child_runs.items:
        _child_runs(found.child_runs, limit)
    if found.next_ancestor is not None:
        output.more_by(f"threads lineage {found.next_ancestor}")
    if found.next_children is not None:
        output.more_by(f"threads list --parent {thread} --cursor {found.next_children}")


def _child_runs(found: ChildRuns, limit: int) -> None:
    rows = (
        (
            str(child.depth),
            *map(escape, (child.thread_id, child.run_id, child.agent or "")),
            output.status(child.status),
            escape(f"{child.started_by_run_id} on {child.started_by_thread_id}"),
        )
        for child in found.items
    )
    output.table(("LEVEL", "CHILD THREAD", "RUN", "AGENT", "STATUS", "STARTED BY"), rows, empty="no children")
    if found.truncated:
        output.notes().print(f"[bright_black]only the first {limit} children: give a higher --limit[/]")


def diff(
    context: typer.Context,
    thread: options.ThreadArg,
    other: Annotated[str, typer.Argument(help="Id of the thread to compare with.", show_default=False)],
    limit: options.Limit = 200,
    as_json: options.Json = False,
) -> None:
    """Show the messages of two threads after the last message that both show."""

    async def go() -> ThreadDiff:
        async with deployment.connect(context) as client:
            return await client.diff(thread, other, limit=limit)

    found = deployment.wait(go())
    if as_json:
        output.print_json(found)
        return
    console = output.console()
    if found.common_ancestor is not None:
        console.print(f"[bright_black]common ancestor: {escape(found.common_ancestor)}[/]")
    if found.truncated:
        console.print("[bright_black]⋮ no common message so far: give a higher --limit[/]")
    for thread_id, messages in ((found.thread_id, found.ours), (found.other_thread_id, found.theirs)):
        console.print(f"[bold]{escape(thread_id)}[/]")
        for one in messages:
            console.print(message_line(one))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"the message is not JSON: {error}", field="message") from None
    except RecursionError:
        raise InvalidInputError("the message is nested too deep to be read", field="message") from None
