"""Routes of conversations: the fork of a conversation, and a health check."""

from __future__ import annotations

from typing import Final, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from runyard.client.forks import fork_request, make_fork
from runyard.errors import (
    ForkBoundaryError,
    MessageNotFoundError,
    RunNotCompletedError,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
)
from runyard.ports.commands import Cut

from ...idempotency import Idempotency
from ...routes.arguments import ThreadId
from ...routes.documentation import operation
from ...routes.health import OPEN
from ...routes.replies import reply
from ...routes.route_access import Route, Writes
from .bodies import ConversationInfo, ForkConversation

router = APIRouter(tags=["openhands"], route_class=Route)

HEALTH: Final = "/health"


class Health(BaseModel):
    """The answer of a health check."""

    status: Literal["ok"] = "ok"


@router.get(HEALTH, response_model=Health, **OPEN)
async def openhands_health() -> Response:
    """Return 200 while the process runs. This route needs no key."""
    return reply(Health())


@router.post(
    "/api/conversations/{thread_id}/fork",
    status_code=201,
    **operation(
        ThreadNotFoundError,
        MessageNotFoundError,
        RunNotCompletedError,
        ThreadAlreadyExistsError,
        ForkBoundaryError,
        s200=(ConversationInfo, "The fork that an earlier request with the same Idempotency-Key created."),
        s201=(ConversationInfo, "The fork."),
    ),
)
async def openhands_fork(
    caller: Writes, thread_id: ThreadId, key: Idempotency, body: ForkConversation | None = None
) -> Response:
    """Fork a conversation after its last completed run, or after the message `from_event_id`.

    The source is not changed. `id` must not be in use.
    """
    given = body or ForkConversation()
    new, cut = given.id or key.id("fork", thread_id), Cut(at_message_id=given.from_event_id)
    request = fork_request(thread_id, new, cut, None, given.title, given.tags, None, given.reset_metrics)
    made, _ = await make_fork(caller.client, request)
    if given.id is not None and not made.created:
        raise ThreadAlreadyExistsError(f"there is a conversation {given.id} already; choose another id", thread_id=given.id)
    return reply(ConversationInfo.of(made.thread, given.from_event_id), 201 if made.created else 200)
