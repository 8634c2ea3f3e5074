"""Temporary errors of a provider of models. After such an error, the same request may succeed later.

Adapters set the attribute ``temporary`` of such an error. Errors of the providers' SDKs are recognised by their package. Agents
that are plain functions therefore need no adapter.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

PASSING_STATUSES: Final = (408, 409, 425, 429)
"""HTTP statuses below 500 after which the same request may succeed."""
SDKS: Final = ("openai", "anthropic", "google.genai", "groq", "mistralai", "cohere", "pydantic_ai")
"""Packages whose errors are errors of a provider."""
CONNECTION_ERRORS: Final = frozenset({"APIConnectionError", "ModelConnectionError"})
"""Base classes of the SDKs' errors without an HTTP status: no connection, a lost connection, no answer in time."""
PASSING_CODES: Final = frozenset(
    {"api_error", "overloaded_error", "rate_limit_error", "rate_limit_exceeded", "server_error", "timeout_error"}
)
"""Codes and types of errors without an HTTP status. A provider sends such errors in a stream that has already begun."""
SPENT: Final = "insufficient_quota"
"""Code of a permanent error with the status 429: the account has no quota left."""
HTTP_CLIENTS: Final = ("httpx", "httpx2")
"""Packages with which the SDKs send requests."""
LOST: Final = frozenset({"TimeoutException", "NetworkError", "RemoteProtocolError"})
"""Base classes of errors of the HTTP clients: a lost connection, or no answer in time."""


def passes(status: int | None, *codes: object) -> bool:
    """Return whether the same request may succeed later.

    ``status``: the HTTP status of the answer, or None if the error had no status. ``codes``: the code and the type of the
    provider's error. A code can be an HTTP status. If ``status`` is None or below 400, the result depends on the codes. (A
    stream that fails after it began has a status below 400.)
    """
    if SPENT in codes:
        return False
    if status is None or status < 400:
        status = next((found for code in codes if (found := _status(code)) is not None), None)
    if status is None:
        return any(isinstance(code, str) and code in PASSING_CODES for code in codes)
    return status in PASSING_STATUSES or status >= 500


def is_temporary(error: BaseException) -> bool:
    """Return whether ``error`` is a temporary error of a provider. Such an error has the status 429 or 5xx, or is a timeout or
    the loss of a connection."""
    declared = getattr(error, "temporary", None)
    if isinstance(declared, bool):
        return declared
    of_sdk = [cls for cls in type(error).__mro__ if _of_sdk(cls.__module__)]
    if not of_sdk:
        return _lost_by_sdk(error)
    if CONNECTION_ERRORS & {cls.__name__ for cls in of_sdk}:
        return True
    code = getattr(error, "code", None)
    status = getattr(error, "status_code", None) or code
    return passes(status if isinstance(status, int) else None, code, getattr(error, "type", None))


def asked_pause(error: BaseException) -> float | None:
    """Return the pause in seconds that a provider requested, or None.

    ``error`` and its causes are examined in turn. The pause is in the attribute ``retry_after``, or in the header
    ``Retry-After`` of the ``response``.
    """
    for each in _with_cause(error):
        asked = getattr(each, "retry_after", None)
        if isinstance(asked, int | float):
            return float(asked)
        headers = getattr(getattr(each, "response", None), "headers", None)
        with suppress(ValueError, TypeError, AttributeError):  # a date is ignored, because this machine's clock can be wrong
            return float(headers.get("retry-after"))  # type: ignore[union-attr]
    return None


def _status(code: object) -> int | None:
    """Return ``code`` if it is the HTTP status of an error, as a number or a text. Otherwise return None."""
    text = str(code) if isinstance(code, int | str) else ""
    return int(text) if re.fullmatch(r"[45]\d\d", text, re.ASCII) else None


def _with_cause(error: BaseException) -> Iterator[BaseException]:
    yield error
    if error.__cause__ is not None:
        yield error.__cause__


def _of_sdk(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{package}." for package in SDKS))


def _lost_by_sdk(error: BaseException) -> bool:
    """Return whether ``error`` comes from the HTTP client of an SDK. An SDK raises such an error unchanged only if the
    error occurs during a stream."""
    if not any(cls.__name__ in LOST and cls.__module__ in HTTP_CLIENTS for cls in type(error).__mro__):
        return False
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    first = next((n for n, module in enumerate(modules) if module.partition(".")[0] in HTTP_CLIENTS), 0)
    return first > 0 and _of_sdk(modules[first - 1])
