"""Calls for which the HTTP API has no route. Each of them raises CapabilityMissingError."""

from __future__ import annotations

from runyard.errors import CapabilityMissingError

from ..unsupported import Refusing


def only_direct(what: str) -> CapabilityMissingError:
    """Return the error for a capability that the HTTP API lacks. ``what``: its name in the message, such as ``connection=``."""
    return CapabilityMissingError(
        f"the HTTP API does not support {what}; connect directly, for example to postgresql://…", capability=what
    )


class DirectOnly(Refusing):
    """The base of a store over HTTP. ``part``: the store's name in the backend. A method that a store does not define raises
    CapabilityMissingError with its name."""

    def __init__(self, part: str) -> None:
        super().__init__(part, only_direct)
