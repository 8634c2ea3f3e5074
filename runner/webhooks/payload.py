"""What a webhook is told, and how it is signed (https://www.standardwebhooks.com)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from ..models import ErrorInfo, FeedType, JsonObject, JsonValue, Run, RunKind, Usage
from .models import Posting

LARGEST: Final = 65_536
"""Bytes of a result as JSON that are sent along."""


class WebhookRun(BaseModel):
    """How the run stands. ``status`` is the event's.

    ``result``, ``error``, ``usage`` and ``finished_at`` are null if the run has gone on since. All but ``status`` are null if
    its thread is deleted, or if what is stored of it cannot be decoded."""

    status: Literal["completed", "failed", "cancelled", "dead", "suspended"]
    kind: RunKind | None
    agent: str | None
    metadata: JsonObject | None
    result: JsonValue = Field(description="What an agent or a job returned.")
    result_omitted: bool = Field(description=f"True if the result is larger than {LARGEST} bytes: read the run.")
    error: ErrorInfo | None
    usage: Usage | None
    finished_at: datetime | None


class WebhookEvent(BaseModel):
    """What a webhook is told. ``id``: the same in every repetition. ``run`` is null where the event is not a run's."""

    id: str
    type: FeedType
    created_at: datetime
    tenant: str
    thread_id: str
    run_id: str | None
    run: WebhookRun | None


def body_of(posting: Posting, run: Run | None) -> bytes:
    """The body: what happened, where, and of a run how it stands. ``run`` is None if none can be read."""
    return _json(
        {
            "id": posting.delivery_id,
            "type": posting.type,
            "created_at": posting.created_at,
            "tenant": posting.tenant,
            "thread_id": posting.thread_id,
            "run_id": posting.run_id,
            "run": _summary(posting, run) if posting.run_id is not None else None,
        }
    )


def _summary(posting: Posting, run: Run | None) -> JsonObject:
    """``status`` is the event's. A run that has gone on since then does not tell its later story under an earlier name."""
    status = posting.type.removeprefix("run.")
    still = run if run is not None and run.status == status else None
    large = still is not None and still.result is not None and len(_json(still.result)) > LARGEST
    return {
        "status": status,
        "kind": run.kind if run else None,
        "agent": run.agent if run else None,
        "metadata": run.metadata if run else None,
        "result": still.result if still and not large else None,
        "result_omitted": large,
        "error": still.error.model_dump() if still and still.error else None,
        "usage": still.usage.model_dump() if still else None,
        "finished_at": still.finished_at.isoformat() if still and still.finished_at else None,
    }


def signed(delivery_id: str, body: bytes, secrets: Iterable[str], now: datetime) -> dict[str, str]:
    """The headers of a try at ``now`` (aware). ``secrets``: ``whsec_`` and base64; each signs."""
    from standardwebhooks import Webhook  # only a worker that leads needs it

    return {
        "content-type": "application/json",
        "user-agent": "runyard",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(each).sign(delivery_id, now, body.decode()) for each in secrets),
    }


def _json(value: object) -> bytes:
    return json.dumps(to_jsonable_python(value, inf_nan_mode="null"), separators=(",", ":"), ensure_ascii=True).encode()
