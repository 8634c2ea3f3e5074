"""The route of the usage report."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from runyard.domain.usage_report import UsageReport

from ..field_types import Day
from .documentation import operation
from .replies import reply
from .route_access import Reads, Route

router = APIRouter(tags=["usage"], route_class=Route)

Since = Annotated[Day | None, Query(description="First day, in UTC. Default: 29 days before the last day.")]
Until = Annotated[Day | None, Query(description="Last day, in UTC. Default: today.")]
Agent = Annotated[str | None, Query(description="Only runs of this agent.")]


@router.get("/v1/usage", **operation(s200=(UsageReport, "The totals, and the usage of each day.")))
async def read_usage(caller: Reads, since: Since = None, until: Until = None, agent: Agent = None) -> Response:
    """Return the usage of runs by the day of their end, for up to 366 days. The report is complete until `counted_until`."""
    return reply(await caller.client.usage(since, until, agent=agent))
