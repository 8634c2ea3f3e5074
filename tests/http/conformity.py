"""What goes over the wire, held against the API's OpenAPI document."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import httpx
from jsonschema import Draft202012Validator

HEADERS: Final = ("Location", "ETag", "Retry-After", "X-Request-Id")
"""Headers that a document says exactly."""


class Documented:
    """An OpenAPI document to ask what it says."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        events = {"$ref": "#/components/schemas/Event", "components": document["components"]}
        self._events = Draft202012Validator(events)

    def check_event(self, data: bytes) -> None:
        """Fail if ``data`` is no event of the document."""
        event = json.loads(data)
        if not self._events.is_valid(event):
            name = "".join(word.capitalize() for word in event["type"].split(".")) + "Event"
            narrow = {"$ref": f"#/components/schemas/{name}", "components": self.document["components"]}
            found = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(narrow).iter_errors(event)]
            raise AssertionError(f"{data!r} is no {name}: {found}")

    def check_headers(self, response: httpx.Response) -> None:
        """Fail if the document names headers that ``response`` lacks, or does not name those that it has."""
        answers = self._answers(response.request.method.lower(), response.request.url.raw_path.decode().partition("?")[0])
        said = answers.get(str(response.status_code)) if answers is not None else None
        if said is None:
            return
        if ref := said.get("$ref"):
            said = self.document["components"]["responses"][ref.rpartition("/")[2]]
        named = set(said.get("headers", {}))
        there = {name for name in HEADERS if name in response.headers}
        assert named == there, f"{response.request.method} {response.request.url}: {response.status_code}: {named} {there}"

    def _answers(self, method: str, path: str) -> dict[str, Any] | None:
        fitting = [
            template
            for template, methods in self.document["paths"].items()
            if method in methods and re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template)), path)
        ]
        nearest = min(fitting, key=lambda template: template.count("{"), default=None)
        answers: dict[str, Any] | None = self.document["paths"][nearest][method]["responses"] if nearest else None
        return answers
