"""Routes of health checks and metrics."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from runyard.errors import RunyardError
from runyard.support.exposition import content_type, exposed

from ..answers import Liveness, Readiness
from ..service import service_of
from .documentation import operation
from .replies import reply
from .route_access import Measures, Route

router = APIRouter(tags=["probes"], route_class=Route)

OPEN: Final[dict[str, Any]] = {"openapi_extra": {"security": []}}


@router.get("/livez", response_model=Liveness, **OPEN)
async def livez() -> Response:
    """Return 200 while the process runs, even if Postgres or Redis cannot be reached."""
    return reply(Liveness())


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Postgres takes no writes, or this code cannot run on its schema."}},
    **OPEN,
)
async def readyz(request: Request) -> Response:
    """Return 200 if Postgres takes writes and this code can run on its schema."""
    try:
        backend = await service_of(request).backend()
        await backend.check()
    except RunyardError as error:
        return reply(Readiness(ready=False, reasons=[error.message]), 503)
    try:
        await backend.scheduler.ping()
    except RunyardError as error:
        return reply(Readiness(ready=True, degraded=[error.message]))
    return reply(Readiness(ready=True))


@router.get("/metrics", **operation(s200=(None, "Metrics in the text format of Prometheus.")))
async def metrics(caller: Measures, request: Request) -> Response:
    """Return the metrics of this process."""
    kind = content_type(request.headers.get("accept", ""))
    return Response(exposed(kind), headers={"Content-Type": kind})
