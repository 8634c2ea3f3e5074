"""The package that a value comes from, without an import of this package."""

from __future__ import annotations


def is_of(value: object, package: str) -> bool:
    """Return whether the class of ``value`` or a base of it is defined in ``package``, for example ``"django"``."""
    return any(f"{cls.__module__}.".startswith(f"{package}.") for cls in type(value).__mro__)
