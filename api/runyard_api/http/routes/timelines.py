"""Routes of the timelines of runs."""

from __future__ import annotations

from fastapi import APIRouter, Response

from runyard.domain.timeline import Timeline
from runyard.errors import InvalidCursorError, RunNotFoundError, ThreadNotFoundError

from .arguments import Paging, RunId, ThreadId
from .documentation import operation
from .replies import reply
from .route_access import Reads, Route
from .runs import OF_RUN

router = APIRouter(tags=["runs"], route_class=Route)


@router.get(
    f"{OF_RUN}/timeline",
    **operation(
        RunNotFoundError, ThreadNotFoundError, InvalidCursorError, s200=(Timeline, "The run, its times, and a page of entries.")
    ),
)
async def read_timeline(caller: Reads, thread_id: ThreadId, run_id: RunId, paging: Paging) -> Response:
    """Read the timeline of a run: its attempts, model requests, tools, steps, HITL requests and waits, in order.

    Inputs and results are shortened to a few hundred characters.
    """
    return reply(await caller.client.timeline(thread_id, run_id, **paging))
