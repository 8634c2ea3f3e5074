"""Check of request bodies against the types of the providers' own SDKs. A field that the type does not have is a fault."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator, ValidationError

from tests.support.providers.conversation import Body

TAGS = ("role", "type")


class Malformed(Exception):
    """The first fault. ``path``: its place in the body. ``kind``: pydantic's name of the fault."""

    def __init__(self, path: tuple[str | int, ...], kind: str, message: str, given: object) -> None:
        super().__init__(message)
        self.path, self.kind, self.message, self.given = path, kind, message, given


class Schema:
    """The type of a request's body: a TypedDict of an SDK, or one made from its models."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape

    @cached_property
    def validator(self) -> SchemaValidator:
        adapter = TypeAdapter(self.shape)
        adapter.rebuild(force=True)
        return SchemaValidator(strict(adapter.core_schema))

    def check(self, raw: bytes, body: Body) -> None:
        """Raise :class:`Malformed` unless ``raw``, which is ``body`` as JSON, is of this type."""
        try:
            self.validator.validate_json(raw, strict=True)
        except ValidationError as error:
            fault = telling(error.errors(include_url=False))
            path = tuple(within(body, fault["loc"], missing=fault["type"] == "missing"))
            raise Malformed(path, fault["type"], fault["msg"], fault["input"]) from None


def strict(schema: Any) -> CoreSchema:
    """Return the schema with two changes: unknown fields are faults, and iterables are checked at once."""
    if isinstance(schema, dict):
        result = {key: value if key in ("metadata", "serialization") else strict(value) for key, value in schema.items()}
        if schema.get("type") == "typed-dict":
            result["extra_behavior"] = "allow" if "extras_schema" in schema else "forbid"
        if schema.get("type") == "generator":
            result["type"] = "list"
        return result  # type: ignore[return-value]
    if isinstance(schema, list | tuple):
        return type(schema)(strict(item) for item in schema)  # type: ignore[return-value]
    return schema  # type: ignore[no-any-return]


def telling(errors: list[ErrorDetails]) -> ErrorDetails:
    """Return the most useful error: one of the union member that the role or type of the value selects."""
    strangers = [error["loc"][:-1] for error in errors if error["type"] == "literal_error" and error["loc"][-1] in TAGS]
    meant = [error for error in errors if not any(error["loc"][: len(stranger)] == stranger for stranger in strangers)]
    return max(meant or errors, key=lambda error: (error["type"] == "extra_forbidden", len(error["loc"])))


def within(body: Any, location: tuple[str | int, ...], *, missing: bool) -> Iterator[str | int]:
    """Return the path in the body from a location of pydantic, which also has the names of union members."""
    for n, step in enumerate(location):
        if step in (body if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ()):
            yield step
            body = body[step]
        elif missing and n == len(location) - 1:
            yield step
