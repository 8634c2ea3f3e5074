"""fork, fork-once and fork-many: start from a snapshot of another thread."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.calls.fanout import MAX_PARALLEL
from runner.errors import InvalidInputError
from runner.models import StopAt, Thread

from . import options, output, session
from .exits import Exit
from .output import escape

Source = Annotated[str, typer.Argument(metavar="THREAD", help="The thread to start from.", show_default=False)]


def fork(
    context: typer.Context,
    source: Source,
    new: Annotated[str | None, typer.Argument(help="The new thread's id; made if left out.")] = None,
    after: options.After = None,
    at: Annotated[str | None, typer.Option(envvar="RUNYARD_AT", help="Cut at this message instead, inclusive.")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", envvar="RUNYARD_REPAIR", help="Close open tool calls at the cut.")
    ] = False,
    title: Annotated[str | None, typer.Option(envvar="RUNYARD_TITLE", help="Its title.")] = None,
    tag: Annotated[list[str] | None, typer.Option(envvar="RUNYARD_TAG", help="key=value; may be repeated.")] = None,
    agent: options.Agent = None,
    message: Annotated[str | None, typer.Option(envvar="RUNYARD_MESSAGE", help="Its first prompt.")] = None,
    wait: Annotated[
        bool, typer.Option("--wait", envvar="RUNYARD_WAIT", help="Wait until the run of the cut completes.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Fork a thread after a completed run, in constant time, and print the new thread's id."""

    async def go() -> Thread:
        async with session.connect(context) as client:
            return await client.fork(
                source,
                new,
                after,
                at_message_id=at,
                repair=repair,
                title=title,
                tags=_tags(tag or []),
                agent=agent,
                message=message,
                wait=wait,
            )

    made = session.wait(go())
    if as_json:
        output.print_json(made)
    else:
        output.print_line(made.thread_id)
        cut = f" after run {escape(made.forked_after_run_id)}" if made.forked_after_run_id else ""
        output.notes().print(f"[bright_black]forked from {escape(source)}{cut}[/]")


def fork_once(
    context: typer.Context,
    source: Source,
    text: Annotated[str, typer.Argument(help="What to ask.", show_default=False)],
    after: options.After = None,
    agent: options.Agent = None,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Ask a snapshot of a thread one question; nothing is written to any thread."""

    async def go() -> Exit:
        async with session.connect(context) as client:
            probe = await client.fork_once(source, text, after, agent=agent, wait=wait_timeout)
        if as_json:
            output.print_json(probe)
        else:
            output.console().print(probe.text, markup=False, emoji=False)
        return Exit.FAILED_RUN if probe.stop_reason == "error" else Exit.OK

    raise typer.Exit(int(session.wait(go())))


def fork_many(
    context: typer.Context,
    source: Source,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="What to try, each by itself.", show_default=False)],
    after: options.After = None,
    threads: Annotated[bool, typer.Option("--threads", envvar="RUNYARD_THREADS", help="Each on a fork that stays.")] = False,
    stop: Annotated[str, typer.Option(envvar="RUNYARD_STOP", help="At the end of all, or of the first that succeeds.")] = "all",
    judge: Annotated[str | None, typer.Option(envvar="RUNYARD_JUDGE", help="The agent that chooses the best.")] = None,
    max_parallel: Annotated[int, typer.Option(envvar="RUNYARD_MAX_PARALLEL", min=1, help="How many at once.")] = MAX_PARALLEL,
    run_id: Annotated[str | None, typer.Option(envvar="RUNYARD_RUN_ID", help="The job's id; repeating it is safe.")] = None,
    agent: options.Agent = None,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Try several messages on the same snapshot of a thread; prints what came of each, the winner marked."""

    async def go() -> Exit:
        async with session.connect(context) as client:
            result = await client.fork_many(
                source,
                after,
                messages=texts,
                threads=threads,
                stop=options.choice(stop, StopAt, "--stop"),
                judge=judge,
                max_parallel=max_parallel,
                agent=agent,
                run_id=run_id,
                wait=wait_timeout,
            )
        if as_json:
            output.print_json(result)
        for n, candidate in enumerate(result.results if not as_json else ()):
            mark = "*" if n == result.winner else " "
            where = f" {candidate.thread_id}" if candidate.thread_id else ""
            why = candidate.text if candidate.ok else candidate.stop_reason
            output.console().print(f"{mark} {n}{where}: {why}".replace("\n", "\n    "), markup=False)
        return Exit.OK if any(candidate.ok for candidate in result.results) else Exit.FAILED_RUN

    raise typer.Exit(int(session.wait(go())))


def _tags(pairs: list[str]) -> dict[str, str]:
    tags = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInputError(f"--tag takes key=value; got {pair!r}")
        tags[key] = value
    return tags
