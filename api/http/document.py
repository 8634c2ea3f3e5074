"""The OpenAPI document, with what the framework cannot know: how callers are recognised, problems, and streams."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from . import problems
from .document_events import STREAM, TEMPLATE, TEXT, event_schemas, webhooks
from .document_schemas import require_what_is_sent

UUID: Final = {"type": "string", "format": "uuid"}
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
HEADERS: Final = {
    "X-Request-Id": {"description": "The request's id, which the access log has.", "required": True, "schema": UUID},
    "Location": {"description": "The path of what the answer is about.", "required": True, "schema": TEXT},
    "ETag": {"description": "Changes with what the answer holds.", "required": True, "schema": TEXT},
    "Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer", "minimum": 1}},
}
"""Headers of answers."""


def document(app: FastAPI) -> dict[str, Any]:
    """The document of ``app``, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            tags=app.openapi_tags,
            servers=app.servers,
            license_info=app.license_info,
        )
        made["webhooks"] = webhooks()
        components = made.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        problem = problems.Problem.model_json_schema(ref_template=TEMPLATE)
        schemas |= {**problem.pop("$defs"), "Problem": problem, **event_schemas()}
        components["headers"] = HEADERS
        components["securitySchemes"] = SECURITY
        require_what_is_sent(made)
        _describe_streams(made)
        for _, _, described in operations(made):
            for answer in described["responses"].values():
                answer.setdefault("headers", {})["X-Request-Id"] = problems.document_header("X-Request-Id")
        components["responses"] = _shared(made)
        app.openapi_schema = made
    return app.openapi_schema


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation of a document: its method, path and description."""
    for path, methods in made["paths"].items():
        for method, described in methods.items():
            yield method, path, described


def _describe_streams(made: dict[str, Any]) -> None:
    for _, path, described in operations(made):
        if path.endswith("/stream"):
            described["responses"]["200"]["content"] = {"text/event-stream": STREAM}
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
