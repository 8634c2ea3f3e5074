"""What the HTTP API has no routes for: each call of it says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from runner.errors import CapabilityMissingError

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
"""Verbs of ports by the name of the client's call."""


def only_direct(what: str) -> CapabilityMissingError:
    """The error for ``what``."""
    return CapabilityMissingError(
        f"{what} needs a direct connection, such as postgresql://…; the HTTP API does not have it", capability=what
    )


class DirectOnly:
    """A part of a backend. Verbs that it does not define raise CapabilityMissingError, which names the client's call."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Awaitable[NoReturn]]:
        if name.startswith("_"):
            raise AttributeError(name)
        verb = f"{self._part}.{name}"

        async def refuse(*_: Any, **__: Any) -> NoReturn:
            raise only_direct(CLIENT_CALLS.get(verb, verb))

        return refuse
