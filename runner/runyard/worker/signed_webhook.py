"""The body of a webhook, and its signature (https://www.standardwebhooks.com)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from ..domain.events import FeedType
from ..domain.messages import Usage
from ..domain.runs import ErrorInfo, Run, RunKind
from ..domain.size_limits import JsonObject, JsonValue
from ..domain.webhooks import Posting

MAX_RESULT_BYTES: Final = 65_536
"""Maximum number of bytes of a result in a webhook, as JSON."""


class WebhookRun(BaseModel):
    """The run of an event. ``status``: the status in the event.

    If the run has continued after the event, ``result``, ``error``, ``usage`` and ``finished_at`` are null. If the thread is
    deleted, or if the stored data of the run cannot be decoded, only ``status`` and ``result_omitted`` are set.
    """

    status: Literal["completed", "failed", "cancelled", "dead", "suspended"]
    kind: RunKind | None
    agent: str | None
    metadata: JsonObject | None
    result: JsonValue = Field(description="The result of the agent or of the job.")
    result_omitted: bool = Field(description=f"True if the result is larger than {MAX_RESULT_BYTES} bytes: read the run.")
    error: ErrorInfo | None
    usage: Usage | None
    finished_at: datetime | None


class WebhookEvent(BaseModel):
    """The body of a webhook. ``id`` is the same in every repetition. ``run`` is null if the event belongs to no run."""

    id: str
    type: FeedType
    created_at: datetime
    tenant: str
    thread_id: str
    run_id: str | None
    run: WebhookRun | None


def body_of(posting: Posting, run: Run | None) -> bytes:
    """Return the body for ``posting``, with a summary of ``run``. ``run`` is None if the run cannot be read."""
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
    """Return a summary of the run. If the run has continued after the event, leave out the data of its end."""
    status = posting.type.removeprefix("run.")
    still = run.without_tracebacks() if run is not None and run.status == status else None
    large = still is not None and still.result is not None and len(_json(still.result)) > MAX_RESULT_BYTES
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
    """Return the headers of one try of a delivery. ``now``: the present time, with a time zone.

    ``secrets``: secrets of the form ``whsec_`` and a base64 text. The headers have one signature for each secret.
    """
    from standardwebhooks import Webhook  # only the leader needs this package

    return {
        "content-type": "application/json",
        "user-agent": "runyard",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(Webhook(each).sign(delivery_id, now, body.decode()) for each in secrets),
    }


def _json(value: object) -> bytes:
    return json.dumps(to_jsonable_python(value, inf_nan_mode="null"), separators=(",", ":"), ensure_ascii=True).encode()
