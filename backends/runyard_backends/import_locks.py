"""The lock of a tenant's imports of threads, which each store has in its own way."""

from __future__ import annotations

from runyard.errors import LockedError


def taken() -> LockedError:
    """Return the error for a lock that another import holds."""
    return LockedError("another import works in this tenant; wait for its end, and import again")
