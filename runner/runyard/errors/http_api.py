"""Errors with which the HTTP API refuses a caller, or refuses a request before it reads the content of the request."""

from __future__ import annotations

from .base import RunyardError
from .inputs import InvalidInputError


class InvalidRequestError(InvalidInputError):
    """A request to the HTTP API does not fit its schema. ``details["errors"]`` names each field and its fault."""

    code = "invalid_request"
    http_status = 422


class AccessError(RunyardError):
    """Base class of errors with which the HTTP API refuses a caller."""

    code = "access_denied"
    http_status = 403


class UnauthenticatedError(AccessError):
    """The request has no valid API key or token."""

    code = "unauthenticated"
    http_status = 401


class ForbiddenError(AccessError):
    """The API key or token lacks the scope that the call needs, or is valid only for another resource."""

    code = "forbidden"


class RateLimitedError(AccessError):
    """The API key sends too many requests or has too many open streams, or the client's address sends too many invalid keys.

    ``details["retry_after"]``: seconds to wait.
    """

    code = "rate_limited"
    http_status = 429


class RequestError(RunyardError):
    """Base class of errors with which the HTTP API refuses a request before it processes the content of the request."""

    code = "bad_request"
    http_status = 400


class RouteNotFoundError(RequestError):
    """The HTTP API has no such path."""

    code = "route_not_found"
    http_status = 404


class MethodNotAllowedError(RequestError):
    """The path does not have this method. ``details["allow"]`` lists the methods of the path."""

    code = "method_not_allowed"
    http_status = 405


class RequestTimeoutError(RequestError):
    """The body of the request did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class RequestTooLargeError(RequestError):
    """The body of the request is larger than the HTTP API accepts."""

    code = "request_too_large"
    http_status = 413


class HeadersTooLargeError(RequestError):
    """The request has more or larger headers than the HTTP API accepts."""

    code = "headers_too_large"
    http_status = 431


class UnsupportedMediaTypeError(RequestError):
    """The ``Content-Type`` of the request is not ``application/json``."""

    code = "unsupported_media_type"
    http_status = 415
