"""The feed, and who serves what."""

from __future__ import annotations

from collections import defaultdict

from fastapi import APIRouter, Response

from runner.errors import AgentNotFoundError, CursorExpiredError, InvalidCursorError
from runner.exchange import WorkerInfo

from ..schemas import Agent, Agents, FeedPage, Worker, Workers
from ..service import Caller
from .parts import Administers, AgentName, Cursor, Limit, Reads, Route, bounded, operation, reply

router = APIRouter(route_class=Route)


@router.get(
    "/v1/feed", tags=["feed"], **operation("read", InvalidCursorError, CursorExpiredError, s200=(FeedPage, "In their order."))
)
async def read_feed(caller: Reads, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """What was committed on any thread, each entry at least once, from a cursor that you keep."""
    page = await caller.client.feed(cursor, limit=bounded(limit, caller))
    assert page.next is not None  # the feed has no end
    return reply(FeedPage.model_construct(items=page.items, next=page.next))


@router.get("/v1/agents", tags=["deployment"], **operation("read", s200=(Agents, "By name.")))
async def list_agents(caller: Reads) -> Response:
    """The agents that live workers serve."""
    return reply(Agents(items=[found for _, found in sorted((await _served(caller)).items())]))


@router.get("/v1/agents/{name}", tags=["deployment"], **operation("read", AgentNotFoundError, s200=(Agent, "The agent.")))
async def get_agent(caller: Reads, name: AgentName) -> Response:
    """Who serves an agent."""
    found = (await _served(caller)).get(name)
    if found is None:
        raise AgentNotFoundError(f"no live worker serves an agent {name!r}", agent=name)
    return reply(found)


async def _served(caller: Caller) -> dict[str, Agent]:
    """Agents by their names."""
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
        )
        for name, found in served.items()
    }


@router.get("/v1/workers", tags=["deployment"], **operation("admin", s200=(Workers, "The oldest first.")))
async def list_workers(caller: Administers) -> Response:
    """Worker processes, over all tenants."""
    return reply(Workers(items=[Worker.of(worker) for worker in await caller.client.workers()]))
