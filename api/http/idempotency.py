"""``Idempotency-Key``: one header for every POST, in the place of the id that each operation has for repetitions.

The key becomes that id, by tenant, operation and thread, and nothing else is stored: a repetition is what the same request
under the same id is, for as long as the thread exists. An id in the body wins over the header. Where an operation has no id
because the state decides what a repetition does, the key is checked for its form and not used.
"""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Header, Request

from runner.errors import InvalidRequestError

from .auth import Principal
from .problems import Refusal

KEYS: Final = uuid.UUID("5d1f0a53-0f5e-5a9c-8c7e-2b1f6f4f8a21")
LONGEST: Final = 255
SAYS: Final = "Any text of yours; the same request under the same key is answered alike. An id in the body wins over it."
UNUSED: Final = "Accepted and not used: the state decides what a repetition does."


class Key(NamedTuple):
    """The key of a request, None without one, and the tenant that it belongs to."""

    value: str | None
    tenant: str

    def id(self, operation: str, *of: str) -> str | None:
        """A UUID for ``operation`` on what ``of`` names; None without a key."""
        if self.value is None:
            return None
        return str(uuid.uuid5(KEYS, json.dumps([self.tenant, operation, *of, self.value])))


def _header(says: str) -> Any:
    return Header(min_length=1, max_length=LONGEST, pattern="^[!-~]+$", description=says)


def _key(request: Request, idempotency_key: Annotated[str | None, _header(SAYS)] = None) -> Key:
    _check_one(request)
    principal: Principal = request.scope["state"]["principal"]
    return Key(idempotency_key, principal.tenant)


def _unused(request: Request, idempotency_key: Annotated[str | None, _header(UNUSED)] = None) -> None:
    """The header's form is checked, nothing more."""
    _check_one(request)


def _check_one(request: Request) -> None:
    """Raises InvalidRequestError, in the framework's wrapping."""
    if len(request.headers.getlist("idempotency-key")) > 1:
        at = {"location": "header", "pointer": "Idempotency-Key", "message": "give it once"}
        raise Refusal(InvalidRequestError("Idempotency-Key: give it once", errors=[at]))


Idempotency = Annotated[Key, Depends(_key)]
BY_STATE: Final = [Depends(_unused)]
"""The dependencies of a route whose repetition is safe, or refused, by the state alone."""
