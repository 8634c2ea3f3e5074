"""The bodies of requests of operators: webhooks and their secrets, limits, API keys."""

from __future__ import annotations

from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from runyard.client.webhooks import DEFAULT_OVERLAP_SECONDS, MAX_OVERLAP_SECONDS
from runyard.domain.api_keys import SCOPES, Scope
from runyard.domain.events import FEED_TYPES, FeedType

from .field_types import YEAR_SECONDS, Id, Name, WebhookUrl
from .request_models import StrictBody


class WebhookRequest(StrictBody):
    """A new webhook."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"url": "https://example.com/hooks", "events": ["run.failed"]}]})

    url: WebhookUrl = Field(description="URL that receives the events. It must have a public address.")
    events: list[FeedType] | None = Field(
        None,
        min_length=1,
        max_length=len(FEED_TYPES),
        fail_fast=True,
        description="Types of events. Null: runs that end or are suspended.",
    )
    all_tenants: StrictBool = Field(
        False, description="Send the events of every tenant. Needs a key that belongs to no tenant."
    )


class RotateSecret(StrictBody):
    """The replacement of a secret by a new one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"overlap": 3600}]})

    overlap: StrictFloat = Field(
        DEFAULT_OVERLAP_SECONDS, ge=0, le=MAX_OVERLAP_SECONDS, description="Seconds for which the old secret also signs."
    )
    rotation_id: Id | None = Field(None, description="Id of your choice that makes a repetition safe.")


class LimitRequest(StrictBody):
    """A limit of the deployment."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"most": 1000}]})

    most: StrictInt = Field(ge=0, lt=2**48, description="The bound, in runs, seconds or bytes.")
    subject: Name | None = Field(
        None, description="Tenant or agent of the limit. Null: all tenants or agents without their own limit."
    )


class KeyRequest(StrictBody):
    """A new API key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "inbox", "scopes": ["read", "respond"]}]})

    name: str = Field(min_length=1, max_length=100, description="Name for people.")
    scopes: list[Scope] = Field(
        ["read", "write", "respond"], min_length=1, max_length=len(SCOPES), fail_fast=True, description="Its scopes."
    )
    lifetime: StrictFloat | None = Field(None, gt=0, lt=100 * YEAR_SECONDS, description="Seconds until the key expires.")
