"""Routes of operators: queues, the drain of workers, limits, API keys.

Queues, workers and limits concern all tenants. Only an admin key that belongs to no tenant can change them. Limits contain the
names of tenants, so only such a key can read them. An admin key of a tenant manages the keys of this tenant.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response

from runyard.domain.limits import Limit, LimitName
from runyard.errors import InvalidCursorError, WorkerDeadError

from ..answers import Cleared, Key, Keys, Limits, NewKey, PausedQueue, QueuePage, ResumedQueue, RevokedKey
from ..idempotency import BY_STATE
from ..operator_bodies import KeyRequest, LimitRequest
from .arguments import Cursor, KeyId, QueueName, WorkerId, bounded
from .arguments import Limit as Most
from .documentation import operation
from .replies import UNSEEN, reply
from .route_access import Administers, Operates, Route

router = APIRouter(route_class=Route)

Subject = Annotated[
    str | None, Query(min_length=1, max_length=255, description="Tenant or agent of the limit. Default: the general limit.")
]
Known = Annotated[bool, Query(description="Only queues of a worker, queues of an agent, and paused queues.")]


@router.get("/v1/queues", tags=["deployment"], **operation(InvalidCursorError, s200=(QueuePage, "A page of queues, by name.")))
async def list_queues(caller: Administers, limit: Most | None = None, cursor: Cursor = None, known: Known = False) -> Response:
    """List the queues that have runs, are paused, or have a worker.

    With a key that belongs to a tenant, `known` is always true. Only runs name an unknown queue, so its name can be a text of
    another tenant.
    """
    known = known or bool(caller.principal.tenant)
    most = caller.service.settings.max_page if limit is None else bounded(limit, caller)
    page = await caller.client.queues(known=known, limit=most, cursor=cursor)
    return reply(QueuePage.model_construct(items=page.items, next=page.next))


@router.post(
    "/v1/queues/{queue}/pause", tags=["deployment"], dependencies=BY_STATE, **operation(s200=(PausedQueue, "The pause."))
)
async def pause_queue(caller: Operates, queue: QueueName) -> Response:
    """Pause a queue. The queue accepts runs, but no worker claims them. If the queue is paused already, `paused_at` stays
    unchanged.

    Needs a key that belongs to no tenant.
    """
    return reply(PausedQueue(queue=queue, paused_at=await caller.client.pause_queue(queue)))


@router.post(
    "/v1/queues/{queue}/resume",
    tags=["deployment"],
    dependencies=BY_STATE,
    **operation(s200=(ResumedQueue, "The end of the pause.")),
)
async def resume_queue(caller: Operates, queue: QueueName) -> Response:
    """End the pause of a queue. Needs a key that belongs to no tenant."""
    return reply(ResumedQueue(queue=queue, was_paused=await caller.client.resume_queue(queue)))


@router.post(
    "/v1/workers/{worker_id}/drain",
    tags=["deployment"],
    dependencies=BY_STATE,
    **operation(WorkerDeadError, s204=(None, "It drains.")),
)
async def drain_worker(caller: Operates, worker_id: WorkerId) -> Response:
    """Drain a worker. The worker claims no more runs, finishes its runs without a time limit, and ends.

    Needs a key that belongs to no tenant.
    """
    await caller.client.drain_worker(worker_id)
    return Response(status_code=204)


@router.get("/v1/limits", tags=["deployment"], **operation(s200=(Limits, "The limits that are set.")))
async def list_limits(caller: Operates) -> Response:
    """List the limits of the deployment. Needs a key that belongs to no tenant."""
    return reply(Limits(items=await caller.client.limits()))


@router.put("/v1/limits/{name}", tags=["deployment"], **operation(s200=(Limit, "The limit.")))
async def set_limit(caller: Operates, name: LimitName, body: LimitRequest) -> Response:
    """Set a limit. The limit replaces an earlier limit with the same name and subject. It applies to later accepts and claims.

    Needs a key that belongs to no tenant.
    """
    return reply(await caller.client.set_limit(name, body.most, subject=body.subject))


@router.delete("/v1/limits/{name}", tags=["deployment"], **operation(s200=(Cleared, "Whether the limit was set.")))
async def clear_limit(caller: Operates, name: LimitName, subject: Subject = None) -> Response:
    """Remove a limit. Needs a key that belongs to no tenant."""
    return reply(Cleared(cleared=await caller.client.clear_limit(name, subject=subject)))


@router.get("/v1/keys", tags=["access"], **operation(s200=(Keys, "The keys, the oldest first.")))
async def list_keys(caller: Administers) -> Response:
    """List the valid API keys of the caller's tenant, and the newest 1,000 keys that were revoked or have expired."""
    return reply(Keys(items=[Key(**key.model_dump()) for key in await caller.client.keys()]))


@router.post(
    "/v1/keys",
    tags=["access"],
    dependencies=BY_STATE,
    **operation(s201=(NewKey, "The key, with its text.")),
)
async def create_key(caller: Administers, body: KeyRequest) -> Response:
    """Create an API key of the caller's tenant. Only this response has the text of the key. A repeated request makes another
    key.

    If the caller's key has an expiry, the new key expires at this time or earlier.
    """
    expires = caller.principal.expires
    until = datetime.fromtimestamp(expires, UTC) if expires is not None else None
    key, text = await caller.client.create_key(body.name, scopes=body.scopes, lifetime=body.lifetime, until=until)
    return reply(NewKey(**key.model_dump(), text=text), 201, Cache_Control=UNSEEN)


@router.delete("/v1/keys/{key_id}", tags=["access"], **operation(s200=(RevokedKey, "Whether this request revoked the key.")))
async def revoke_key(caller: Administers, key_id: KeyId) -> Response:
    """Revoke an API key of the caller's tenant. Every API process refuses the key within seconds."""
    return reply(RevokedKey(revoked=await caller.client.revoke_key(key_id)))
