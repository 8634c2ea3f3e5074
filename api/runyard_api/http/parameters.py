"""Refuse query parameters that the route does not declare. Refuse a repeated parameter, unless its value is a list (A).

``routes/arguments.py`` has the parameters that routes share, for example ``limit`` and ``cursor``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from runyard.errors import InvalidRequestError

from .problems import MAX_FIELDS, Refusal
from .request_state import state_of

TOKEN: Final = "token"
"""Query parameter of stream tokens. ``Guard`` in ``service.py`` reads it."""
UNKNOWN: Final = "unknown parameter"
REPEATED: Final = "the parameter is repeated; give it once"


class Known:
    """The query parameters that a route and its dependencies declare."""

    def __init__(self, route: APIRoute) -> None:
        fields = [(field.alias, field.field_info.annotation) for field in _fields(route.dependant)]
        self._many = {name for name, annotation in fields if _is_list(annotation)}
        self._names = {name for name, _ in fields} | ({TOKEN} if route.path.endswith("/stream") else set())

    def check(self, request: Request) -> None:
        """Raise a Refusal with InvalidRequestError for an unknown or repeated parameter of ``request``."""
        if not request.scope.get("query_string"):
            return
        given = Counter(name for name, _ in request.query_params.multi_items())
        principal = state_of(request.scope).get("principal")
        held = {TOKEN} if principal is not None and principal.only is not None else set()
        found = dict.fromkeys(given.keys() - self._names - held, UNKNOWN)
        found |= {name: REPEATED for name, times in given.items() if times > 1 and name in self._names - self._many}
        if found:
            listed = [
                {"location": "query", "pointer": name, "message": words} for name, words in sorted(found.items())[:MAX_FIELDS]
            ]
            first = listed[0]
            hint = f"; known parameters: {', '.join(sorted(self._names)) or 'none'}" if first["message"] == UNKNOWN else ""
            raise Refusal(InvalidRequestError(f"{first['pointer']:.80}: {first['message']}{hint}", errors=listed))


def _fields(dependant: Dependant) -> Iterator[Any]:
    yield from dependant.query_params
    for each in dependant.dependencies:
        yield from _fields(each)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(_is_list(part) for part in get_args(annotation))
