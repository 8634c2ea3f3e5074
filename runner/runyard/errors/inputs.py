"""Errors about invalid arguments."""

from __future__ import annotations

from .base import RunyardError


class InvalidInputError(RunyardError, ValueError):
    """An argument has an invalid value. The same call with this value would fail again."""

    code = "invalid_input"
    http_status = 400


class AppImportError(InvalidInputError):
    """The import of an app raised an error. ``details["traceback"]`` begins at the first frame of the app's own code."""

    code = "app_import_failed"


class InvalidCursorError(InvalidInputError):
    """The page cursor was not issued by this server."""

    code = "invalid_cursor"


class InvalidBlobError(InvalidInputError):
    """A message is invalid in the format that the caller named. ``details["path"]`` is the JSON pointer of the fault."""

    code = "invalid_blob"
    http_status = 422


class TooManyCandidatesError(InvalidInputError):
    """A fan-out has too many candidates. ``details["most"]`` is the maximum."""

    code = "too_many_candidates"
