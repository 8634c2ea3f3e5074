"""Errors about HITL requests: refusals of a store, and questions that end without an answer."""

from __future__ import annotations

from .stores import CheckpointerError


class HitlError(CheckpointerError):
    """Base class of errors about HITL requests."""


class HitlAmbiguousError(HitlError):
    """Several requests are pending. Give the id of one of these requests. ``details["request_ids"]`` has the ids."""

    code = "hitl_ambiguous"


class HitlNoPendingRequestError(HitlError):
    """The thread has no pending request."""

    code = "hitl_no_pending_request"
    http_status = 404


class HitlRequestNotFoundError(HitlError):
    """There is no HITL request with this id."""

    code = "hitl_request_not_found"
    http_status = 404


class HitlStaleAnswerError(HitlError):
    """The request is not pending. ``details["pending"]`` names the pending requests."""

    code = "hitl_stale_answer"


class HitlInvalidAnswerError(HitlError):
    """The answer does not fit the schema of the request. The request still waits for an answer."""

    code = "hitl_invalid_answer"
    http_status = 422


class HitlAlreadyAnsweredError(HitlError):
    """The request already has a different answer."""

    code = "hitl_already_answered"


class HitlNotAllowedError(HitlError, RuntimeError):
    """The agent may ask a human, but a probe cannot wait for the answer."""

    code = "hitl_not_allowed"
    http_status = 422


class HitlBindingError(HitlError, ValueError):
    """The run id of a prompt differs from the run id of its checkpointed channel (H2). ``details`` has the two run ids."""

    code = "hitl_binding"
    http_status = 400


class HitlTimeoutError(HitlError):
    """Nobody answered the question before its deadline, and the question has no default answer (H7)."""

    code = "hitl_timeout"


class HitlCancelledError(HitlError):
    """The question was cancelled without an answer."""

    code = "hitl_cancelled"


class HitlDeniedError(HitlError):
    """A human refused to let the agent continue."""

    code = "hitl_denied"
