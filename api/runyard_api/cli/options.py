"""Arguments and options that several commands share.

An option that is a setting of a deployment or process has an environment variable. An option of a single call has no
environment variable.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args

import typer

from runyard.errors import InvalidInputError

ThreadArg = Annotated[str, typer.Argument(help="Id of the thread.", show_default=False)]
RunArg = Annotated[str, typer.Argument(help="Id of the run.", show_default=False)]
RunIds = Annotated[
    list[str],
    typer.Argument(metavar="[THREAD] RUN", help="Id of the run or its beginning, or thread and run.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of entries to list.")]
Cursor = Annotated[str | None, typer.Option(help="Continue the list after this cursor.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the run and print its answer.")]
Stream = Annotated[bool, typer.Option("--stream", help="Print the answer while it is generated.")]
WaitTimeout = Annotated[float | None, typer.Option(min=0, help="Maximum seconds to wait. The run continues after this time.")]
After = Annotated[str | None, typer.Option(help="Cut after this run. Default: the last completed run.")]
Agent = Annotated[str | None, typer.Option(help="Name of the agent.")]


def choice(value: str, literal: Any, option: str) -> Any:
    """Return ``value`` if it is one of the values of ``literal``. Raises InvalidInputError with the ``option`` and the allowed
    values."""
    allowed = get_args(literal)
    if value not in allowed:
        raise InvalidInputError(f"{option} is one of {', '.join(allowed)}; got {value!r}")
    return value


ArqQueues = Annotated[
    list[str] | None,
    typer.Option(
        "--arq-queue",
        metavar="NAME[=TENANT]",
        help="Queue of arq whose jobs become runs of the tenant. May be repeated. Default: RUNYARD_ARQ_QUEUES.",
    ),
]
