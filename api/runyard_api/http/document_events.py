"""The schemas of events in the OpenAPI document, for streams and for webhooks."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from runyard.domain.event_data import EVENT_DATA
from runyard.models import EVENT_TYPES, FEED_TYPES
from runyard.worker.signed_webhook import WebhookEvent

TEMPLATE: Final = "#/components/schemas/{model}"
TEXT: Final = {"type": "string"}
STREAM: Final = {
    "schema": {
        "type": "object",
        "description": "One event of the stream.",
        "properties": {
            "id": {"type": "string", "description": "Value of `Last-Event-ID` to resume after this event. A gap has no id."},
            "event": {"type": "string", "enum": list(EVENT_TYPES)},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": "#/components/schemas/Event"},
            },
        },
        "required": ["event", "data"],
    },
    "example": 'id: 7-2\nevent: message.delta\ndata: {"id":"7-2","type":"message.delta","thread_id":"t","run_id":"r",'
    '"data":{"message_id":"0198…","text":"Hel"}}\n\n',
}
"""Content of a response that is a stream."""
WHEN: Final = {
    "run.completed": "A run completed.",
    "run.failed": "A run failed.",
    "run.cancelled": "A run was cancelled.",
    "run.dead": "A run crashed its workers too often.",
    "run.suspended": "A run waits for a human, a time, a signal or a child.",
    "message.stored": "A message without a run was stored.",
    "thread.forked": "A thread was forked from another one.",
    "thread.deleted": "A thread was deleted.",
}
SIGNED: Final = {
    "webhook-id": "Id of the event. Every try has the same id.",
    "webhook-timestamp": "Time of this try, in seconds since 1970.",
    "webhook-signature": "Signature of standard-webhooks, `v1,…`; several, separated by spaces, while a secret is replaced.",
}
"""The headers of a webhook."""


def event_schemas() -> dict[str, Any]:
    """Return the schemas of events and of their data. ``Event`` is the union of all events, distinguished by ``type``."""
    models: list[type[BaseModel]] = [*dict.fromkeys(EVENT_DATA.values()), WebhookEvent]
    _, made = models_json_schema([(model, "serialization") for model in models], ref_template=TEMPLATE)
    schemas: dict[str, Any] = made["$defs"]
    named = {_name(type_): _event(type_) for type_ in EVENT_TYPES}
    refs = {type_: TEMPLATE.format(model=_name(type_)) for type_ in EVENT_TYPES}
    event = {
        "title": "Event",
        "description": "One event of a stream. Readers ignore types and fields that they do not know.",
        "oneOf": [{"$ref": ref} for ref in refs.values()],
        "discriminator": {"propertyName": "type", "mapping": refs},
    }
    return {**schemas, **named, "Event": event}


def _name(type_: str) -> str:
    return "".join(word.capitalize() for word in type_.split(".")) + "Event"


def _event(type_: str) -> dict[str, Any]:
    properties = {
        "id": {"type": "null"} if type_ == "gap" else TEXT,
        "type": {"const": type_, "type": "string"},
        "thread_id": TEXT,
        "run_id": TEXT,
        "data": {"$ref": TEMPLATE.format(model=EVENT_DATA[type_].__name__)},
    }
    return {"title": _name(type_), "type": "object", "properties": properties, "required": list(properties)}


def webhooks() -> dict[str, Any]:
    """Return the section of the document about webhooks, with an entry for each type of event."""
    headers = [
        {"name": name, "in": "header", "required": True, "description": says, "schema": TEXT} for name, says in SIGNED.items()
    ]
    body = {"application/json": {"schema": {"$ref": TEMPLATE.format(model="WebhookEvent")}}}
    told = {
        "tags": ["webhooks"],
        "parameters": headers,
        "requestBody": {"required": True, "content": body},
        "responses": {
            "2XX": {"description": "The receiver accepts the event."},
            "410": {"description": "The receiver refuses all further events. The webhook is disabled."},
            "default": {"description": "The delivery is tried again later, not before `Retry-After`."},
        },
    }
    return {
        type_: {
            "post": {
                **told,
                "operationId": f"told_{type_.replace('.', '_')}",
                "summary": WHEN[type_],
                "description": f"{WHEN[type_]} Sent at least once, with a signature of standard-webhooks.",
            }
        }
        for type_ in FEED_TYPES
    }
