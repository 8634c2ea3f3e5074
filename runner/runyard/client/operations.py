"""Calls of an operator: workers and queues of the deployment, API keys, limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import ValidationError

from ..domain.api_keys import SCOPES, ApiKey, IssuedKey, Scope, Secret
from ..domain.limits import LIMITS, Limit, LimitName
from ..domain.quoting import brief
from ..domain.validation import first_problem
from ..errors import InvalidInputError, WorkerNotFoundError
from ..ports.queries import PageRequest
from ..ports.results import Page
from ..ports.workers import QueueInfo, WorkerInfo
from .arguments import Calls


class OperatorCalls(Calls):
    """List and drain workers, list and pause queues. The calls cover all tenants."""

    async def workers(self) -> list[WorkerInfo]:
        """Return all known workers, the oldest first. Dead workers stay listed for a day."""
        return await self.backend.workers.workers()

    async def worker(self, part: str) -> WorkerInfo:
        """Return the worker whose id is ``part``, or the only worker whose id contains ``part``.

        Raises WorkerNotFoundError, and InvalidInputError if several ids contain ``part``.
        """
        known = {worker.worker_id: worker for worker in await self.workers()}
        found = [known[part]] if part in known else [worker for id, worker in known.items() if part in id]
        if not found:
            raise WorkerNotFoundError(f"no worker's id contains {part!r}", worker_id=part, workers=list(known))
        if len(found) > 1:
            ids = ", ".join(worker.worker_id for worker in found)
            raise InvalidInputError(f"{part!r} is in the ids of several workers; give more of the id: {ids}", field="worker_id")
        return found[0]

    async def drain_worker(self, worker_id: str) -> None:
        """Drain a worker. The worker claims no further runs, finishes its runs without a time limit, and exits.

        The worker sees the request within a second. Raises WorkerDeadError.
        """
        await self.backend.workers.drain(worker_id)

    async def queues(self, *, known: bool = False, limit: int = 100, cursor: str | None = None) -> Page[QueueInfo]:
        """Return a page of the states of queues, ordered by name. A queue is listed if it has runs, is paused or is served.

        ``known``: if True, return only queues of workers, queues of agents, and paused queues. Raises InvalidInputError,
        InvalidCursorError.
        """
        return await self.backend.queues.queues(PageRequest(limit=limit, cursor=cursor), known=known)

    async def pause_queue(self, queue: str) -> datetime:
        """Stop all workers from claiming runs of ``queue``. Runs are still accepted. Return the time at which the queue was
        paused.

        Raises InvalidInputError.
        """
        return await self.backend.queues.pause(queue)

    async def resume_queue(self, queue: str) -> bool:
        """End the pause of ``queue``. Workers claim its runs again within a second. Return whether the queue was paused."""
        return await self.backend.queues.resume(queue)


class KeyCalls(Calls):
    """Create, list and revoke API keys."""

    async def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[Scope] = ("read", "write", "respond"),
        lifetime: float | None = None,
        until: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key for this client's tenant. Return the key's record and the text of the key.

        The store does not keep this text.

        ``name``: a name that people recognize, 1 to 100 characters. ``lifetime``: seconds until the key expires, or None for no
        expiry. ``until``: a time at which the key expires at the latest, or None.

        Raises InvalidInputError, for example if the tenant already has 1,000 valid keys.
        """
        if not (1 <= len(name) <= 100 and name.isprintable()):
            raise InvalidInputError(f"the name of a key is 1 to 100 printable characters, got {brief(name)}", field="name")
        if not scopes or not set(scopes) <= set(SCOPES):
            raise InvalidInputError(
                f"scopes are some of {', '.join(SCOPES)}; got {', '.join(scopes) or 'none'}", field="scopes"
            )
        if lifetime is not None and not 0 < lifetime < 100 * 365 * 86400:
            raise InvalidInputError(f"lifetime is seconds, up to a hundred years; got {lifetime}", field="lifetime")
        secret = Secret.new()
        wanted = tuple(scope for scope in SCOPES if scope in scopes)
        key = ApiKey(key_id=secret.key_id, tenant=self.backend.tenant, name=name, scopes=wanted, expires_at=until)
        made = await self.backend.keys.create_key(key, secret.digest, lifetime=lifetime)
        if isinstance(made, IssuedKey):
            return ApiKey(**made.model_dump()), made.text
        return made, str(secret)

    async def keys(self) -> list[ApiKey]:
        """Return the tenant's valid keys, and the newest 1,000 expired or revoked keys. The oldest key comes first."""
        return await self.backend.keys.keys()

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key. Every process refuses the key within seconds.

        Return False if the key does not exist or was revoked before.
        """
        return await self.backend.keys.revoke_key(key_id)


class LimitCalls(Calls):
    """Read and set the limits of the deployment. A change applies from the next accept and the next claim on."""

    async def limits(self) -> list[Limit]:
        """Return the limits that are set."""
        return await self.backend.limits.limits()

    async def set_limit(self, name: LimitName, most: int, *, subject: str | None = None) -> Limit:
        """Allow at most ``most`` runs, bytes or seconds. The new limit replaces an earlier limit of the same ``name`` and
        ``subject``.

        ``name``: the name of the limit. When ``queued``, ``queued_per_tenant`` or ``queued_per_lane`` is reached, the store
        refuses a further run with QueueFullError. ``queued_seconds``: a run that has not started this many seconds after its
        due time fails with ``run_expired``. ``message_bytes``: the store refuses a larger message with MessageTooLargeError.
        When ``running_per_agent`` or ``running_per_tenant`` is reached, a further run waits for a permit. ``subject``: the
        agent or the tenant of the limit, or None for every agent or tenant without its own limit.

        Raises InvalidInputError.
        """
        try:
            limit = Limit(name=name, subject=subject, most=most)
        except ValidationError as error:
            field, problem, _ = first_problem(error)
            raise InvalidInputError(
                f"limits are {', '.join(LIMITS)}, 0 or more; only a limit per tenant or agent has a subject: {problem}",
                field=field or "subject",
            ) from None
        await self.backend.limits.set_limit(limit)
        return limit

    async def clear_limit(self, name: LimitName, *, subject: str | None = None) -> bool:
        """Remove a limit. Return False if the limit was not set."""
        return await self.backend.limits.clear_limit(name, subject)
