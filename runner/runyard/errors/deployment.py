"""Errors about servers, database schemas and workers."""

from __future__ import annotations

from .base import RunyardError


class ConfigurationError(RunyardError):
    """A setting of this process has no value or an invalid value. The error's text never contains the value.

    ``details["variables"]``: the environment variables to set.
    """

    code = "configuration_error"


class BackendUnavailableError(RunyardError):
    """Postgres or Redis did not answer. The write of the call was stored completely or not at all.

    The call may be repeated with the same ids.
    """

    code = "backend_unavailable"
    http_status = 503


class LoginRefusedError(BackendUnavailableError):
    """Postgres or Redis refuses the user, the password or the database of the URL. A starting worker exits with this error.

    A process that has already started waits until the server accepts its login again.
    """

    code = "login_refused"


class LockedError(BackendUnavailableError):
    """Another transaction holds a row lock that the call needs. The call stored nothing. Repeat the call later."""

    code = "locked"


class ServerBusyError(BackendUnavailableError):
    """A process of the HTTP API has no free connection and did not read the request. The call may be repeated."""

    code = "server_busy"


class SchemaError(RunyardError):
    """This code cannot run on the database schema."""

    code = "schema_error"
    http_status = 503


class SchemaUninitialized(SchemaError):
    """The database has no runyard schema. Run ``runyard migrate``."""

    code = "schema_uninitialized"


class SchemaMismatch(SchemaError):
    """The schema is too old for this code, or this code is too old for the schema."""

    code = "schema_mismatch"


class SchemaRightsError(SchemaError):
    """The role of Postgres may not call functions that this code calls. Run ``runyard migrate --grant-to ROLE``.

    ``details["role"]``: the role. ``details["functions"]``: the functions with their arguments, as in ``GRANT EXECUTE``.
    """

    code = "schema_rights"


class WorkerDeadError(RunyardError):
    """This worker was declared dead. The worker must stop its attempts and register under a new id."""

    code = "worker_dead"
    http_status = 409


class WorkerNotFoundError(RunyardError):
    """There is no worker with this id."""

    code = "worker_not_found"
    http_status = 404
