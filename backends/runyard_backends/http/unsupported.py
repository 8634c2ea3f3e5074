"""Calls for which the HTTP API has no route. Each of them raises CapabilityMissingError."""

from __future__ import annotations

from typing import Final

from runyard.errors import CapabilityMissingError

from ..unsupported import Refusing

CLIENT_CALLS: Final = {
    "webhooks.add": "subscribe_webhook",
    "webhooks.webhooks": "webhooks",
    "webhooks.remove": "remove_webhook",
    "webhooks.deliveries": "webhook_deliveries",
    "webhooks.redeliver": "redeliver_webhook",
}
"""Methods of ports → names of the client's calls."""


def only_direct(what: str) -> CapabilityMissingError:
    """Return the error for the capability ``what``, such as the name of a call or of a parameter."""
    return CapabilityMissingError(
        f"the HTTP API does not support {what}; connect directly, for example to postgresql://…", capability=what
    )


class DirectOnly(Refusing):
    """The base of a store over HTTP. ``part``: the store's name in the backend. A method that a store does not define raises
    CapabilityMissingError with the name of the client's call."""

    def __init__(self, part: str) -> None:
        super().__init__(part, lambda verb: only_direct(CLIENT_CALLS.get(verb, verb)))
