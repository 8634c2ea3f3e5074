"""What the tenant used."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from runner.usage import UsageReport

from ..schemas import Day
from .parts import Reads, Route, operation, reply

router = APIRouter(tags=["usage"], route_class=Route)

Since = Annotated[Day | None, Query(description="The first day, in UTC. By default the one that makes 30 days.")]
Until = Annotated[Day | None, Query(description="The last day, in UTC. By default today.")]
Agent = Annotated[str | None, Query(description="Only runs of this agent.")]


@router.get("/v1/usage", **operation("read", s200=(UsageReport, "In all, and day by day.")))
async def read_usage(caller: Reads, since: Since = None, until: Until = None, agent: Agent = None) -> Response:
    """What runs used, by the day of their end, on 366 days at most. `counted_until` says up to when that is complete."""
    return reply(await caller.client.usage(since, until, agent=agent))
