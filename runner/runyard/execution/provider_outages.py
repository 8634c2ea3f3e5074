"""Errors by which a provider of models says that the same request may succeed later.

Adapters declare such an error by the attribute ``temporary``. Errors of the providers' own SDKs are recognised by their
package, so that agents that are plain functions need no adapter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

PASSING_STATUSES: Final = (408, 409, 425, 429)
"""HTTP statuses below 500 of a model's provider after which the same request may succeed."""
SDKS: Final = ("openai", "anthropic", "google.genai", "groq", "mistralai", "cohere", "pydantic_ai")
"""Packages whose errors are those of a provider of models."""
CONNECTION_ERRORS: Final = frozenset({"APIConnectionError", "ModelConnectionError"})
"""Base classes, in these packages, of errors without an HTTP status: no connection, a lost connection, no answer in time."""
SPENT: Final = "insufficient_quota"
"""Code of an error with the status 429 that does not end with time."""


def is_temporary(error: BaseException) -> bool:
    """Return whether ``error`` is a provider's error that ends with time: 429, 5xx, a timeout, a lost connection."""
    declared = getattr(error, "temporary", None)
    if isinstance(declared, bool):
        return declared
    of_sdk = [cls for cls in type(error).__mro__ if _of_sdk(cls)]
    if not of_sdk:
        return False
    if CONNECTION_ERRORS & {cls.__name__ for cls in of_sdk}:
        return True
    code = getattr(error, "code", None)
    status = getattr(error, "status_code", None) or code
    return isinstance(status, int) and code != SPENT and (status in PASSING_STATUSES or status >= 500)


def asked_pause(error: BaseException) -> float | None:
    """Return the seconds that a provider asked to wait, or None.

    They are the attribute ``retry_after`` of ``error`` or of its cause, or the header ``Retry-After`` of its ``response``.
    """
    for each in _with_cause(error):
        asked = getattr(each, "retry_after", None)
        if isinstance(asked, int | float):
            return float(asked)
        headers = getattr(getattr(each, "response", None), "headers", None)
        with suppress(ValueError, TypeError, AttributeError):  # a date would require this host's clock to be right
            return float(headers.get("retry-after"))  # type: ignore[union-attr]
    return None


def _with_cause(error: BaseException) -> Iterator[BaseException]:
    yield error
    if error.__cause__ is not None:
        yield error.__cause__


def _of_sdk(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(tuple(f"{package}." for package in SDKS))
