"""Wait for a run as the options say, print what it answered, and end with the exit code that says how it went."""

from __future__ import annotations

import asyncio

import typer

from runner.client import Client
from runner.handle import RunHandle, RunResult
from runner.states import RunStatus

from . import exits, output, watch
from .output import escape


async def follow(client: Client, handle: RunHandle, *, wait: bool, stream: bool, timeout: float | None, as_json: bool) -> None:
    """Print the run's id, or its answer if it is to be waited for."""
    if not (wait or stream):
        run = await handle.run()
        if as_json:
            output.print_json({**run.model_dump(mode="json"), "created": handle.created})
        else:
            output.print_line(handle.id)
            where = escape(handle.thread_id)
            output.notes().print(f"[bright_black]{run.status} on thread {where}; add --wait for the answer[/]")
        return
    async with asyncio.timeout(timeout):
        if stream and not as_json:
            await watch.show(handle.stream(), watch.Printer(output.console(), output.notes()))
        result = await handle.result()
    finish(result, as_json=as_json, shown=stream and not as_json)


def finish(result: RunResult, *, as_json: bool, shown: bool = False) -> None:
    """Print ``result`` unless it was ``shown`` already, and leave with its exit code."""
    if as_json:
        output.print_json({"run": result.run, "text": result.text, "messages": result.messages, "requests": result.requests})
    elif not shown and result.text:
        output.console().print(result.text, markup=False, emoji=False)
    code = exits.of_run(result.run)
    if code is not exits.Exit.OK and not as_json:
        output.notes().print(_reason(result))
    raise typer.Exit(int(code))


def _reason(result: RunResult) -> str:
    run = result.run
    if run.status is RunStatus.SUSPENDED:
        lines = [f"[magenta]waits for an answer:[/] {escape(output.question(request))}" for request in result.requests]
        how = "--approve or --deny" if any(request.kind == "approval" for request in result.requests) else "ANSWER"
        lines.append(f"[bright_black]answer with: runyard respond {escape(run.thread_id)} {how}[/]")
        return "\n".join(lines)
    why = f": {run.error.message} ({run.error.code})" if run.error else ""
    return f"[red]run {escape(run.run_id)} {run.status}{escape(why)}[/]"
