"""The operator's part of a backend over HTTP: workers, queues, limits, API keys. Its calls need an API key with the scope
admin."""

from __future__ import annotations

from datetime import datetime

from pydantic import TypeAdapter

from runyard.domain.api_keys import ApiKey, IssuedKey
from runyard.domain.limits import Limit, LimitName
from runyard.errors import InvalidInputError
from runyard.models import JsonObject
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page
from runyard.ports.workers import QueueInfo, WorkerInfo

from .codec import given, paging
from .transport import Transport
from .unsupported import DirectOnly

_WORKERS = TypeAdapter(list[WorkerInfo])
_QUEUES = TypeAdapter(list[QueueInfo])
_LIMITS = TypeAdapter(list[Limit])
_KEYS = TypeAdapter(list[ApiKey])
_TIME = TypeAdapter(datetime)


class HttpWorkerStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.WorkerStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("workers")
        self._transport = transport

    async def workers(self) -> list[WorkerInfo]:
        """Return all known workers, the oldest first."""
        return _WORKERS.validate_python((await self._transport.ask("GET", "workers")).data["items"])

    async def drain(self, worker_id: str) -> None:
        """Mark the worker as draining. Raises WorkerDeadError."""
        await self._transport.ask("POST", "workers", worker_id, "drain")


class HttpQueueStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.QueueStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("queues")
        self._transport = transport

    async def queues(self, page: PageRequest | None = None, *, known: bool = False) -> Page[QueueInfo]:
        """Return the state of each queue, by name."""
        query = given(known=known or None, **(paging(page) if page is not None else {}))
        found: list[QueueInfo] = []
        while True:
            data = (await self._transport.ask("GET", "queues", query=query)).data
            found += _QUEUES.validate_python(data["items"])
            following = data.get("next")  # an older server ignores the limit and returns all queues
            if page is not None or following is None:
                return Page(found, following)
            query["cursor"] = following

    async def pause(self, queue: str) -> datetime:
        """Pause a queue. Return the time at which the pause began."""
        return _TIME.validate_python((await self._transport.ask("POST", "queues", queue, "pause")).data["paused_at"])

    async def resume(self, queue: str) -> bool:
        """End the pause of a queue. Return True if the queue was paused. If the reply to a successful request is lost, the
        request is repeated. The repeated request finds nothing to change, and the method returns False."""
        return bool((await self._transport.ask("POST", "queues", queue, "resume")).data["was_paused"])


class HttpLimitStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.LimitStore`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("limits")
        self._transport = transport

    async def limits(self) -> list[Limit]:
        """Return the limits that are set."""
        return _LIMITS.validate_python((await self._transport.ask("GET", "limits")).data["items"])

    async def set_limit(self, limit: Limit) -> None:
        """Set a limit."""
        body: JsonObject = given(most=limit.most, subject=limit.subject)
        await self._transport.ask("PUT", "limits", limit.name, body=body)

    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool:
        """Remove a limit. Return True if the limit was set. If the reply to a successful request is lost, the request is
        repeated. The repeated request finds nothing to change, and the method returns False."""
        reply = await self._transport.ask("DELETE", "limits", name, query={"subject": subject})
        return bool(reply.data["cleared"])


class HttpKeyStore(DirectOnly):
    """The client's part of :class:`runyard.ports.stores.KeyStore`, for the tenant of the caller's own key."""

    def __init__(self, transport: Transport) -> None:
        super().__init__("keys")
        self._transport = transport

    async def create_key(self, key: ApiKey, digest: bytes, *, lifetime: float | None = None) -> ApiKey:
        """Create a key with the name and the scopes of ``key``. The server chooses its id and its text."""
        if key.expires_at is not None:
            raise InvalidInputError(
                "over HTTP give lifetime instead of until; the key also expires with the caller's key", field="until"
            )
        body: JsonObject = given(name=key.name, scopes=list(key.scopes), lifetime=lifetime)
        return IssuedKey.model_validate((await self._transport.ask("POST", "keys", repeat=False, body=body)).data)

    async def keys(self) -> list[ApiKey]:
        """Return the tenant's keys, the oldest first."""
        return _KEYS.validate_python((await self._transport.ask("GET", "keys")).data["items"])

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key. Return True if the key was valid before. If the reply to a successful request is lost, the request is
        repeated. The repeated request finds nothing to change, and the method returns False."""
        return bool((await self._transport.ask("DELETE", "keys", key_id)).data["revoked"])
