"""Routes of sessions: create, list, delete, and the configs of one session.

A session's ``user`` and ``disable_task_tracking`` are tags of its thread. Its configs are ``extra["configs"]``.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from time import monotonic
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from runyard.domain.validation import check_uuid
from runyard.errors import (
    InvalidCursorError,
    InvalidInputError,
    PreconditionFailedError,
    ThreadAlreadyExistsError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from runyard.models import JsonObject, Thread
from runyard.ports.results import Page

from ...idempotency import Idempotency
from ...routes.arguments import Paging, ThreadId
from ...routes.replies import reply
from ...routes.route_access import Anyone, Reads, Route, Writes
from ...tenant_client import Caller
from .bodies import Configs, NewSession
from .containment import contains, wanted
from .envelope import Answer, Done, operation

router = APIRouter(prefix="/api/v1", tags=["acontext"], route_class=Route)

CONFIGS: Final = "configs"
"""Name of a session's configs in the ``extra`` of its thread."""
USER, UNTRACKED = "user", "disable_task_tracking"
"""Names of tags of a session's thread."""
FILTERED_AT_ONCE: Final = 10
"""Number of sessions to compare with the filter between two checks of FILTER_SECONDS."""
FILTER_SECONDS: Final = 0.5
"""Seconds after which a page of a filtered list ends."""
PATCH_TRIES: Final = 10
"""Maximum number of tries to change the configs of a session. A try fails if the thread has changed after the configs were
read."""


class Session(BaseModel):
    """A session. ``omitted``: the names of fields that a list leaves empty because they are large. `GET …/configs` returns
    them."""

    id: str = Field(description="Id of the thread.")
    project_id: str = Field(description="The tenant.")
    user_id: str | None = Field(description="The `user` with which the session was created.")
    disable_task_tracking: bool
    space_id: None = None
    configs: JsonObject | None
    created_at: datetime
    updated_at: datetime
    omitted: list[str]

    @classmethod
    def of(cls, thread: Thread, tenant: str) -> Session:
        """Return ``thread`` as a session."""
        configs = thread.extra.get(CONFIGS)
        return cls(
            id=thread.thread_id,
            project_id=tenant,
            user_id=thread.tags.get(USER),
            disable_task_tracking=thread.tags.get(UNTRACKED) == "true",
            configs=configs if isinstance(configs, dict) else None,
            created_at=thread.created_at,
            updated_at=thread.updated_at,
            omitted=[CONFIGS] if "extra" in thread.omitted else [],
        )


class Sessions(BaseModel):
    """A page of sessions."""

    items: list[Session]
    next_cursor: str | None
    has_more: bool


class MergedConfigs(BaseModel):
    """The configs after a change."""

    configs: JsonObject


@router.get("/ping", **operation(s200=(Done, "The server answers. `msg` is `pong`.")))
async def acontext_ping(principal: Anyone) -> Response:
    """Check the connection and the key."""
    return reply(Done(msg="pong"))


@router.post(
    "/session",
    status_code=201,
    **operation(
        ThreadAlreadyExistsError,
        s200=(Answer[Session], "The session that an earlier request with the same Idempotency-Key created."),
        s201=(Answer[Session], "The new session."),
    ),
)
async def acontext_create_session(caller: Writes, key: Idempotency, body: NewSession | None = None) -> Response:
    """Create a session. `use_uuid` is the id of the session. The id must not be in use."""
    given = body or NewSession()
    chosen = check_uuid(given.use_uuid, "use_uuid") if given.use_uuid is not None else None
    tags = {USER: given.user} if given.user else {}
    tags |= {UNTRACKED: "true"} if given.disable_task_tracking else {}
    extra: JsonObject = {CONFIGS: given.configs} if given.configs is not None else {}
    made = await caller.client.create_thread(chosen or key.id("sessions"), tags=tags, extra=extra)
    if chosen is not None and not made.created:
        raise ThreadAlreadyExistsError(f"there is a session {chosen} already; choose another id", thread_id=chosen)
    data = Session.of(made.thread, caller.principal.tenant)
    return reply(Answer[Session](data=data), 201 if made.created else 200)


@router.get("/session", **operation(InvalidCursorError, s200=(Answer[Sessions], "A page of sessions.")))
async def acontext_list_sessions(
    caller: Reads,
    paging: Paging,
    user: Annotated[str | None, Query(description="Only sessions of this user.")] = None,
    filter_by_configs: Annotated[str | None, Query(description="Only sessions whose configs contain this JSON object.")] = None,
    time_desc: Annotated[bool, Query(description="Only `false`: the oldest session is the first.")] = False,
) -> Response:
    """List sessions, the oldest first. Every thread of the tenant is a session.

    With `filter_by_configs`, a page may have fewer sessions than `limit`, even if more pages follow.
    """
    if time_desc:
        raise InvalidInputError("sessions are listed with the oldest first; leave out time_desc", field="time_desc")
    tags = {USER: user} if user else None
    if filter_by_configs is None:
        page = await caller.client.threads(tags=tags, **paging)
    else:
        page = await _with_configs(caller, wanted(filter_by_configs), tags, **paging)
    items = [Session.of(thread, caller.principal.tenant) for thread in page.items]
    return reply(Answer[Sessions](data=Sessions(items=items, next_cursor=page.next, has_more=page.next is not None)))


async def _with_configs(
    caller: Caller, configs: JsonObject, tags: dict[str, str] | None, limit: int, cursor: str | None
) -> Page[Thread]:
    """Examine the next ``limit`` sessions, and stop after FILTER_SECONDS. Return the examined sessions whose configs contain
    ``configs``."""
    found, examined, began = [], 0, monotonic()
    while True:
        page = await caller.client.threads(tags=tags, limit=min(FILTERED_AT_ONCE, limit - examined), cursor=cursor)
        found += [thread for thread in page.items if await _fits(caller, thread, configs)]
        examined, cursor = examined + len(page.items), page.next
        if cursor is None or examined >= limit or monotonic() - began > FILTER_SECONDS:
            return Page(found, cursor)


async def _fits(caller: Caller, thread: Thread, configs: JsonObject) -> bool:
    """Return True if the configs of a listed session contain ``configs``. The event loop runs during the comparison."""
    if "extra" in thread.omitted:
        try:
            thread = await caller.client.thread(thread.thread_id)
        except ThreadNotFoundError:
            return False
    return await asyncio.to_thread(contains, thread.extra.get(CONFIGS), configs)


@router.delete(
    "/session/{thread_id}", **operation(ThreadNotFoundError, ThreadBusyError, s200=(Done, "The session is deleted."))
)
async def acontext_delete_session(caller: Writes, thread_id: ThreadId) -> Response:
    """Delete a session with its messages. A session with a live run is not deleted."""
    await caller.client.delete_thread(thread_id)
    return reply(Done())


@router.get("/session/{thread_id}/configs", **operation(ThreadNotFoundError, s200=(Answer[Session], "The session.")))
async def acontext_get_configs(caller: Reads, thread_id: ThreadId) -> Response:
    """Read a session with its configs."""
    thread = await caller.client.thread(thread_id)
    return reply(Answer[Session](data=Session.of(thread, caller.principal.tenant)))


@router.put("/session/{thread_id}/configs", **operation(ThreadNotFoundError, s200=(Done, "The configs are replaced.")))
async def acontext_replace_configs(caller: Writes, thread_id: ThreadId, body: Configs) -> Response:
    """Replace the configs of a session."""
    await caller.client.update_thread(thread_id, extra={CONFIGS: body.configs})
    return reply(Done())


@router.patch(
    "/session/{thread_id}/configs",
    **operation(ThreadNotFoundError, PreconditionFailedError, s200=(Answer[MergedConfigs], "All configs after the change.")),
)
async def acontext_merge_configs(caller: Writes, thread_id: ThreadId, body: Configs) -> Response:
    """Set the given configs and keep all other configs. A config with the value null is removed."""
    return reply(Answer[MergedConfigs](data=MergedConfigs(configs=await _merge(caller, thread_id, body.configs))))


async def _merge(caller: Caller, thread_id: str, changes: JsonObject) -> JsonObject:
    """Merge ``changes`` into the configs of a session and return the configs. Raises PreconditionFailedError.

    If the thread changes between the read and the write, the store refuses the write. The merge is then tried again.
    """
    for tries_left in reversed(range(PATCH_TRIES)):
        thread = await caller.client.thread(thread_id)
        merged = {**_configs(thread), **changes}
        merged = {name: value for name, value in merged.items() if value is not None or name not in changes}
        try:
            await caller.client.update_thread(thread_id, extra={CONFIGS: merged}, expected=thread.updated_at)
        except PreconditionFailedError:
            if not tries_left:
                raise
        else:
            break
    return merged


def _configs(thread: Thread) -> dict[str, Any]:
    configs = thread.extra.get(CONFIGS)
    return configs if isinstance(configs, dict) else {}
