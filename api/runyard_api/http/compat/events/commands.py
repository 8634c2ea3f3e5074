"""Commands: create a thread, send a message to a thread, fork a thread. A run answers the message later."""

from __future__ import annotations

from fastapi import APIRouter, Response

from runyard.client.forks import fork_request, make_fork
from runyard.errors import ForkBoundaryError, MessageNotFoundError, ThreadAlreadyExistsError, ThreadNotFoundError
from runyard.models import Run, new_id
from runyard.ports.commands import Cut

from ...idempotency import Idempotency
from ...request_models import CreateThread
from ...routes import runs, threads
from ...routes.documentation import operation
from ...routes.replies import reply
from ...routes.route_access import Route, Writes
from .answers import EventThread
from .bodies import ForkThread, SendMessage

router = APIRouter(prefix="/commands", tags=["events"], route_class=Route)

PREFIX = "branch-"
"""The beginning of a fork's generated id."""


@router.post(
    "/create-thread",
    status_code=201,
    **operation(
        ThreadAlreadyExistsError,
        s200=(EventThread, "The thread that an earlier request with the same content created.", "Location"),
        s201=(EventThread, "The new thread. `Location` is its native path.", "Location"),
    ),
)
async def events_create_thread(caller: Writes, key: Idempotency, body: CreateThread | None = None) -> Response:
    """Create a thread without messages."""
    given = body or CreateThread()
    made = await threads.make(caller, given, given.thread_id or key.id("create-thread"))
    where = caller.location("threads", made.thread.thread_id)
    return reply(EventThread.of(made.thread), 201 if made.created else 200, Location=where)


@router.post(
    "/send-message",
    status_code=202,
    **operation(
        *runs.REFUSED,
        ThreadNotFoundError,
        s200=(Run, "The run that an earlier request with the same content created.", "Location"),
        s202=(Run, "The accepted run, which will answer the message. `Location` is its native path.", "Location"),
    ),
)
async def events_send_message(caller: Writes, body: SendMessage, key: Idempotency) -> Response:
    """Enqueue a run that answers a message. The message gets its event number when the run starts."""
    await caller.client.thread(body.thread_id)  # a prompt without this check would create the thread
    run_id = body.run_id or key.id("send-message", body.thread_id)
    return runs.accepted(caller, await caller.client.enqueue(body.thread_id, body.message(), run_id))


@router.post(
    "/fork-thread",
    status_code=201,
    **operation(
        ThreadNotFoundError,
        MessageNotFoundError,
        ForkBoundaryError,
        ThreadAlreadyExistsError,
        s200=(EventThread, "The fork that an earlier request with the same content created.", "Location"),
        s201=(EventThread, "The new fork. `Location` is its native path.", "Location"),
    ),
)
async def events_fork_thread(caller: Writes, body: ForkThread, key: Idempotency) -> Response:
    """Create a fork. The new thread inherits the history up to an event, including this event. No message is copied."""
    source = body.source_thread_id
    new = body.thread_id or PREFIX + (key.id("fork-thread", source) or new_id())
    request = fork_request(source, new, Cut(at_seq=body.event_number), None, body.title, None, None, True)
    forked, _ = await make_fork(caller.client, request)
    return reply(EventThread.of(forked.thread), 201 if forked.created else 200, Location=caller.location("threads", new))
