"""Is the process alive, is it ready, what does it count."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from runner.errors import BackendUnavailableError, RunyardError
from runner.ports import Scheduler

from ..schemas import Liveness, Readiness
from .parts import Administers, Route, operation, reply, service_of

router = APIRouter(tags=["probes"], route_class=Route)

OPEN: Final[dict[str, Any]] = {"openapi_extra": {"security": []}}


@router.get("/livez", response_model=Liveness, **OPEN)
async def livez() -> Response:
    """200 while the process runs, whatever the servers do."""
    return reply(Liveness())


@router.get(
    "/readyz",
    response_model=Readiness,
    responses={503: {"model": Readiness, "description": "Postgres cannot be reached, or this code cannot run on its schema."}},
    **OPEN,
)
async def readyz(request: Request) -> Response:
    """200 if the process serves: Postgres answers, and this code can run on its schema."""
    try:
        backend = await service_of(request).backend()
        await backend.check()
    except RunyardError as error:
        return reply(Readiness(ready=False, reasons=[error.message]), 503)
    scheduler: Scheduler | None = getattr(backend, "scheduler", None)
    try:
        if scheduler is None:
            raise BackendUnavailableError("connected without Redis: runs start late, and streams lack what is not stored")
        await scheduler.ping()
    except RunyardError as error:
        return reply(Readiness(ready=True, degraded=[error.message]))
    return reply(Readiness(ready=True))


@router.get("/metrics", **operation("admin", s200=(None, "Prometheus.")))
async def metrics(caller: Administers, request: Request) -> Response:
    """What this process counts."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(REGISTRY), headers={"Content-Type": media_type})
