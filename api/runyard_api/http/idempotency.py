"""The header ``Idempotency-Key``. The store recognizes a repeated request by an id. A POST may have this header instead of an
id.

The id is derived from the key, the tenant, the operation and the thread. The API stores no keys. A repetition has the same id.
The store recognizes this id as long as the thread exists. The store checks whether a repeated body is the same request. For
runs and forks, it compares hashes (``request_hash`` in :mod:`runyard.ports.commands`,
``postgres/functions/same_request.sql``). For messages and answers, it compares the content (``store_message`` in
``postgres/threads.py``, ``postgres/hitl_answers.py``). An id in the body takes precedence over the header. Some operations
have no id, because the outcome of a repetition depends only on the state. For these operations, the API checks the form of the
key but does not use the key.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

from fastapi import Depends, Header, Request

from runyard.domain.derived_ids import derived_id
from runyard.errors import InvalidRequestError

from .principal import Principal
from .problems import Refusal
from .request_state import state_of

MAX_KEY_CHARACTERS: Final = 255
SAYS: Final = "Any text. The same request with the same key is executed once. An id in the body takes precedence."
UNUSED: Final = "Accepted and not used. The description of the operation explains the effect of a repetition."


class Key(NamedTuple):
    """The idempotency key of a request, or None, and the tenant of the request."""

    value: str | None
    tenant: str

    def id(self, operation: str, *of: str) -> str | None:
        """Return a UUID for ``operation`` on the objects that ``of`` names. Return None for a request without a key."""
        if self.value is None:
            return None
        return derived_id("idempotency key", self.tenant, operation, *of, self.value)


def _header(says: str) -> Any:
    return Header(min_length=1, max_length=MAX_KEY_CHARACTERS, pattern="^[!-~]+$", description=says)


async def _key(request: Request, idempotency_key: Annotated[str | None, _header(SAYS)] = None) -> Key:
    _check_one(request)
    principal: Principal = state_of(request.scope)["principal"]
    return Key(idempotency_key, principal.tenant)


async def _unused(request: Request, idempotency_key: Annotated[str | None, _header(UNUSED)] = None) -> None:
    """Check the form of the header."""
    _check_one(request)


def _check_one(request: Request) -> None:
    """Raise a Refusal with InvalidRequestError if the header is given twice."""
    if len(request.headers.getlist("idempotency-key")) > 1:
        at = {"location": "header", "pointer": "Idempotency-Key", "message": "the header is repeated; give it once"}
        raise Refusal(InvalidRequestError(f"{at['pointer']}: {at['message']}", errors=[at]))


Idempotency = Annotated[Key, Depends(_key)]
BY_STATE: Final = [Depends(_unused)]
"""Dependencies of a route that does not use the key. On such a route, the outcome of a repetition depends on the current
state."""
