"""Routes of the feed, the agents and the workers."""

from __future__ import annotations

from collections import defaultdict

from fastapi import APIRouter, Response

from runyard.errors import AgentNotFoundError, CursorExpiredError, InvalidCursorError
from runyard.ports.workers import WorkerInfo

from ..answers import Agent, Agents, FeedPage, Worker, Workers
from ..tenant_client import Caller
from .arguments import AgentName, Paging
from .documentation import operation
from .replies import reply
from .route_access import Administers, Reads, Route

router = APIRouter(route_class=Route)


@router.get(
    "/v1/feed",
    tags=["feed"],
    **operation(InvalidCursorError, CursorExpiredError, s200=(FeedPage, "A page of entries, in order.")),
)
async def read_feed(caller: Reads, paging: Paging) -> Response:
    """Read the feed: the changes of all threads after `cursor`, in the order of their commits. Each change is returned at least
    once.

    Store `next` and pass it as `cursor` of the following request.
    """
    page = await caller.client.feed(**paging)
    assert page.next is not None  # the feed has no end
    return reply(FeedPage.model_construct(items=page.items, next=page.next))


@router.get("/v1/agents", tags=["deployment"], **operation(s200=(Agents, "The agents, by name.")))
async def list_agents(caller: Reads) -> Response:
    """List the agents that live workers serve.

    With a key that belongs to a tenant and lacks the scope admin, `budgets` is null.
    """
    return reply(Agents(items=[found for _, found in sorted((await _served(caller)).items())]))


@router.get("/v1/agents/{name}", tags=["deployment"], **operation(AgentNotFoundError, s200=(Agent, "The agent.")))
async def get_agent(caller: Reads, name: AgentName) -> Response:
    """Read one agent: its queues, its versions, its budgets, and the number of workers that serve it.

    With a key that belongs to a tenant and lacks the scope admin, `budgets` is null.
    """
    found = (await _served(caller)).get(name)
    if found is None:
        raise AgentNotFoundError(f"no live worker serves agent {name!r}", agent=name)
    return reply(found)


async def _served(caller: Caller) -> dict[str, Agent]:
    """Return the agents that live workers serve, by name. A caller of a tenant needs the scope ``admin`` to see budgets."""
    sees_budgets = not caller.principal.tenant or caller.principal.has("admin")
    served: defaultdict[str, list[tuple[str, WorkerInfo]]] = defaultdict(list)
    for worker in await caller.client.workers():
        if worker.dead_at is None and not worker.draining:
            for name, queue in worker.agents.items():
                served[name].append((queue, worker))
    return {
        name: Agent(
            name=name,
            queues=sorted({queue for queue, _ in found}),
            workers=len(found),
            versions=sorted({worker.app_version for _, worker in found if worker.app_version}),
            budgets=found[-1][1].budgets.get(name, ()) if sees_budgets else None,
        )
        for name, found in served.items()
    }


@router.get("/v1/workers", tags=["deployment"], **operation(s200=(Workers, "The workers, the oldest first.")))
async def list_workers(caller: Administers) -> Response:
    """List the worker processes, which serve all tenants."""
    return reply(Workers(items=[Worker.of(worker) for worker in await caller.client.workers()]))
