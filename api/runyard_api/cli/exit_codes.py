"""The exit codes of the commands. Scripts distinguish outcomes by these codes."""

from __future__ import annotations

from enum import IntEnum

from runyard.domain.states import RunStatus
from runyard.errors import AppImportError, ConfigurationError, LoginRefusedError, RunyardError
from runyard.models import Run


class Exit(IntEnum):
    """The outcome of a command."""

    OK = 0
    FAILED_RUN = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    SUSPENDED = 6
    TIMEOUT = 7
    APP = 8
    INTERNAL = 70
    INTERRUPTED = 130


MEANING: dict[Exit, str] = {
    Exit.OK: "the command succeeded; if it waited for a run, the run has completed",
    Exit.FAILED_RUN: "the command waited for a run that failed, was cancelled or is dead; or a check of demo or doctor failed",
    Exit.USAGE: "the command line, a value in it, a setting, or the user, password or database of a URL is not valid",
    Exit.NOT_FOUND: "no such thread, run, message, request, agent, worker, key or webhook, or a result that expired",
    Exit.CONFLICT: "refused in the present state: a busy thread, a taken id, an answered request, a cut inside a tool cycle",
    Exit.UNAVAILABLE: "Postgres, Redis, the schema or a free place in a queue is missing; the same command may work later",
    Exit.SUSPENDED: "the run of a command that waits is suspended; answer with `runyard respond`",
    Exit.TIMEOUT: "the wait timed out; the run continues",
    Exit.APP: "the import of the app raised an error; its traceback is on standard error",
    Exit.INTERNAL: "an unexpected error",
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
    """The object that a command names does not exist, or the command cannot change it."""


def of_error(error: RunyardError) -> Exit:
    """Return the exit code of an error, by its class or by the HTTP status of its class."""
    if isinstance(error, AppImportError):
        return Exit.APP
    if isinstance(error, (ConfigurationError, LoginRefusedError)):
        return Exit.USAGE
    return _BY_HTTP_STATUS.get(error.http_status, Exit.INTERNAL)


def of_run(run: Run) -> Exit:
    """Return the exit code of a command that waited for ``run``."""
    if run.status is RunStatus.COMPLETED:
        return Exit.OK
    return Exit.SUSPENDED if run.status is RunStatus.SUSPENDED else Exit.FAILED_RUN
