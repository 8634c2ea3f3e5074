"""The error of the lock on imports. At most one import of threads runs in a tenant at a time. Each store implements this lock
itself."""

from __future__ import annotations

from runyard.errors import LockedError


def taken() -> LockedError:
    """Return the error of an import that could not get the lock, because another import holds it."""
    return LockedError("another import is running in this tenant; wait until it has ended, and import again")
