"""The OpenAPI document, with what the framework cannot know: how callers are recognised, problems, and streams."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from runner.models import EVENT_TYPES, Event

from . import problems

SECURITY: Final = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, `ry_…`, with the scope of the operation."},
    "apiKeyHeader": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The same key in another header."},
    "streamToken": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "A token of `POST /v1/stream_tokens`, for a browser's EventSource, which cannot send headers.",
    },
}
EVENTS: Final = {
    "schema": {
        "type": "object",
        "description": "One event of the stream.",
        "properties": {
            "id": {"type": "string", "description": "What `Last-Event-ID` names to go on after this event; a gap has none."},
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


def document(app: FastAPI) -> dict[str, Any]:
    """The document of ``app``, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
        )
        components = made.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas |= _schemas(problems.Problem) | _schemas(Event)
        components["securitySchemes"] = SECURITY
        _describe_streams(made)
        components["responses"] = _shared(made)
        app.openapi_schema = made
    return app.openapi_schema


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation of a document: its method, path and description."""
    for path, methods in made["paths"].items():
        for method, described in methods.items():
            yield method, path, described


def _schemas(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _describe_streams(made: dict[str, Any]) -> None:
    for _, path, described in operations(made):
        if path.endswith("/stream"):
            described["responses"]["200"]["content"] = {"text/event-stream": EVENTS}
        elif path == "/metrics":
            described["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}


def _shared(made: dict[str, Any]) -> dict[str, Any]:
    """Replace answers that many operations have in common by references; what they refer to."""
    answers = [(described["responses"], status) for _, _, described in operations(made) for status in described["responses"]]
    seen = Counter(_key(responses[status]) for responses, status in answers)
    shared: dict[str, Any] = {}
    for responses, status in answers:
        answer = responses[status]
        examples = answer.get("content", {}).get(problems.MEDIA_TYPE, {}).get("examples")
        if examples and seen[_key(answer)] > 1:
            name = "-or-".join(examples)
            shared[name] = answer
            responses[status] = {"$ref": f"#/components/responses/{name}"}
    return dict(sorted(shared.items()))


def _key(answer: dict[str, Any]) -> str:
    return json.dumps(answer, sort_keys=True)
