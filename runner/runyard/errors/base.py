"""The root of the tree of errors, and how errors cross a process or the wire."""

from __future__ import annotations

from typing import Any, ClassVar


class RunyardError(Exception):
    """The base class of all errors. ``details`` holds JSON values; ``str(error)`` names the fault and the remedy."""

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
"""The errors of runyard by their codes. Of several with one code it has the first."""


def from_dict(data: dict[str, Any]) -> RunyardError:
    """Return the error that :meth:`RunyardError.to_dict` described; an unknown code gives a plain :class:`RunyardError`."""
    cls = BY_CODE.get(data.get("code", ""), RunyardError)
    return cls(data.get("message", ""), **(data.get("details") or {}))
