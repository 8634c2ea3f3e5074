"""The commands ``prompt``, ``respond``, ``abort`` and ``cancel``."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.errors import InvalidInputError
from runyard.models import ROOT_ID, MultitaskStrategy, Priority

from .. import deployment, options, values
from ..view import output, waiting


def prompt(
    context: typer.Context,
    thread: options.ThreadArg,
    text: Annotated[str | None, typer.Argument(help="The message. Without it the run continues from the last message.")] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Id of the run. A repetition with the same id returns the same run.")
    ] = None,
    agent: options.Agent = None,
    queue: Annotated[str | None, typer.Option(help="Queue in which the run waits.")] = None,
    parent: Annotated[
        str | None, typer.Option(help=f"Continue from this message, on a branch. {ROOT_ID}: begin a new tree.")
    ] = None,
    parallel: Annotated[
        bool, typer.Option("--parallel", help="Run on a branch of its own, without waiting for other runs.")
    ] = False,
    priority: Annotated[str, typer.Option(help="Priority: high, normal or low.")] = "normal",
    delay: Annotated[float | None, typer.Option(min=0, help="Seconds until the run is due.")] = None,
    run_at: Annotated[str | None, typer.Option(help="Time at which the run is due, in ISO 8601.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one attempt may take.")] = None,
    expires_in: Annotated[float | None, typer.Option(help="Seconds after which the run fails if it has not started.")] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            help="Number of errors after which the run fails. Default: only temporary errors of a provider are retried."
        ),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="What to do if the thread is busy: enqueue, reject, interrupt or rollback.")
    ] = "enqueue",
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE|JSON",
            help="Metadata of the run, as KEY=VALUE or a JSON object. May be repeated. Webhooks and `runs show` contain it.",
        ),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="URL that gets a signed POST when the run has ended.")
    ] = None,
    wait: options.Wait = False,
    stream: options.Stream = False,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Send a message to a thread and print the id of the run, or its answer. The thread is created if it does not exist."""

    async def go() -> None:
        async with deployment.connect(context) as client:
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
                metadata=values.metadata(metadata or [], "--metadata"),
                webhook=webhook,
            )
            await waiting.follow(context, client, handle, wait=wait, stream=stream, timeout=wait_timeout, as_json=as_json)

    deployment.wait(go())


def respond(
    context: typer.Context,
    thread: options.ThreadArg,
    answer: Annotated[str | None, typer.Argument(help="The answer, as JSON or as text.")] = None,
    request: Annotated[str | None, typer.Option(help="Id of the request. Default: the only pending request.")] = None,
    response_id: Annotated[
        str | None, typer.Option(help="Id of the answer. A repetition with the same id changes nothing.")
    ] = None,
    approve: Annotated[bool | None, typer.Option("--approve/--deny", help="Approve or deny the tool call.")] = None,
    answered_by: Annotated[
        str | None, typer.Option(help="Name of the person who answers. Over HTTP: name of the API key.")
    ] = None,
    on_behalf_of: Annotated[str | None, typer.Option(help="Name of the person on whose behalf the answer is given.")] = None,
    wait: options.Wait = False,
    stream: options.Stream = False,
    wait_timeout: options.WaitTimeout = None,
    as_json: options.Json = False,
) -> None:
    """Answer the question or approval for which a run waits. The run is queued again."""
    if (answer is None) == (approve is None):
        raise InvalidInputError("give an ANSWER, or --approve or --deny")

    async def go() -> None:
        async with deployment.connect(context) as client:
            suspended_at = await _suspensions(client, thread) if stream else {}
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
            await waiting.follow(
                context,
                client,
                client.handle(thread, answered.run_id),
                wait=wait,
                stream=stream,
                timeout=wait_timeout,
                as_json=as_json,
                after=suspended_at.get(answered.run_id),
            )

    deployment.wait(go())


def signal(
    context: typer.Context,
    thread: options.ThreadArg,
    name: Annotated[str, typer.Argument(help="Name for which a run waits.")],
    value: Annotated[str | None, typer.Argument(help="The value, as JSON or as text. Default: null.")] = None,
    signal_id: Annotated[
        str | None, typer.Option(help="Id of the signal. A repetition with the same id changes nothing.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Send a signal to a thread. A run that waits for the signal continues. Without such a run, the thread keeps the signal."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            sent = await client.signal(thread, name, None if value is None else _json_or_text(value), signal_id=signal_id)
            if as_json:
                output.print_json(sent)
            else:
                taken = f"taken by run {sent.run_id}" if sent.run_id is not None else "no run waits for it yet"
                output.print_line(f"sent {sent.signal_id}: {taken}")

    deployment.wait(go())


def abort(
    context: typer.Context,
    thread: options.ThreadArg,
    reason: Annotated[str, typer.Argument(help="The reason. The model will read it.", show_default=False)],
    run: Annotated[str | None, typer.Option(help="Id of the run, if several wait.")] = None,
    as_json: options.Json = False,
) -> None:
    """Cancel the run that waits for an answer. The messages of the run stay in the conversation, with the reason."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            aborted = await client.abort_pending(thread, reason, run_id=run)
            if as_json:
                output.print_json(aborted)
            else:
                output.print_line("nothing waits" if aborted is None else f"aborted {aborted.run_id}")

    deployment.wait(go())


def cancel(
    context: typer.Context,
    thread: options.ThreadArg,
    run: options.RunArg,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the messages of the run in the conversation.")] = False,
    as_json: options.Json = False,
) -> None:
    """Cancel a run. After this command, the run stores no messages."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            cancelled = await client.cancel(thread, run, keep=keep)
            if as_json:
                output.print_json(cancelled)
            else:
                output.print_line(output.cancelled_words(cancelled))

    deployment.wait(go())


async def _suspensions(client: Client, thread: str) -> dict[str, str | None]:
    """Find the runs of the thread that wait for an answer. Return a map from the id of each run to the id of its last event.
    The command that started the run has already printed this event.
    """
    page = await client.requests(thread)
    runs = [await client.run(thread, run_id) for run_id in {r.run_id: None for r in page.items} if run_id is not None]
    return {run.run_id: run.event_id for run in runs if run.status is RunStatus.SUSPENDED}


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
