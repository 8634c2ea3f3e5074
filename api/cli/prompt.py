"""prompt, respond, abort, cancel: the verbs that move a conversation."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from runner.errors import InvalidInputError
from runner.models import MultitaskStrategy, Priority

from . import options, output, session, waiting


def prompt(
    context: typer.Context,
    thread: options.ThreadArg,
    text: Annotated[str | None, typer.Argument(help="The message; without it the thread goes on from its last one.")] = None,
    run_id: Annotated[str | None, typer.Option(envvar="RUNYARD_RUN_ID", help="The run's id; repeating it is safe.")] = None,
    agent: options.Agent = None,
    queue: Annotated[str | None, typer.Option(envvar="RUNYARD_QUEUE", help="The queue to wait in.")] = None,
    parent: Annotated[str | None, typer.Option(envvar="RUNYARD_PARENT", help="Branch at this message.")] = None,
    parallel: Annotated[bool, typer.Option("--parallel", envvar="RUNYARD_PARALLEL", help="On a branch of its own.")] = False,
    priority: Annotated[str, typer.Option(envvar="RUNYARD_PRIORITY", help="high, normal or low.")] = "normal",
    delay: Annotated[float | None, typer.Option(envvar="RUNYARD_DELAY", min=0, help="Seconds until it is due.")] = None,
    run_at: Annotated[str | None, typer.Option(envvar="RUNYARD_RUN_AT", help="When it is due, ISO 8601.")] = None,
    timeout: Annotated[float | None, typer.Option(envvar="RUNYARD_TIMEOUT", help="Seconds for one attempt.")] = None,
    expires_in: Annotated[
        float | None, typer.Option(envvar="RUNYARD_EXPIRES_IN", help="Seconds in which it has to start, else it fails.")
    ] = None,
    max_attempts: Annotated[int, typer.Option(envvar="RUNYARD_MAX_ATTEMPTS", help="Attempts that may end in an error.")] = 1,
    strategy: Annotated[
        str, typer.Option(envvar="RUNYARD_STRATEGY", help="On a busy thread: enqueue, reject, interrupt or rollback.")
    ] = "enqueue",
    wait: options.Wait = False,
    stream: options.Stream = False,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Send a message to a thread, which is made if need be, and print the run's id or its answer."""

    async def go() -> None:
        async with session.connect(context) as client:
            handle = await client.enqueue(
                thread,
                text,
                run_id,
                agent=agent,
                queue=queue,
                parent_id=parent,
                parallel=parallel,
                priority=options.choice(priority, Priority, "--priority"),
                delay=delay,
                run_at=_moment(run_at),
                timeout=timeout,
                expires_in=expires_in,
                max_attempts=max_attempts,
                multitask_strategy=options.choice(strategy, MultitaskStrategy, "--strategy"),
            )
            await waiting.follow(client, handle, wait=wait, stream=stream, timeout=wait_timeout, as_json=as_json)

    session.wait(go())


def respond(
    context: typer.Context,
    thread: options.ThreadArg,
    answer: Annotated[str | None, typer.Argument(help="The answer: JSON if it is valid JSON, else text.")] = None,
    request: Annotated[str | None, typer.Option(envvar="RUNYARD_REQUEST", help="The request; default: the only one.")] = None,
    response_id: Annotated[str | None, typer.Option(envvar="RUNYARD_RESPONSE_ID", help="Yours; repeating it is safe.")] = None,
    approve: Annotated[bool | None, typer.Option("--approve/--deny", envvar="RUNYARD_APPROVE", help="Decide it.")] = None,
    answered_by: Annotated[
        str | None, typer.Option(envvar="RUNYARD_ANSWERED_BY", help="Who answers; over HTTP the API key.")
    ] = None,
    on_behalf_of: Annotated[str | None, typer.Option(envvar="RUNYARD_ON_BEHALF_OF", help="For whom.")] = None,
    wait: options.Wait = False,
    stream: options.Stream = False,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Answer the question or approval that a run waits for; the run goes on."""
    if (answer is None) == (approve is None):
        raise InvalidInputError("give an ANSWER, or --approve or --deny")

    async def go() -> None:
        async with session.connect(context) as client:
            answered = await client.respond(
                thread,
                _json_or_text(answer) if approve is None else approve,
                request,
                response_id,
                answered_by=answered_by,
                on_behalf_of=on_behalf_of,
            )
            if answered.run_id is None or not (wait or stream):
                if as_json:
                    output.print_json(answered)
                else:
                    output.print_line(f"answered {answered.request_id}")
                return
            handle = client.handle(thread, answered.run_id)
            await waiting.follow(client, handle, wait=wait, stream=stream, timeout=wait_timeout, as_json=as_json)

    session.wait(go())


def abort(
    context: typer.Context,
    thread: options.ThreadArg,
    reason: Annotated[str, typer.Argument(help="Why; the model will read it.", show_default=False)],
    run: Annotated[str | None, typer.Option(envvar="RUNYARD_RUN", help="Which run, where several wait.")] = None,
    as_json: options.Json = False,
) -> None:
    """Give up the run that waits for an answer; what it said stays in the conversation, with the reason."""

    async def go() -> None:
        async with session.connect(context) as client:
            aborted = await client.abort_pending(thread, reason, run_id=run)
            if as_json:
                output.print_json(aborted)
            else:
                output.print_line("nothing waits" if aborted is None else f"aborted {aborted.run_id}")

    session.wait(go())


def cancel(
    context: typer.Context,
    thread: options.ThreadArg,
    run: options.RunArg,
    keep: Annotated[
        bool, typer.Option("--keep", envvar="RUNYARD_KEEP", help="What it said stays in the conversation.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Cancel a run for good: nothing is written by it afterwards."""

    async def go() -> None:
        async with session.connect(context) as client:
            cancelled = await client.cancel(thread, run, keep=keep)
            if as_json:
                output.print_json(cancelled)
            else:
                asked = cancelled.cancel_requested_at is not None and not cancelled.ended
                output.console().print("cancelling: its worker stops it" if asked else str(cancelled.status))

    session.wait(go())


def _moment(value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInputError(f"--run-at takes a time such as 2030-01-31T09:00+01:00; got {value!r}") from None
    return moment if moment.tzinfo else moment.astimezone()


def _json_or_text(value: str | None) -> Any:
    try:
        return json.loads(value or "")
    except ValueError:
        return value
    except RecursionError:
        raise InvalidInputError("the answer is nested too deep to be read", field="answer") from None
