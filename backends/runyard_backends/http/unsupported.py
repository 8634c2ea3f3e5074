"""Calls for which the HTTP API has no route. Each of them raises CapabilityMissingError."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from runyard.errors import CapabilityMissingError

CLIENT_CALLS: Final = {
    "workers.drain": "drain_worker",
    "queues.pause": "pause_queue",
    "queues.resume": "resume_queue",
    "queues.queues": "queues",
    "webhooks.add": "subscribe_webhook",
    "webhooks.webhooks": "webhooks",
    "webhooks.remove": "remove_webhook",
    "webhooks.deliveries": "webhook_deliveries",
    "webhooks.redeliver": "redeliver_webhook",
    **{f"limits.{name}": name for name in ("limits", "set_limit", "clear_limit")},
    **{f"keys.{name}": name for name in ("create_key", "keys", "revoke_key")},
}
"""Methods of ports → names of the client's calls."""


def only_direct(what: str) -> CapabilityMissingError:
    """Return the error for the capability ``what``, such as the name of a call or of a parameter."""
    return CapabilityMissingError(
        f"the HTTP API does not support {what}; connect directly, for example to postgresql://…", capability=what
    )


class DirectOnly:
    """The base of a store over HTTP. ``part``: the store's name in the backend. A method that a store does not define raises
    CapabilityMissingError with the name of the client's call."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Awaitable[NoReturn]]:
        if name.startswith("_"):
            raise AttributeError(name)
        verb = f"{self._part}.{name}"

        async def refuse(*_: Any, **__: Any) -> NoReturn:
            raise only_direct(CLIENT_CALLS.get(verb, verb))

        return refuse
