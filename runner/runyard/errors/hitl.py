"""Human-in-the-loop requests: what a store refuses, and how a question ends."""

from __future__ import annotations

from .stores import CheckpointerError


class HitlError(CheckpointerError):
    """Base class of errors about human-in-the-loop requests."""


class HitlAmbiguousError(HitlError):
    """Several requests are pending; give one of ``details["request_ids"]``."""

    code = "hitl_ambiguous"


class HitlNoPendingRequestError(HitlError):
    """The thread has no pending request."""

    code = "hitl_no_pending_request"
    http_status = 404


class HitlRequestNotFoundError(HitlError):
    """There is no such request."""

    code = "hitl_request_not_found"
    http_status = 404


class HitlStaleAnswerError(HitlError):
    """The request is not pending; ``details`` have its id and the pending ones."""

    code = "hitl_stale_answer"


class HitlInvalidAnswerError(HitlError):
    """The answer does not fit the request's schema; the request stays pending."""

    code = "hitl_invalid_answer"
    http_status = 422


class HitlAlreadyAnsweredError(HitlError):
    """The request already has a different answer."""

    code = "hitl_already_answered"


class HitlNotAllowedError(HitlError, RuntimeError):
    """An agent that can ask a human cannot run in a probe, where no human can answer."""

    code = "hitl_not_allowed"
    http_status = 422


class HitlBindingError(HitlError, ValueError):
    """A checkpointed channel is bound to one run id, and the prompt gave another or none; ``details`` have both (H2)."""

    code = "hitl_binding"
    http_status = 400


class HitlTimeoutError(HitlError):
    """The deadline of a question passed without an answer, and the question was to fail then (H7)."""

    code = "hitl_timeout"


class HitlCancelledError(HitlError):
    """The question was cancelled without an answer."""

    code = "hitl_cancelled"
