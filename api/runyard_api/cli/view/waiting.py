"""Wait for a run if the options require it, print its answer, and exit with the code of its outcome."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import typer

from runyard import Client
from runyard.client.run_handle import RunHandle, RunResult
from runyard.domain.agent_names import is_agent
from runyard.domain.states import RunStatus
from runyard.errors import RunyardError

from .. import deployment, exit_codes
from . import live_run, output
from .output import escape

EXPLAIN_SECONDS: Final = 2.0
"""Seconds after which a waiting command prints the reason why its run waits."""


async def follow(
    context: typer.Context,
    client: Client,
    handle: RunHandle,
    *,
    wait: bool,
    stream: bool,
    timeout: float | None,
    as_json: bool,
    after: str | None = None,
) -> None:
    """Print the id of the run. With ``wait`` or ``stream``, print its answer instead. ``after``: the id of the event after
    which the stream begins, or None for all events.

    If the run has not started after EXPLAIN_SECONDS, print the sentence of ``explain``. After ``timeout`` seconds, raises
    TimeoutError with the sentence of ``explain`` at this time.
    """
    if not (wait or stream):
        run = await handle.run()
        if as_json:
            output.print_json({**run.model_dump(mode="json"), "created": handle.created})
        else:
            output.print_line(handle.run_id)
            where = escape(handle.thread_id)
            agent = f" for agent {escape(run.agent)}" if is_agent(run.agent) else ""
            output.notes().print(f"[bright_black]{run.status} on thread {where}{agent}; add --wait for the answer[/]")
            if run.status is RunStatus.QUEUED and (words := await deployment.unserved(client, run.agent)):
                output.notes().print(f"[yellow]{escape(words)}[/]")
        return
    explaining = asyncio.create_task(_explain_wait(context, handle))
    try:
        async with asyncio.timeout(timeout):
            if stream and not as_json:
                await live_run.show(handle.stream(after), live_run.Printer(output.console(), output.notes()))
            result = await handle.result()
    except TimeoutError:
        sentence = ""
        with suppress(RunyardError):  # the timeout is the error to report
            sentence = await deployment.explain(context, handle, stopped=False)
        raise TimeoutError(sentence) from None
    finally:
        explaining.cancel()
        await asyncio.gather(explaining, return_exceptions=True)
    finish(result, as_json=as_json, shown=stream and not as_json)


async def _explain_wait(context: typer.Context, handle: RunHandle) -> None:
    """If the run still waits after EXPLAIN_SECONDS, print the reason."""
    await asyncio.sleep(EXPLAIN_SECONDS)
    if (await handle.run()).status is RunStatus.QUEUED:
        output.notes().print(f"[bright_black]{escape(await deployment.explain(context, handle, stopped=False))}[/]")


def finish(result: RunResult, *, as_json: bool, shown: bool = False) -> None:
    """Print ``result``, unless it was ``shown`` before. Exit with the code of its outcome."""
    text = result.last_text
    if as_json:
        output.print_json({"run": result.run, "text": text, "messages": result.messages, "requests": result.requests})
    elif not shown and text:
        output.console().print(text, markup=False, emoji=False)
    code = exit_codes.of_run(result.run)
    if code is exit_codes.Exit.OK and not as_json and not any(one.role == "assistant" for one in result.messages):
        output.notes().print("[bright_black]the run completed without an answer[/]")
    if code is not exit_codes.Exit.OK and not as_json:
        output.notes().print(_reason(result))
    raise typer.Exit(int(code))


def _reason(result: RunResult) -> str:
    run = result.run
    if run.status is RunStatus.SUSPENDED:
        lines = [f"[magenta]waits for an answer:[/] {escape(output.question(request))}" for request in result.requests]
        how = "--approve or --deny" if any(request.kind == "approval" for request in result.requests) else "ANSWER"
        lines.append(f"[bright_black]answer with: runyard respond {escape(run.thread_id)} {how}[/]")
        return "\n".join(lines)
    why = f": {run.error.headline}" if run.error else ""
    lines = [f"[red]run {escape(run.run_id)} {run.status}{escape(why)}[/]"]
    if run.error is not None and run.error.traceback is not None:
        lines.append(f"[bright_black]see the traceback with: runyard runs show {escape(run.run_id)}[/]")
    return "\n".join(lines)
