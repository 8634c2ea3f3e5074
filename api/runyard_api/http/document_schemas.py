"""Set the required fields of schemas. A response has all fields. A request may omit fields with a default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

PREFIX: Final = "#/components/schemas/"


def require_what_is_sent(made: dict[str, Any]) -> None:
    """Set the required fields of all schemas except those of request bodies.

    Schemas of responses and webhooks require every field. Schemas of events and problems require the fields that are never
    omitted. Events and problems omit a null field if a missing field has the same meaning.
    """
    schemas = made["components"]["schemas"]
    operations = [operation for methods in made["paths"].values() for operation in methods.values()]
    taken = _reached(schemas, [operation.get("requestBody") for operation in operations])
    told = _reached(schemas, [{"$ref": f"{PREFIX}{name}"} for name in ("Event", "Problem")])
    for name, schema in schemas.items():
        if name in taken or "properties" not in schema:
            continue
        fields = schema["properties"].items()
        sent = [field for field, of in fields if name not in told or of.get("default", ...) is not None]
        schema["required"] = sent


def _reached(schemas: dict[str, Any], start: Any) -> set[str]:
    """Return the names of the schemas to which ``start`` refers, directly or through other schemas."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in set(_named(waiting.pop())) - reached:
            reached.add(name)
            waiting.append(schemas[name])
    return reached


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        ref = value.get("$ref")
        if isinstance(ref, str) and ref.startswith(PREFIX):
            yield ref.removeprefix(PREFIX)
        for each in value.values():
            yield from _named(each)
    elif isinstance(value, list):
        for each in value:
            yield from _named(each)
