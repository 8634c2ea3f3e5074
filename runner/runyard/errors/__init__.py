"""Every error that runyard raises, as one tree.

RunyardError
├── InvalidInputError (ValueError)      AppImportError, InvalidBlobError, InvalidCursorError, InvalidRequestError,
│                                       TooManyCandidatesError
├── AccessError                         UnauthenticatedError, ForbiddenError, RateLimitedError
├── RequestError                        RouteNotFoundError, MethodNotAllowedError, RequestTooLargeError, HeadersTooLargeError,
│                                       RequestTimeoutError, UnsupportedMediaTypeError: refusals of the HTTP API before it
│                                       reads the content
├── CapabilityMissingError              ExtraMissingError; derived from CheckpointerError
├── ConfigurationError
├── BackendUnavailableError             LoginRefusedError, LockedError, ServerBusyError
├── SchemaError                         SchemaUninitialized, SchemaMismatch, SchemaRightsError
├── WorkerDeadError, WorkerNotFoundError
└── CheckpointerError
    ├── ThreadError                     ThreadNotFoundError, ThreadAlreadyExistsError, ThreadBusyError,
    │                                   PreconditionFailedError
    ├── MessageError                    MessageNotFoundError, LeafMovedError, MessageTooLargeError, FetchNotAllowedError
    ├── RunError                        RunNotFoundError, RunAmbiguousError, RunConflictError, RunNotCompletedError,
    │                                   CutRunNotFoundError (RunNotCompletedError),
    │                                   RunAlreadyClaimedError, RunAlreadyCompletedError, RunNotClaimedError,
    │                                   NothingToRunError, StaleFenceError,
    │                                   CancelRequestedError, IncompleteToolCycleError, RunEndedError, RunInUseError,
    │                                   ResultExpiredError, AgentNotFoundError, StepUnknownError, QueueFullError,
    │                                   BudgetExceededError, RunTimeoutError, RunExpiredError, AgentCancelledError,
    │                                   VersionMismatchError, ChildFailedError, ChildDeadlockError, TooManyChildrenError
    ├── DataCorruptedError
    ├── ForkBoundaryError
    ├── CheckpointMissingError
    ├── CursorExpiredError
    ├── HitlError                       HitlAmbiguousError, HitlNoPendingRequestError, HitlStaleAnswerError,
    │                                   HitlInvalidAnswerError, HitlAlreadyAnsweredError, HitlNotAllowedError (RuntimeError),
    │                                   HitlBindingError (ValueError), HitlTimeoutError, HitlCancelledError,
    │                                   HitlDeniedError, HitlRequestNotFoundError
    ├── SignalConflictError, TooManySignalsError, SignalInvalidError, SignalTimeoutError (TimeoutError)
    └── WebhookNotFoundError, WebhookDeliveryNotFoundError, WebhookConflictError, TooManyWebhooksError

Each class has a stable ``code``. The HTTP API, metrics and the database use this code. ``http_status`` is the status of the
HTTP API's answer. The keyword arguments of an error become its ``details``. The details are JSON values for use by a program.
An error can be pickled. The method ``to_dict`` returns an error as JSON. :func:`from_dict` makes the error again from this
JSON.
"""

from __future__ import annotations

from .base import BY_CODE, RunyardError, from_dict
from .deployment import (
    BackendUnavailableError,
    ConfigurationError,
    LockedError,
    LoginRefusedError,
    SchemaError,
    SchemaMismatch,
    SchemaRightsError,
    SchemaUninitialized,
    ServerBusyError,
    WorkerDeadError,
    WorkerNotFoundError,
)
from .hitl import (
    HitlAlreadyAnsweredError,
    HitlAmbiguousError,
    HitlBindingError,
    HitlCancelledError,
    HitlDeniedError,
    HitlError,
    HitlInvalidAnswerError,
    HitlNoPendingRequestError,
    HitlNotAllowedError,
    HitlRequestNotFoundError,
    HitlStaleAnswerError,
    HitlTimeoutError,
)
from .http_api import (
    AccessError,
    ForbiddenError,
    HeadersTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    RateLimitedError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    RouteNotFoundError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
)
from .inputs import AppImportError, InvalidBlobError, InvalidCursorError, InvalidInputError, TooManyCandidatesError
from .runs import (
    AgentCancelledError,
    AgentNotFoundError,
    BudgetExceededError,
    CancelRequestedError,
    ChildDeadlockError,
    ChildFailedError,
    CutRunNotFoundError,
    IncompleteToolCycleError,
    NothingToRunError,
    QueueFullError,
    ResultExpiredError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunAmbiguousError,
    RunConflictError,
    RunEndedError,
    RunError,
    RunExpiredError,
    RunInUseError,
    RunNotClaimedError,
    RunNotCompletedError,
    RunNotFoundError,
    RunTimeoutError,
    StaleFenceError,
    StepUnknownError,
    TooManyChildrenError,
    VersionMismatchError,
)
from .signals import SignalConflictError, SignalInvalidError, SignalTimeoutError, TooManySignalsError
from .stores import (
    CapabilityMissingError,
    CheckpointerError,
    CheckpointMissingError,
    CursorExpiredError,
    DataCorruptedError,
    ExtraMissingError,
    FetchNotAllowedError,
    ForkBoundaryError,
    LeafMovedError,
    MessageError,
    MessageNotFoundError,
    MessageTooLargeError,
    PreconditionFailedError,
    ThreadAlreadyExistsError,
    ThreadBusyError,
    ThreadError,
    ThreadNotFoundError,
)
from .webhooks import TooManyWebhooksError, WebhookConflictError, WebhookDeliveryNotFoundError, WebhookNotFoundError

__all__ = [
    "BY_CODE",
    "AccessError",
    "AgentCancelledError",
    "AgentNotFoundError",
    "AppImportError",
    "BackendUnavailableError",
    "BudgetExceededError",
    "CancelRequestedError",
    "CapabilityMissingError",
    "CheckpointMissingError",
    "CheckpointerError",
    "ChildDeadlockError",
    "ChildFailedError",
    "ConfigurationError",
    "CursorExpiredError",
    "CutRunNotFoundError",
    "DataCorruptedError",
    "ExtraMissingError",
    "FetchNotAllowedError",
    "ForbiddenError",
    "ForkBoundaryError",
    "HeadersTooLargeError",
    "HitlAlreadyAnsweredError",
    "HitlAmbiguousError",
    "HitlBindingError",
    "HitlCancelledError",
    "HitlDeniedError",
    "HitlError",
    "HitlInvalidAnswerError",
    "HitlNoPendingRequestError",
    "HitlNotAllowedError",
    "HitlRequestNotFoundError",
    "HitlStaleAnswerError",
    "HitlTimeoutError",
    "IncompleteToolCycleError",
    "InvalidBlobError",
    "InvalidCursorError",
    "InvalidInputError",
    "InvalidRequestError",
    "LeafMovedError",
    "LockedError",
    "LoginRefusedError",
    "MessageError",
    "MessageNotFoundError",
    "MessageTooLargeError",
    "MethodNotAllowedError",
    "NothingToRunError",
    "PreconditionFailedError",
    "QueueFullError",
    "RateLimitedError",
    "RequestError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "ResultExpiredError",
    "RouteNotFoundError",
    "RunAlreadyClaimedError",
    "RunAlreadyCompletedError",
    "RunAmbiguousError",
    "RunConflictError",
    "RunEndedError",
    "RunError",
    "RunExpiredError",
    "RunInUseError",
    "RunNotClaimedError",
    "RunNotCompletedError",
    "RunNotFoundError",
    "RunTimeoutError",
    "RunyardError",
    "SchemaError",
    "SchemaMismatch",
    "SchemaRightsError",
    "SchemaUninitialized",
    "ServerBusyError",
    "SignalConflictError",
    "SignalInvalidError",
    "SignalTimeoutError",
    "StaleFenceError",
    "StepUnknownError",
    "ThreadAlreadyExistsError",
    "ThreadBusyError",
    "ThreadError",
    "ThreadNotFoundError",
    "TooManyCandidatesError",
    "TooManyChildrenError",
    "TooManySignalsError",
    "TooManyWebhooksError",
    "UnauthenticatedError",
    "UnsupportedMediaTypeError",
    "VersionMismatchError",
    "WebhookConflictError",
    "WebhookDeliveryNotFoundError",
    "WebhookNotFoundError",
    "WorkerDeadError",
    "WorkerNotFoundError",
    "from_dict",
]  # fmt: skip


def _tree(cls: type[RunyardError]) -> list[type[RunyardError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in _tree(child))]


for _cls in _tree(RunyardError):
    BY_CODE.setdefault(_cls.code, _cls)
    _cls.__module__ = __name__  # tracebacks and documentation then show the documented import path
