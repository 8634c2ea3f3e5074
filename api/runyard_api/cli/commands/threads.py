"""The commands ``threads list``, ``show``, ``update``, ``messages``, ``tree`` and ``delete``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, get_args

import typer

from runyard.domain.states import RunStatus
from runyard.errors import InvalidInputError
from runyard.formats.conversion import Format
from runyard.formats.pages import FormattedPage, formatted
from runyard.models import Message, TextPart, ToolResultPart

from ... import pages, quantities
from .. import deployment, options
from ..view import graph, output, thread_tree
from ..view.output import escape, escape_lines

app = typer.Typer(help="List threads, show one, store messages, and compare forks and branches.", no_args_is_help=True)

_PALETTE = ("cyan", "magenta", "yellow", "green", "blue", "red")
_NODE_STYLE = {"failed": "red", "dead": "red", "suspended": "magenta", "running": "cyan", "cancelled": "bright_black"}


@app.command("list")
def list_(
    context: typer.Context,
    parent: Annotated[str | None, typer.Option(help="List only the forks of this thread.")] = None,
    limit: options.Limit = 30,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List threads."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await pages.gather(
                lambda most, at: client.threads(parent_thread_id=parent, limit=most, cursor=at), limit, cursor
            )
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        rows = (
            (
                escape(thread.thread_id),
                output.marked(escape(thread.title or ""), thread.damaged),
                escape(thread.agent or ""),
                escape(thread.parent_thread_id or ""),
                quantities.clock(thread.created_at),
                quantities.clock(thread.updated_at),
            )
            for thread in page.items
        )
        output.table(("THREAD", "TITLE", "AGENT", "FORK OF", "CREATED", "UPDATED"), rows, empty="no threads")
        output.more(page.next)

    deployment.wait(go())


@app.command()
def show(
    context: typer.Context,
    thread: options.ThreadArg,
    leaf: Annotated[str | None, typer.Option(help="Show the path to this message. Default: the newest.")] = None,
    limit: options.Limit = 50,
    as_json: options.Json = False,
) -> None:
    """Show the newest messages of a thread, in order."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            found = await client.thread(thread)
            page = await pages.gather(
                lambda most, at: client.messages(thread, leaf, limit=most, cursor=at, newest_first=True), limit
            )
        messages = page.items[::-1]
        if as_json:
            output.print_json({"thread": found, "messages": messages, "earlier": page.next is not None})
            return
        console = output.console()
        fork = f"  [bright_black]fork of {escape(found.parent_thread_id)}[/]" if found.parent_thread_id else ""
        agent = f"  [bright_black]agent {escape(found.agent)}[/]" if found.agent else ""
        console.print(f"[bold]{escape(found.thread_id)}[/]{agent}{fork}  {escape(found.title or '')}".rstrip())
        if page.next:
            console.print("[bright_black]⋮ earlier messages: give a higher --limit[/]")
        for message in messages:
            console.print(message_line(message))

    deployment.wait(go())


@app.command()
def update(
    context: typer.Context,
    thread: options.ThreadArg,
    agent: Annotated[str | None, typer.Option(help="Agent for later prompts that name no agent.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the thread.")] = None,
    as_json: options.Json = False,
) -> None:
    """Change the agent or the title of a thread. Queued runs keep their agent."""
    changes: dict[str, Any] = {name: value for name, value in (("agent", agent), ("title", title)) if value is not None}
    if not changes:
        raise InvalidInputError("give --agent or --title")

    async def go() -> None:
        async with deployment.connect(context) as client:
            changed = await client.update_thread(thread, **changes)
            words = await deployment.unserved(client, changed.agent) if agent is not None else ""
        if as_json:
            output.print_json(changed)
        else:
            output.print_line(f"changed {changed.thread_id}")
        if words:
            output.notes().print(f"[yellow]{escape(words)}[/]")

    deployment.wait(go())


@app.command()
def messages(
    context: typer.Context,
    thread: options.ThreadArg,
    format: Annotated[str, typer.Option(help=f"One of {', '.join(get_args(Format))}.")] = "native",
    leaf: Annotated[str | None, typer.Option(help="Print the path to this message. Default: the newest.")] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Begin at the last message.")] = False,
    limit: options.Limit = 50,
    cursor: options.Cursor = None,
) -> None:
    """Print a thread's messages as JSON in a message format. The output also lists the values that the format cannot
    represent."""
    chosen: Format = options.choice(format, Format, "--format")

    async def go() -> FormattedPage:
        async with deployment.connect(context) as client:
            page = await pages.gather(
                lambda most, at: client.messages(thread, leaf, limit=most, cursor=at, newest_first=newest_first), limit, cursor
            )
        return await formatted(page.items, chosen, page.next)

    output.print_json(deployment.wait(go()).__dict__)


@app.command()
def delete(
    context: typer.Context,
    thread: options.ThreadArg,
    forks: Annotated[bool, typer.Option("--forks", help="First delete all its forks.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="First cancel its live runs.")] = False,
    erase: Annotated[
        bool,
        typer.Option("--erase", help="Also remove the content of the thread's own messages in every fork that shows them."),
    ] = False,
) -> None:
    """Delete a thread. Its forks keep the messages that they show, unless --erase is given."""
    if forks and erase:
        raise InvalidInputError(
            "give --forks or --erase, not both: --forks deletes all forks, so --erase finds no fork with messages to remove"
        )

    async def go() -> None:
        async with deployment.connect(context) as client:
            if erase:
                await client.erase_thread(thread, cancel=cancel)
            else:
                await client.delete_thread(thread, cancel=cancel, descendants=forks)

    deployment.wait(go())
    output.console().print("deleted")


@app.command()
def tree(
    context: typer.Context,
    thread: options.ThreadArg,
    full: Annotated[bool, typer.Option("--full", help="Show every turn of long stretches without a fork.")] = False,
    as_json: options.Json = False,
) -> None:
    """Draw a thread as a graph, with its branches. The graph also has the thread's ancestors, all forks of these threads, and
    the children of their runs."""

    async def go() -> thread_tree.ThreadTree:
        async with deployment.connect(context) as client:
            return await thread_tree.collect(client, thread)

    found = deployment.wait(go())
    if as_json:
        turns = [asdict(turn) for turn in found.turns.values()]
        output.print_json({"threads": found.threads, "turns": turns, "more_children": found.more_children})
        return
    console = output.console()
    for line in tree_lines(found, full=full):
        console.print(line)
    if found.more_children:
        output.notes().print("[bright_black]there are more children; `runyard threads lineage` lists those of one thread[/]")


def tree_lines(found: thread_tree.ThreadTree, *, full: bool = False) -> Sequence[str]:
    """Return a tree of threads as lines of markup. Threads without messages come last."""
    colour = {one.thread_id: _PALETTE[n % len(_PALETTE)] for n, one in enumerate(found.threads)}
    rows = graph.draw(found.turns.values(), full=full)
    width = max((len(row.lanes) for row in rows), default=0)
    lines = [_graph_line(row, width, colour) for row in rows]
    labelled = {ref for turn in found.turns.values() for ref in turn.refs}
    empty = [one.thread_id for one in found.threads if one.thread_id not in labelled]
    return [*lines, *(f"{_ref(thread_id, colour)} [bright_black](empty)[/]" for thread_id in empty)]


def _graph_line(row: graph.Row, width: int, colour: dict[str, str]) -> str:
    lanes = f"[bright_black]{row.lanes:<{width}}[/]"
    if row.hidden:
        return f"{lanes}  [bright_black]{row.hidden} more turns[/]"
    if row.turn is None:
        return lanes
    turn = row.turn
    node = graph.NODE.get(turn.status, "●")
    style = _NODE_STYLE.get(turn.status, colour.get(turn.thread_id, "white"))
    lanes = f"[bright_black]{row.lanes:<{width}}[/]".replace(node, f"[/][{style}]{node}[/][bright_black]", 1)
    words = " [bright_black]→[/] ".join(escape(part) for part in (turn.prompt, turn.answer) if part)
    mark = f" [{style}]{turn.status}[/]" if turn.status not in ("completed", "stored") else ""
    if turn.started_by is not None:
        mark += " [bright_black]child[/]"
    refs = "".join(f" {_ref(ref, colour)}" for ref in turn.refs)
    return f"{lanes} {refs} {words}{mark}"


def _ref(thread_id: str, colour: dict[str, str]) -> str:
    return f"[bold {colour.get(thread_id, 'white')}]‹{escape(thread_id)}›[/]"


def _result(result: ToolResultPart) -> str:
    if not result.has_parts:
        return str(result.content)
    return " ".join(part.text if isinstance(part, TextPart) else f"({part.type})" for part in result.parts)


def message_line(message: Message) -> str:
    """Return a message as markup: its role, text and tool calls. If its run is not completed, add the status of the run."""
    head = f"[{output.ROLE_STYLE[message.role]}]{message.role:>9}[/]"
    if message.run_status not in (None, RunStatus.COMPLETED):
        head += f" [{_NODE_STYLE.get(message.run_status, 'bright_black')}]({message.run_status})[/]"
    words = [escape_lines(message.text)] if message.text else []
    words += [f"[yellow]⚙ {escape(call.name)}[/][bright_black]{escape(str(call.arguments))}[/]" for call in message.tool_calls]
    words += [f"[yellow]→ {escape_lines(_result(result))}[/]" for result in message.tool_results]
    return f"{head}  " + ("\n" + " " * 11).join("\n".join(words).split("\n"))
