"""Arguments and options that several commands share. Every option has a twin in the environment, named in its help."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from runner.errors import InvalidInputError

ThreadArg = Annotated[str, typer.Argument(help="The thread's id.", show_default=False)]
RunArg = Annotated[str, typer.Argument(help="The run's id.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", envvar="RUNYARD_JSON", help="Print JSON.")]
Limit = Annotated[int, typer.Option(envvar="RUNYARD_LIMIT", min=1, max=1000, help="How many to list.")]
Cursor = Annotated[str | None, typer.Option(envvar="RUNYARD_CURSOR", help="Continue a list from here.")]
Wait = Annotated[bool, typer.Option("--wait", envvar="RUNYARD_WAIT", help="Wait for the run and print its answer.")]
Stream = Annotated[bool, typer.Option("--stream", envvar="RUNYARD_STREAM", help="Print the answer as it is made.")]
WaitTimeout = Annotated[
    float | None, typer.Option(envvar="RUNYARD_WAIT_TIMEOUT", min=0, help="Seconds to wait at most; the run goes on.")
]
After = Annotated[str | None, typer.Option(envvar="RUNYARD_AFTER", help="Cut after this run; default: the last completed one.")]
Agent = Annotated[str | None, typer.Option(envvar="RUNYARD_AGENT", help="The agent that runs it.")]


def choice(value: str, literal: Any, option: str) -> Any:
    """``value`` if it is one of the literal's. Raises InvalidInputError that names the ``option``."""
    allowed = get_args(literal)
    if value not in allowed:
        raise InvalidInputError(f"{option} is one of {', '.join(allowed)}; got {value!r}")
    return value
