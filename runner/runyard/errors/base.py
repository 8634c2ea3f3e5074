"""The base class of all errors, and the JSON by which an error is sent to another process."""

from __future__ import annotations

from typing import Any, ClassVar


class RunyardError(Exception):
    """The base class of all errors. ``details``: a map from names to JSON values.

    ``str(error)`` states the fault and the remedy.
    """

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON: ``{"code", "message", "details"}``."""
        return {"code": self.code, "message": self.message, "details": self.details}


BY_CODE: dict[str, type[RunyardError]] = {}
"""The error classes of runyard by their codes. A class that has the code of its base class is not listed."""


def from_dict(data: dict[str, Any]) -> RunyardError:
    """Return the error for the JSON of :meth:`RunyardError.to_dict`. For an unknown code, return a :class:`RunyardError`."""
    cls = BY_CODE.get(data.get("code", ""), RunyardError)
    return cls(data.get("message", ""), **(data.get("details") or {}))
