"""Routes that examine a deployment: the findings of the doctor, and the stacks of a worker."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from runyard.errors import BackendUnavailableError, RunyardError, WorkerNotFoundError

from ...diagnosis.deployment import of_deployment
from ...diagnosis.workers import stacks_of
from ..answers import DoctorFinding, DoctorReport, WorkerStacks
from ..tenant_client import Caller
from .arguments import WorkerId
from .documentation import operation
from .replies import reply
from .route_access import Operates, Route

router = APIRouter(tags=["deployment"], route_class=Route)


@router.get("/v1/doctor", **operation(s200=(DoctorReport, "What was found, the servers first.")))
async def examine_deployment(caller: Operates) -> Response:
    """Check the servers, the workers and the queues. With a direct connection, `runyard doctor` has more checks.

    Needs a key that belongs to no tenant.
    """
    found = [await _redis(caller)]
    found += [DoctorFinding.model_validate(each) for each in await of_deployment(caller.client)]
    return reply(DoctorReport(items=found))


async def _redis(caller: Caller) -> DoctorFinding:
    try:
        await caller.client.backend.scheduler.ping()
    except RunyardError as error:
        return DoctorFinding(level="fail", about="redis", says=error.message, do="start Redis; no run starts until then")
    return DoctorFinding(level="ok", about="redis", says="answers")


@router.get(
    "/v1/workers/{worker_id}/stacks",
    **operation(WorkerNotFoundError, BackendUnavailableError, s200=(WorkerStacks, "The stacks at this moment.")),
)
async def read_stacks(caller: Operates, worker_id: WorkerId) -> Response:
    """Read the stacks of a worker, even while user code blocks its event loop. The API process requests them from the worker. A
    worker answers only processes of its own machine, unless it has RUNYARD_REMOTE_STACKS=true.

    Needs a key that belongs to no tenant.
    """
    worker = await caller.client.worker(worker_id)
    return reply(WorkerStacks(worker_id=worker.worker_id, stacks=await asyncio.to_thread(stacks_of, worker)))
