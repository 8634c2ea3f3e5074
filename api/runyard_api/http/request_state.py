"""The path of a request, and the record of a request in progress: its id, principal, response headers and error code.

The record has its own key in the ASGI scope, because a host that mounts the API may use any name in ``request.state``.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any


def state_of(scope: MutableMapping[str, Any]) -> dict[str, Any]:
    """Return the record of the request with this scope."""
    state: dict[str, Any] = scope.setdefault("runyard", {})
    return state


def route_path(scope: MutableMapping[str, Any]) -> str:
    """Return the path without the prefix under which the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(root) else path
