"""The package from which a value comes. The package is not imported."""

from __future__ import annotations


def is_of(value: object, package: str) -> bool:
    """Return whether the class of ``value``, or a base class, is defined in ``package``, for example in ``"django"``."""
    return any(f"{cls.__module__}.".startswith(f"{package}.") for cls in type(value).__mro__)
