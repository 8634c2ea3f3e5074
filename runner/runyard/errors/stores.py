"""Errors of stores about threads, messages, forks, the feed and stored data."""

from __future__ import annotations

from .base import RunyardError


class CheckpointerError(RunyardError):
    """Base class of errors with which a store refuses a call."""

    code = "checkpointer_error"
    http_status = 409


class CapabilityMissingError(CheckpointerError):
    """The backend does not have the optional method that the call needs (R14)."""

    code = "capability_missing"
    http_status = 501


class ExtraMissingError(CapabilityMissingError):
    """An optional dependency is not installed. The message names the command that installs it."""

    code = "extra_missing"


class ThreadError(CheckpointerError):
    """Base class of errors about a thread."""


class ThreadNotFoundError(ThreadError):
    """The tenant has no such thread."""

    code = "thread_not_found"
    http_status = 404


class ThreadAlreadyExistsError(ThreadError):
    """Another thread has this id."""

    code = "thread_already_exists"


class ThreadBusyError(ThreadError):
    """A run of the thread is live, and the call does not wait for its end."""

    code = "thread_busy"


class PreconditionFailedError(ThreadError):
    """The thread has changed since the caller read it."""

    code = "precondition_failed"
    http_status = 412


class MessageError(CheckpointerError):
    """Base class of errors about a message."""


class MessageNotFoundError(MessageError):
    """The thread has no such message."""

    code = "message_not_found"
    http_status = 404


class LeafMovedError(MessageError):
    """The thread's last message is not the message ``expected_leaf``."""

    code = "leaf_moved"


class MessageTooLargeError(MessageError):
    """A message is larger than the configured limit."""

    code = "message_too_large"
    http_status = 413


class FetchNotAllowedError(MessageError):
    """A message has a file to download, but the operator does not allow downloads from ``details["host"]``."""

    code = "fetch_not_allowed"
    http_status = 422


class DataCorruptedError(CheckpointerError):
    """A stored row cannot be decoded, because another program wrote it. ``details`` names the thread and the row."""

    code = "data_corrupted"
    http_status = 500
    retryable = False


class ForkBoundaryError(CheckpointerError):
    """The cut is inside a tool cycle or a run.

    ``details["before"]`` and ``details["after"]`` are the ids of the nearest valid messages.
    """

    code = "fork_boundary"


class CheckpointMissingError(CheckpointerError):
    """The graph of a run has no checkpoint at the message after which the run begins (F13)."""

    code = "checkpoint_missing"
    retryable = False


class CursorExpiredError(CheckpointerError):
    """Entries of the feed after the cursor were deleted, because their retention has passed."""

    code = "cursor_expired"
    http_status = 410
