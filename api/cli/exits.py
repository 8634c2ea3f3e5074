"""Exit codes: what a script can tell apart without reading text."""

from __future__ import annotations

from enum import IntEnum

from runner.errors import RunyardError
from runner.models import Run
from runner.states import RunStatus


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED_RUN = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    SUSPENDED = 6
    TIMEOUT = 7
    INTERNAL = 70
    INTERRUPTED = 130


MEANING: dict[Exit, str] = {
    Exit.OK: "done; a run that was waited for completed",
    Exit.FAILED_RUN: "the run that was waited for failed, was cancelled or is dead; demo or doctor found something wrong",
    Exit.USAGE: "the command line or a value in it is not valid",
    Exit.NOT_FOUND: "no such thread, run, message, request, agent, worker, key or webhook, or a result that expired",
    Exit.CONFLICT: "refused in the present state: busy thread, id taken, already answered, not a boundary for a fork",
    Exit.UNAVAILABLE: "Postgres, Redis, the schema or a free place in a queue is missing; the same command may work later",
    Exit.SUSPENDED: "the run that was waited for asks a human; answer with `runyard respond`",
    Exit.TIMEOUT: "the time given for waiting is over; the run goes on",
    Exit.INTERNAL: "an error that runyard has no name for",
    Exit.INTERRUPTED: "Ctrl-C",
}

_BY_HTTP_STATUS = {
    400: Exit.USAGE,
    401: Exit.USAGE,
    403: Exit.USAGE,
    404: Exit.NOT_FOUND,
    405: Exit.USAGE,
    408: Exit.UNAVAILABLE,
    409: Exit.CONFLICT,
    410: Exit.NOT_FOUND,
    412: Exit.CONFLICT,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
    429: Exit.UNAVAILABLE,
    431: Exit.USAGE,
    501: Exit.USAGE,
    503: Exit.UNAVAILABLE,
    504: Exit.TIMEOUT,
}


class MissingError(Exception):
    """There is no such thing, or nothing about it that the command could change."""


def of_error(error: RunyardError) -> Exit:
    """The exit code of an error, from the HTTP status of its class."""
    return _BY_HTTP_STATUS.get(error.http_status, Exit.INTERNAL)


def of_run(run: Run) -> Exit:
    """The exit code of a run that was waited for."""
    if run.status is RunStatus.COMPLETED:
        return Exit.OK
    return Exit.SUSPENDED if run.status is RunStatus.SUSPENDED else Exit.FAILED_RUN
