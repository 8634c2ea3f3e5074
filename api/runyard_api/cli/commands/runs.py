"""The commands ``runs list|show|candidates|watch|explain|attempts|dead|redrive|cancel|delete`` and ``requests``."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Annotated, Final

import typer

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.errors import InvalidInputError, ResultExpiredError, RunEndedError
from runyard.models import AttemptInfo, ErrorInfo, FanOutProgress, Run

from ... import pages, quantities
from .. import deployment, exit_codes, options
from ..view import live_run, output, timeline
from ..view.output import escape

MAX_NUMBERED_ATTEMPTS: Final = 1000
"""Maximum number of a run's first attempts that are shown with their numbers."""

app = typer.Typer(help="List, show, watch, redrive and cancel runs.", no_args_is_help=True)

_OUTCOME_STYLE = {"running": "cyan", "completed": "green", "suspended": "magenta", "failed": "red", "dead": "bold red"}


@app.command("list")
def list_(
    context: typer.Context,
    thread: Annotated[str | None, typer.Option(help="List only runs of this thread.")] = None,
    status: Annotated[str | None, typer.Option(help=f"List only runs in this status: {', '.join(RunStatus)}.")] = None,
    agent: options.Agent = None,
    limit: options.Limit = 30,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List runs."""
    if status is not None and status not in set(RunStatus):
        raise InvalidInputError(f"--status is one of {', '.join(RunStatus)}; got {status!r}")
    wanted = RunStatus(status) if status else None

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await pages.gather(
                lambda most, at: client.runs(thread, status=wanted, agent=agent, limit=most, cursor=at), limit, cursor
            )
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        output.table(
            ("RUN", "THREAD", "AGENT", "STATUS", "ATTEMPT", "ACCEPTED", "PROMPT"), map(_row, page.items), empty="no runs"
        )
        output.more(page.next)

    deployment.wait(go())


@app.command()
def show(
    context: typer.Context,
    ids: options.RunIds,
    limit: options.Limit = 200,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: its times, tokens, cost and tracebacks, and the timeline of its attempts, model requests, tools, steps,
    questions and waits."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            thread, run = await deployment.run_of(client, ids)
            found = await client.run(thread, run)
            sentence = await deployment.explain(context, client.handle(thread, run), stopped=found.stopped)
            shown = await client.timeline(thread, run, limit=limit, cursor=cursor)
            progress = await _progress(client, found)
            traces = any(entry.error is not None and entry.error.traceback is not None for entry in shown.entries)
            numbers = await _numbers(client, thread, run) if traces and not as_json else {}
        if as_json:
            more = {"progress": progress} if progress is not None else {}
            values = {"explanation": sentence, "timeline": shown.model_dump(exclude={"run"}), **more}
            output.print_json({**found.model_dump(), **values})
            return
        timeline.show(shown, sentence, _details(found, shown.error), numbers, progress)
        output.more(shown.next)

    deployment.wait(go())


@app.command()
def candidates(
    context: typer.Context,
    ids: options.RunIds,
    limit: options.Limit = 30,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List the candidates of a fan-out with status, tokens and answer. The fan-out can still be running. The tracebacks of
    errors follow below the list."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            thread, run = await deployment.run_of(client, ids)
            page = await pages.gather(lambda most, at: client.candidates(thread, run, limit=most, cursor=at), limit, cursor)
            progress = await client.fan_out_progress(thread, run)
        if as_json:
            output.print_json({"items": page.items, "next": page.next, "progress": progress})
            return
        rows = (
            (
                str(one.number),
                output.status(one.status),
                f"{one.usage.input_tokens}+{one.usage.output_tokens}" if one.usage.requests else "",
                escape(one.thread_id or ""),
                escape(_error(one.error) or output.shortened(one.text)),
            )
            for one in page.items
        )
        output.table(("N", "STATUS", "TOKENS", "THREAD", "ANSWER"), rows, empty="no candidates")
        for one in page.items:
            if one.error is not None and one.error.traceback is not None:
                output.print_line(f"candidate {one.number}:")
                output.print_lines(one.error.traceback)
        output.notes().print(f"[bright_black]{escape(timeline.progress_words(progress))}[/]")
        output.more(page.next)

    deployment.wait(go())


@app.command("watch")
def watch_(
    context: typer.Context,
    ids: options.RunIds,
    after: Annotated[str | None, typer.Option("--from", help="Start after the event with this id.")] = None,
    as_json: options.Json = False,
) -> None:
    """Print the events of a run, including tokens, until the run ends or waits for a human. With --json, print one event per
    line."""

    async def go() -> exit_codes.Exit:
        async with deployment.connect(context) as client:
            thread, run = await deployment.run_of(client, ids)
            events = client.stream(thread, run, after)
            if as_json:
                async for event in events:
                    output.print_json_line(event)
            else:
                await live_run.show(events, live_run.Printer(output.console(), output.console()))
            return exit_codes.of_run(await client.run(thread, run))

    raise typer.Exit(int(deployment.wait(go())))


@app.command()
def explain(context: typer.Context, ids: options.RunIds, as_json: options.Json = False) -> None:
    """Print one sentence about a run: why it waits, or what it does now."""

    async def go() -> tuple[str, str, str]:
        async with deployment.connect(context) as client:
            thread, run = await deployment.run_of(client, ids)
            return thread, run, await deployment.explain(context, client.handle(thread, run))

    thread, run, sentence = deployment.wait(go())
    if as_json:
        output.print_json({"thread_id": thread, "run_id": run, "explanation": sentence})
    else:
        output.print_line(sentence)


@app.command()
def attempts(
    context: typer.Context,
    ids: options.RunIds,
    limit: options.Limit = 30,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List the attempts of a run: worker, outcome, time and error. The tracebacks of the errors follow below the list."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            thread, run = await deployment.run_of(client, ids)
            page = await pages.gather(lambda most, at: client.attempts(thread, run, limit=most, cursor=at), limit, cursor)
            numbers = {} if as_json else await _numbers(client, thread, run)
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        rows = (
            (
                str(numbers.get(attempt.fence, "")),
                str(attempt.fence),
                f"[{_OUTCOME_STYLE.get(attempt.outcome, 'yellow')}]{attempt.outcome}[/]",
                quantities.clock(attempt.started_at),
                _lasted(attempt),
                escape(attempt.worker_id or ""),
                output.marked(escape(_error(attempt.error)), attempt.damaged),
            )
            for attempt in page.items
        )
        output.table(
            ("ATTEMPT", "FENCE", "OUTCOME", "STARTED", "LASTED", "WORKER", "ERROR"), rows, empty="no worker has taken it yet"
        )
        for attempt in page.items:
            if attempt.error is not None and attempt.error.traceback is not None:
                output.print_line(timeline.attempt_words(attempt.fence, numbers) + ":")
                output.print_lines(attempt.error.traceback)
        output.more(page.next)

    deployment.wait(go())


@app.command()
def dead(
    context: typer.Context, limit: options.Limit = 30, cursor: options.Cursor = None, as_json: options.Json = False
) -> None:
    """List dead runs with their last errors. A dead run crashed its workers too often. `runs redrive` queues a dead run
    again."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await pages.gather(lambda most, at: client.runs(status=RunStatus.DEAD, limit=most, cursor=at), limit, cursor)
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        rows = (
            (
                escape(run.run_id),
                escape(run.thread_id),
                escape(run.agent or ""),
                str(run.attempt),
                quantities.clock(run.finished_at),
                output.marked(escape(_error(run.error)), run.damaged),
            )
            for run in page.items
        )
        output.table(("RUN", "THREAD", "AGENT", "ATTEMPTS", "DIED", "ERROR"), rows, empty="no dead runs")
        output.more(page.next)

    deployment.wait(go())


@app.command()
def redrive(context: typer.Context, ids: options.RunIds, as_json: options.Json = False) -> None:
    """Queue a failed or dead run again."""

    async def go() -> Run:
        async with deployment.connect(context) as client:
            return await client.redrive(*await deployment.run_of(client, ids))

    found = deployment.wait(go())
    if as_json:
        output.print_json(found)
    else:
        output.console().print(str(found.status))


@app.command()
def cancel(
    context: typer.Context,
    ids: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Ids of the runs, or their beginnings.", show_default=False)
    ],
    keep: Annotated[bool, typer.Option("--keep", help="Keep the messages of the runs in their conversations.")] = False,
    as_json: options.Json = False,
) -> None:
    """Cancel runs. A cancelled run stores nothing more. If one of the ids names no run, the command cancels no run. The command
    reports runs that have ended, and cancels the others."""

    async def go() -> list[tuple[Run, RunEndedError | None]]:
        async with deployment.connect(context) as client:
            named = [await client.find_run(each) for each in ids]
            return [await _cancelled(client, run, keep) for run in {(r.thread_id, r.run_id): r for r in named}.values()]

    outcomes = deployment.wait(go())
    if as_json:
        output.print_json([run for run, _ in outcomes])
    else:
        for run, refusal in outcomes:
            words = output.cancelled_words(run) if refusal is None else f"not cancelled: {refusal.message}"
            output.print_line(f"{run.run_id}  {words}")
    if any(refusal is not None for _, refusal in outcomes):
        raise typer.Exit(int(exit_codes.Exit.CONFLICT))


@app.command()
def delete(context: typer.Context, ids: options.RunIds) -> None:
    """Delete the messages and the result of one run. The run must be failed, dead, cancelled without --keep, or an ended fork
    job. Later runs do not see the messages of such a run."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            await client.delete_run(*await deployment.run_of(client, ids))

    deployment.wait(go())
    output.console().print("deleted")


def requests(
    context: typer.Context,
    thread: Annotated[str | None, typer.Option(help="List only requests of this thread.")] = None,
    answered: Annotated[bool, typer.Option("--all", help="List answered requests too.")] = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List the questions and approvals that wait for a human."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await pages.gather(
                lambda most, at: client.requests(thread, pending=not answered, limit=most, cursor=at), limit, cursor
            )
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        rows = (
            (
                escape(request.request_id),
                escape(request.thread_id or ""),
                escape(request.agent or ""),
                request.kind,
                quantities.age(request.created_at),
                output.marked(escape(output.question(request)), request.damaged),
            )
            for request in page.items
        )
        output.table(("REQUEST", "THREAD", "AGENT", "KIND", "AGE", "QUESTION"), rows, empty="no requests wait for a human")
        output.more(page.next)

    deployment.wait(go())


async def _cancelled(client: Client, run: Run, keep: bool) -> tuple[Run, RunEndedError | None]:
    """Cancel a run. Return the run, and the refusal if the run has ended."""
    try:
        return await client.cancel(run.thread_id, run.run_id, keep=keep), None
    except RunEndedError as refusal:
        return await client.run(run.thread_id, run.run_id), refusal


async def _progress(client: Client, run: Run) -> FanOutProgress | None:
    """Return the progress of a fan-out. Return None in two cases: the run is no fan-out, or the result of the fan-out has
    expired."""
    if run.kind == "fork_many":
        with suppress(ResultExpiredError):
            return await client.fan_out_progress(run.thread_id, run.run_id)
    return None


async def _numbers(client: Client, thread: str, run: str) -> dict[int, int]:
    """Return the numbers of a run's attempts by their fences. The first attempt has the number 1."""
    page = await pages.gather(lambda most, at: client.attempts(thread, run, limit=most, cursor=at), MAX_NUMBERED_ATTEMPTS)
    return {attempt.fence: number for number, attempt in enumerate(page.items, 1)}


def _error(error: ErrorInfo | None) -> str:
    return error.headline if error else ""


def _lasted(attempt: AttemptInfo) -> str:
    if attempt.started_at is None:
        return ""
    if attempt.ended_at is None:
        return quantities.age(attempt.started_at)
    return quantities.duration((attempt.ended_at - attempt.started_at).total_seconds())


def _row(run: Run) -> tuple[str, ...]:
    return (
        escape(run.run_id),
        escape(run.thread_id),
        escape(run.agent or ""),
        output.status(run.status),
        str(run.attempt),
        quantities.clock(run.accepted_at),
        output.marked(escape(output.summary(run.input) if run.kind == "prompt" else f"({run.kind})"), run.damaged),
    )


def _details(run: Run, error: ErrorInfo | None) -> list[tuple[str, str]]:
    pairs = [
        ("kind", run.kind),
        ("agent", run.agent or ""),
        ("queue", run.queue),
        ("prompt", output.summary(run.input, 200)),
        ("attempt", str(run.attempt)),
        ("worker", run.worker_id or ""),
        ("accepted", quantities.clock(run.accepted_at)),
        ("started", quantities.clock(run.started_at)),
        ("suspended", quantities.clock(run.suspended_at)),
        ("finished", quantities.clock(run.finished_at)),
        ("metadata", json.dumps(run.metadata, ensure_ascii=False) if run.metadata else ""),
        ("error", _error(error)),
        ("deleted", quantities.clock(run.deleted_at)),
    ]
    return [(name, value) for name, value in pairs if value]
