"""The OpenAPI document. The framework makes the document. This module adds security schemes, problems and streams."""

from __future__ import annotations

import json
import re
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
        "description": "A token of `POST /v1/stream_tokens`. "
        "A browser's EventSource needs such a token, because EventSource cannot send headers.",
    },
}
HEADERS: Final = {
    "X-Request-Id": {"description": "Id of the request. The access log has the same id.", "required": True, "schema": UUID},
    "Location": {"description": "Path of the resource that the response is about.", "required": True, "schema": TEXT},
    "ETag": {"description": "Version of the content.", "required": True, "schema": TEXT},
    "Retry-After": {
        "description": "Seconds to wait before the next try.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
}
"""Headers of responses."""
_ROLE: Final = re.compile(r":[a-z]+:`~?(?:[\w.]+\.)?(\w+)`")


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document of ``app``. The first call makes the document."""
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
        _drop_roles(made)
        app.openapi_schema = made
    return app.openapi_schema


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the method, path and description of each operation."""
    for path, methods in made["paths"].items():
        for method, described in methods.items():
            yield method, path, described


def _drop_roles(node: Any) -> None:
    """Replace the roles of docstrings by bare names in all descriptions, for example ``:class:`Run` `` by ```Run```."""
    if isinstance(node, dict):
        if isinstance(text := node.get("description"), str):
            node["description"] = _ROLE.sub(r"`\1`", text)
        for value in node.values():
            _drop_roles(value)
    elif isinstance(node, list):
        for value in node:
            _drop_roles(value)


def _describe_streams(made: dict[str, Any]) -> None:
    for _, path, described in operations(made):
        if path.endswith("/stream"):
            described["responses"]["200"]["content"] = {"text/event-stream": STREAM}
        elif path == "/metrics":
            described["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}


def _shared(made: dict[str, Any]) -> dict[str, Any]:
    """Replace each response that several operations share by a reference. Return the shared responses by name."""
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
