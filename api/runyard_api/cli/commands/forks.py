"""The commands ``fork``, ``fork-once`` and ``fork-many``: start from a snapshot of a thread."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from runyard.client.fan_out import MAX_PARALLEL
from runyard.client.forks import prompt_id
from runyard.errors import InvalidInputError
from runyard.models import ErrorInfo, StopAt, Thread

from .. import deployment, options, values
from ..exit_codes import Exit
from ..view import output, waiting
from ..view.output import escape
from ..view.timeline import usage_words

Source = Annotated[str, typer.Argument(metavar="THREAD", help="Id of the thread to start from.", show_default=False)]


def fork(
    context: typer.Context,
    source: Source,
    new: Annotated[str | None, typer.Argument(help="Id of the new thread. Default: a new id.")] = None,
    after: options.After = None,
    at: Annotated[str | None, typer.Option(help="Cut after this message instead of after a run.")] = None,
    at_seq: Annotated[int | None, typer.Option(help="Cut after the message with this number.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Close the tool calls that are open at the cut.")] = False,
    title: Annotated[str | None, typer.Option(help="Title of the new thread.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag as key=value; may be repeated.")] = None,
    metadata: Annotated[str | None, typer.Option(help="JSON object to store as extra.fork of the new thread.")] = None,
    keep_usage: Annotated[
        bool, typer.Option("--keep-usage", help="Start the usage totals at those of the source instead of at zero.")
    ] = False,
    agent: options.Agent = None,
    message: Annotated[str | None, typer.Option(help="First prompt of the new thread.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Id of the run of the first prompt.")] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until the run at the cut has completed. With --message, also wait for the answer and print it."
        ),
    ] = False,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Fork a thread after a completed run and print the id of the new thread. No message is copied."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            began = time.monotonic()
            try:
                async with asyncio.timeout(wait_timeout if wait else None):
                    made = await client.fork(
                        source,
                        new,
                        after,
                        at_message_id=at,
                        at_seq=at_seq,
                        repair=repair,
                        metadata=None if metadata is None else values.json_object(metadata, "--metadata"),
                        reset_usage=not keep_usage,
                        title=title,
                        tags=dict(values.key_value(pair, "--tag") for pair in tag or []),
                        agent=agent,
                        message=message,
                        run_id=run_id,
                        wait=wait,
                    )
            except TimeoutError:
                raise TimeoutError("the run at the cut has not ended") from None
            prompt = prompt_id(made.thread_id, message, run_id, "run_id")
            if prompt is None or not wait:
                _print_fork(made, source, as_json=as_json)
            else:
                if not as_json:
                    output.notes().print(f"[bright_black]{escape(made.thread_id)} is {_origin(made, source)}[/]")
                left = None if wait_timeout is None else max(wait_timeout - (time.monotonic() - began), 0.0)
                handle = client.handle(made.thread_id, prompt)
                await waiting.follow(context, client, handle, wait=True, stream=False, timeout=left, as_json=as_json)

    deployment.wait(go())


def _print_fork(made: Thread, source: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
    else:
        output.print_line(made.thread_id)
        output.notes().print(f"[bright_black]{_origin(made, source)}[/]")


def _origin(made: Thread, source: str) -> str:
    """Return words for the source and the cut of a fork, as markup."""
    cut = f" after run {escape(made.forked_after_run_id)}" if made.forked_after_run_id else ""
    return f"forked from {escape(source)}{cut}"


def fork_once(
    context: typer.Context,
    source: Source,
    text: Annotated[str, typer.Argument(help="The question.", show_default=False)],
    after: options.After = None,
    agent: options.Agent = None,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Ask one question on a snapshot of a thread. No thread is changed."""

    async def go() -> Exit:
        async with deployment.connect(context) as client:
            probe = await client.fork_once(source, text, after, agent=agent, wait=wait_timeout)
        if as_json:
            output.print_json(probe)
        else:
            output.console().print(probe.text, markup=False, emoji=False)
            _print_error(probe.error)
        return Exit.FAILED_RUN if probe.stop_reason == "error" else Exit.OK

    raise typer.Exit(int(deployment.wait(go())))


def fork_many(
    context: typer.Context,
    source: Source,
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT...]", help="The messages to try. Each is a candidate.", show_default=False),
    ] = None,
    file: Annotated[
        typer.FileText | None, typer.Option("--from", help="File with one message per line, after TEXT. - is standard input.")
    ] = None,
    after: options.After = None,
    threads: Annotated[bool, typer.Option("--threads", help="Run each message on a fork that is kept.")] = False,
    stop: Annotated[str, typer.Option(help="Stop when all candidates have ended (all) or one has succeeded (first).")] = "all",
    judge: Annotated[str | None, typer.Option(help="Agent that chooses the best answer.")] = None,
    max_parallel: Annotated[int, typer.Option(min=1, help="Maximum number of messages to try at once.")] = MAX_PARALLEL,
    run_id: Annotated[
        str | None, typer.Option(help="Id of the fork job. A repetition with the same id returns the same job.")
    ] = None,
    agent: options.Agent = None,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Try up to 1,000 messages on the same snapshot of a thread. The command prints each answer and marks the winner."""
    given = [*(texts or []), *(line.rstrip("\n") for line in file or () if line.strip())]
    if not given:
        raise InvalidInputError("give the messages to try as TEXT, or with --from", field="messages")

    async def go() -> Exit:
        async with deployment.connect(context) as client:
            result = await client.fork_many(
                source,
                after,
                messages=given,
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
        for candidate in result.results if not as_json else ():
            mark = "*" if candidate.number == result.winner else " "
            where = f" {candidate.thread_id}" if candidate.thread_id else ""
            why = candidate.text if candidate.ok else candidate.stop_reason
            output.console().print(f"{mark} {candidate.number}{where}: {why}".replace("\n", "\n    "), markup=False)
            _print_error(candidate.error)
        if not as_json and (used := usage_words(result.usage)):
            output.notes().print(f"[bright_black]{escape(used)}[/]")
        return Exit.OK if any(candidate.ok for candidate in result.results) else Exit.FAILED_RUN

    raise typer.Exit(int(deployment.wait(go())))


def _print_error(error: ErrorInfo | None) -> None:
    """Print the error of a probe on standard error, with its traceback."""
    if error is not None:
        output.say_lines(error.traceback or error.headline)
