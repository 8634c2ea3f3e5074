"""The error for calls that need workers, Redis or another store."""

from __future__ import annotations

from collections.abc import Callable

from runyard.errors import CapabilityMissingError


def no_workers(backend: str) -> Callable[[str], CapabilityMissingError]:
    """Return a function that makes the error for a method such as ``runs.accept``. ``backend``: the name of the database."""

    def refuse(method: str) -> CapabilityMissingError:
        message = f"{backend} stores only threads of in-process agents and has no {method}; use postgresql://… for workers"
        return CapabilityMissingError(message, backend=backend, method=method, capability=method)

    return refuse
