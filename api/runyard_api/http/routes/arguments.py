"""The arguments that several routes have: ids in paths, pages of lists, the time to wait, and the last received event.

A page has 100 entries by default. ``max_page`` in ``settings.py`` is the largest page.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypedDict

from fastapi import Depends, Header, Path, Query
from pydantic import AfterValidator, BeforeValidator

from runyard.models import MAX_ID_LENGTH, MAX_LABEL_LENGTH, check_label

from ..field_types import ID_SCHEMA, checked_id
from ..paths import decoded
from ..tenant_client import Caller
from .route_access import Reads

MAX_CURSOR_CHARACTERS: Final = 2000
"""Maximum length of a page's cursor, in characters."""


def _id(description: str) -> Any:
    return Path(min_length=1, max_length=MAX_ID_LENGTH, description=description, json_schema_extra=ID_SCHEMA)


ThreadId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the thread.")]
RunId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the run.")]
MessageId = Annotated[
    str,
    BeforeValidator(decoded),
    Path(max_length=MAX_ID_LENGTH, description="Id of the message.", json_schema_extra={"format": "uuid"}),
]
Label = Annotated[
    str,
    BeforeValidator(decoded),
    AfterValidator(check_label),
    Path(min_length=1, max_length=MAX_LABEL_LENGTH, description="Label of a branch.", json_schema_extra=ID_SCHEMA),
]
AgentName = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Name of the agent.")]
QueueName = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Name of the queue.")]
WorkerId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the worker.")]
KeyId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the key.")]
WebhookId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the webhook.")]
DeliveryId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the delivery.")]
RequestId = Annotated[str, BeforeValidator(decoded), AfterValidator(checked_id), _id("Id of the request.")]

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries of the page. A server may return fewer.")]
Cursor = Annotated[
    str | None,
    Query(
        max_length=MAX_CURSOR_CHARACTERS,
        description="The `next` of the previous page.",
        json_schema_extra={"format": "cursor"},
    ),
]


def bounded(limit: int, caller: Caller) -> int:
    """Return ``limit``, or the size of the largest page if ``limit`` is higher. The next page begins at ``next``."""
    return min(limit, caller.service.settings.max_page)


class PageArguments(TypedDict):
    """The client's arguments that select the page of a list."""

    limit: int
    cursor: str | None


async def _page_arguments(caller: Reads, limit: Limit = 100, cursor: Cursor = None) -> PageArguments:
    return {"limit": bounded(limit, caller), "cursor": cursor}


Paging = Annotated[PageArguments, Depends(_page_arguments)]

Wait = Annotated[float, Query(ge=0, le=3600, description="Maximum seconds to wait. The server also has a limit.")]
LastEventId = Annotated[
    str | None,
    Header(max_length=20_000, description="Id of the last event that arrived. Browsers send this header by themselves."),
]


def patience(wait: float, caller: Caller) -> float:
    """Return ``wait``, limited to the longest wait of the settings."""
    return min(wait, caller.service.settings.max_wait)
