"""The documentation of a route's responses, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from runyard.errors import RunyardError

from ..problems import document_header, documented

EVENTS: Final = (None, "The events. While there are none, comments show that the stream is open.")


def operation(*refusals: type[RunyardError], **answers: Any) -> dict[str, Any]:
    """Return the arguments of a route's decorator that document its responses.

    ``refusals``: the errors. ``answers``: the responses by status, as ``s201=(Model, description, "Location", …)``. The last
    values are the names of headers. Model is None for a response without content. The type of the route's parameter ``caller``
    documents the scope (:mod:`runyard_api.http.routes.route_access`).
    """
    responses = documented(*refusals)
    for name, (model, words, *headers) in answers.items():
        described = {"description": words, "headers": {header: document_header(header) for header in headers}}
        responses[int(name.removeprefix("s"))] = {**described, **({"model": model} if model is not None else {})}
    return {"responses": dict(sorted(responses.items()))}
