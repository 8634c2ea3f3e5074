"""Every error that runyard raises, as one tree.

RunyardError
├── InvalidInputError (ValueError)      InvalidCursorError, InvalidRequestError, TooManyCandidatesError
├── AccessError                         UnauthenticatedError, ForbiddenError, RateLimitedError
├── RequestError                        RouteNotFoundError, MethodNotAllowedError, RequestTooLargeError, HeadersTooLargeError,
│                                       RequestTimeoutError, UnsupportedMediaTypeError: what the HTTP API refuses before it
│                                       looks at the content
├── CapabilityMissingError              is a CheckpointerError; ExtraMissingError
├── BackendUnavailableError             Postgres or Redis cannot be reached; the call may be repeated; ServerBusyError
├── SchemaError                         SchemaUninitialized, SchemaMismatch
├── WorkerDeadError, WorkerNotFoundError, LockLostError
└── CheckpointerError
    ├── ThreadError                     ThreadNotFoundError, ThreadAlreadyExistsError, ThreadBusyError,
    │                                   PreconditionFailedError
    ├── MessageError                    MessageNotFoundError, LeafMovedError, MessageTooLargeError, FetchNotAllowedError
    ├── RunError                        RunNotFoundError, RunConflictError, RunNotCompletedError, RunAlreadyClaimedError,
    │                                   RunAlreadyCompletedError, RunNotClaimedError, NothingToRunError, StaleFenceError,
    │                                   CancelRequestedError, IncompleteToolCycleError, RunEndedError, RunInUseError,
    │                                   ResultExpiredError, AgentNotFoundError, StepUnknownError, QueueFullError,
    │                                   BudgetExceededError, RunTimeoutError, RunExpiredError, AgentCancelledError,
    │                                   VersionMismatchError
    ├── DataCorruptedError
    ├── ForkBoundaryError
    ├── CursorExpiredError
    └── HitlError                       HitlAmbiguousError, HitlNoPendingRequestError, HitlStaleAnswerError,
                                        HitlInvalidAnswerError, HitlAlreadyAnsweredError, HitlNotAllowedError (RuntimeError),
                                        HitlBindingError (ValueError), HitlTimeoutError, HitlCancelledError,
                                        HitlRequestNotFoundError

Each class has a stable ``code`` (used on the wire, in metrics and in the database) and the ``http_status`` that the HTTP API
answers. The keyword arguments of an error are its ``details``: JSON values that a program can act on. Errors survive pickling
and cross the wire through :func:`to_dict` and :func:`from_dict`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RunyardError(Exception):
    """Base of all errors. ``details`` holds JSON values; ``str(error)`` says what was wrong and what to do."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON: ``{"code", "message", "details"}``."""
        return {"code": self.code, "message": self.message, "details": self.details}


class InvalidInputError(RunyardError, ValueError):
    """An argument has a value that can never be accepted."""

    code = "invalid_input"
    http_status = 400


class InvalidCursorError(InvalidInputError):
    """A page cursor that this server did not issue."""

    code = "invalid_cursor"


class TooManyCandidatesError(InvalidInputError):
    """A fan-out has more candidates than one job takes; ``details["most"]`` says how many."""

    code = "too_many_candidates"


class InvalidRequestError(InvalidInputError):
    """A request to the HTTP API does not fit its schema; ``details["errors"]`` names each field and what is wrong with it."""

    code = "invalid_request"
    http_status = 422


class AccessError(RunyardError):
    """Base of what the HTTP API refuses for who asks."""

    code = "access_denied"
    http_status = 403


class UnauthenticatedError(AccessError):
    """The request has no valid API key or token."""

    code = "unauthenticated"
    http_status = 401


class ForbiddenError(AccessError):
    """The API key or token lacks a scope, or is for something else."""

    code = "forbidden"


class RateLimitedError(AccessError):
    """A key asks too often or holds too many streams, or too many invalid keys come from an address; wait ``retry_after``.

    ``details["retry_after"]`` is in seconds.
    """

    code = "rate_limited"
    http_status = 429


class RequestError(RunyardError):
    """Base of what the HTTP API refuses before it looks at the content of a request."""

    code = "bad_request"
    http_status = 400


class RouteNotFoundError(RequestError):
    """The HTTP API has no such path."""

    code = "route_not_found"
    http_status = 404


class MethodNotAllowedError(RequestError):
    """The path exists and has no such method; ``details["allow"]`` lists those that it has."""

    code = "method_not_allowed"
    http_status = 405


class RequestTimeoutError(RequestError):
    """The body of the request did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class RequestTooLargeError(RequestError):
    """The request has a larger body than the HTTP API takes."""

    code = "request_too_large"
    http_status = 413


class HeadersTooLargeError(RequestError):
    """The request has more or larger headers than the HTTP API takes."""

    code = "headers_too_large"
    http_status = 431


class UnsupportedMediaTypeError(RequestError):
    """The body is not declared as application/json."""

    code = "unsupported_media_type"
    http_status = 415


class BackendUnavailableError(RunyardError):
    """Postgres or Redis did not answer; nothing is known to be half-written and the call may be repeated with the same ids."""

    code = "backend_unavailable"
    http_status = 503


class ServerBusyError(BackendUnavailableError):
    """A server of the HTTP API has as many connections as it takes; it has read nothing, and the call may be repeated."""

    code = "server_busy"


class SchemaError(RunyardError):
    """The database schema and this code do not fit."""

    code = "schema_error"
    http_status = 503


class SchemaUninitialized(SchemaError):
    """The database has no runyard schema; run ``runyard migrate``."""

    code = "schema_uninitialized"


class SchemaMismatch(SchemaError):
    """The schema is older than this code needs, or no longer admits code this old."""

    code = "schema_mismatch"


class WorkerDeadError(RunyardError):
    """This worker was declared dead; it must stop its attempts and register under a new id."""

    code = "worker_dead"
    http_status = 409


class WorkerNotFoundError(RunyardError):
    """No worker is known by this id."""

    code = "worker_not_found"
    http_status = 404


class LockLostError(RunyardError):
    """A Redis lock is no longer held with the token that was given."""

    code = "lock_lost"
    http_status = 409


class CheckpointerError(RunyardError):
    """Base of everything that a store refuses."""

    code = "checkpointer_error"
    http_status = 409


class CapabilityMissingError(CheckpointerError):
    """The backend lacks an optional method (semantics: R14)."""

    code = "capability_missing"
    http_status = 501


class ExtraMissingError(CapabilityMissingError):
    """An optional dependency is not installed; the message says what to install."""

    code = "extra_missing"


class ThreadError(CheckpointerError):
    """Base of errors about a thread."""


class ThreadNotFoundError(ThreadError):
    """No such thread for this tenant."""

    code = "thread_not_found"
    http_status = 404


class ThreadAlreadyExistsError(ThreadError):
    """The id is taken by a thread that is not the one asked for."""

    code = "thread_already_exists"


class ThreadBusyError(ThreadError):
    """A run of the thread is live, and the call cannot wait for it."""

    code = "thread_busy"


class PreconditionFailedError(ThreadError):
    """The thread has changed since the caller read it."""

    code = "precondition_failed"
    http_status = 412


class MessageError(CheckpointerError):
    """Base of errors about a message."""


class MessageNotFoundError(MessageError):
    """No such message on this thread."""

    code = "message_not_found"
    http_status = 404


class LeafMovedError(MessageError):
    """``expected_leaf`` is no longer the last message."""

    code = "leaf_moved"


class MessageTooLargeError(MessageError):
    """A message is larger than the configured limit."""

    code = "message_too_large"
    http_status = 413


class FetchNotAllowedError(MessageError):
    """A message names a file that would have to be fetched, and the operator allows no fetching from ``details["host"]``."""

    code = "fetch_not_allowed"
    http_status = 422


class RunError(CheckpointerError):
    """Base of errors about a run."""


class RunNotFoundError(RunError):
    """No such run on this thread."""

    code = "run_not_found"
    http_status = 404


class RunConflictError(RunError):
    """The run id is taken by a different request; ``details["differs"]`` names the fields."""

    code = "run_conflict"


class RunNotCompletedError(RunError):
    """The run is unknown, still open, or ended without completing, so it is no boundary for a fork."""

    code = "run_not_completed"


class RunAlreadyClaimedError(RunError):
    """The run is claimed by somebody else and not finished."""

    code = "run_already_claimed"


class RunAlreadyCompletedError(RunError):
    """The run is finished; nothing can be added to it."""

    code = "run_already_completed"


class RunNotClaimedError(RunError):
    """The run was never claimed."""

    code = "run_not_claimed"


class RunEndedError(RunError):
    """The run ended, so it cannot take the transition that was asked for."""

    code = "run_ended"


class RunInUseError(RunError):
    """The run cannot be deleted: it has not ended, it is part of a context, or another run goes on from its messages."""

    code = "run_in_use"


class NothingToRunError(RunError):
    """There is no message to answer at the leaf."""

    code = "nothing_to_run"


class StaleFenceError(RunError):
    """Another attempt holds the run; this one must stop (invariant I2)."""

    code = "stale_fence"


class CancelRequestedError(RunError):
    """The run was asked to cancel; no write of it is accepted any more (invariant I8)."""

    code = "cancel_requested"


class IncompleteToolCycleError(RunError):
    """A tool call has no result directly after it, or a result has no call (rule R5)."""

    code = "incomplete_tool_cycle"


class ResultExpiredError(RunError):
    """The result is gone: a job's was kept for its time, or the run was deleted."""

    code = "result_expired"
    http_status = 410


class AgentNotFoundError(RunError):
    """No such agent in this App."""

    code = "agent_not_found"
    http_status = 404


class StepUnknownError(RunError):
    """An earlier attempt started the step and did not finish it; whether it took effect is unknown."""

    code = "step_unknown"


class RunExpiredError(RunError):
    """The run did not start in time: within its ``expires_in``, or the limit ``queued_seconds``."""

    code = "run_expired"
    http_status = 504


class RunTimeoutError(RunError):
    """An attempt took longer than the run's ``timeout``."""

    code = "run_timeout"
    http_status = 504


class AgentCancelledError(RunError):
    """The agent ended by a cancellation that nobody asked for."""

    code = "agent_cancelled"
    http_status = 500


class VersionMismatchError(RunError):
    """Another version of the app began the run, and this one is not to continue it."""

    code = "version_mismatch"


class BudgetExceededError(RunError):
    """The run or its thread has used up a budget; ``details`` say which, of how much, and how much was used."""

    code = "budget_exceeded"


class QueueFullError(RunError):
    """A limit on queued runs is reached; ``details["retry_after"]`` is in seconds."""

    code = "queue_full"
    http_status = 429


class DataCorruptedError(CheckpointerError):
    """A stored row cannot be decoded; ``details`` name the thread and the row. Something else wrote to the database."""

    code = "data_corrupted"
    http_status = 500


class ForkBoundaryError(CheckpointerError):
    """The cut is inside a tool cycle or a run; ``details["before"]`` and ``["after"]`` name the nearest valid message ids."""

    code = "fork_boundary"


class CursorExpiredError(CheckpointerError):
    """Entries of the feed after the cursor were kept for their time and are gone."""

    code = "cursor_expired"
    http_status = 410


class HitlError(CheckpointerError):
    """Base of errors about human-in-the-loop requests."""


class HitlAmbiguousError(HitlError):
    """Several requests are pending; name one of ``details["request_ids"]``."""

    code = "hitl_ambiguous"


class HitlNoPendingRequestError(HitlError):
    """Nothing is pending on the thread."""

    code = "hitl_no_pending_request"
    http_status = 404


class HitlRequestNotFoundError(HitlError):
    """No such request."""

    code = "hitl_request_not_found"
    http_status = 404


class HitlStaleAnswerError(HitlError):
    """The request named is not the one that waits; details hold both ids."""

    code = "hitl_stale_answer"


class HitlInvalidAnswerError(HitlError):
    """The answer does not fit the request's schema; the request stays pending."""

    code = "hitl_invalid_answer"
    http_status = 422


class HitlAlreadyAnsweredError(HitlError):
    """The request was answered before, differently."""

    code = "hitl_already_answered"


class HitlNotAllowedError(HitlError, RuntimeError):
    """An agent that can ask a human cannot run where nobody can answer."""

    code = "hitl_not_allowed"
    http_status = 422


class HitlBindingError(HitlError, ValueError):
    """A checkpointed channel is bound to one run id, and the prompt gave another or none; details hold both (semantics: H2)."""

    code = "hitl_binding"
    http_status = 400


class HitlTimeoutError(HitlError):
    """Nobody answered in time, and the question was to fail then (semantics: H7)."""

    code = "hitl_timeout"


class HitlCancelledError(HitlError):
    """Somebody said that the question will not be answered."""

    code = "hitl_cancelled"


def _tree(cls: type[RunyardError]) -> list[type[RunyardError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _tree(child))]


BY_CODE: dict[str, type[RunyardError]] = {}
for _cls in _tree(RunyardError):
    BY_CODE.setdefault(_cls.code, _cls)


def from_dict(data: dict[str, Any]) -> RunyardError:
    """Build the error that :meth:`RunyardError.to_dict` described; an unknown code gives a plain :class:`RunyardError`."""
    cls = BY_CODE.get(data.get("code", ""), RunyardError)
    return cls(data.get("message", ""), **(data.get("details") or {}))
