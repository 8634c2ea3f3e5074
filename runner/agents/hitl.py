"""Questions and approvals: how they are named, what an answer to them may look like, and what it means."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass
from typing import Any, Final

from ..models import JsonObject, JsonValue, ToolCallPart

_NAMESPACE: Final = uuid.UUID("5f1c8f0e-6d0b-5c39-9a53-0c5d5d1f7a10")

APPROVAL_SCHEMA: Final[JsonObject] = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "reason": {"type": "string"},
                "arguments": {"type": "object"},
            },
            "required": ["approved"],
            "additionalProperties": False,
        },
    ]
}
"""Answers to an approval: ``true``, ``false``, or an object that also gives a reason or edited arguments."""

DENIED_IN_TIME: Final[JsonObject] = {"answer": {"approved": False, "reason": "nobody decided in time"}}
"""What applies at the deadline of an approval unless it says otherwise: the call is denied (semantics: H7, H9)."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A human's decision on a tool call. ``arguments`` to call it with are the model's own unless the human edited them."""

    approved: bool
    arguments: JsonObject
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.approved


def digest(value: Any) -> str:
    """A short digest of a JSON value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def request_id(thread_key: int, run_id: str, key: str) -> str:
    """The id of the request ``key`` of a run: the same in every attempt, different in every thread (semantics: H5, I6)."""
    return str(uuid.uuid5(_NAMESPACE, f"{thread_key}\n{run_id}\n{key}"))


def approval_key(call: ToolCallPart) -> str:
    """An approval belongs to a call and its arguments; changed arguments need another one (semantics: H5)."""
    return f"approve:{call.id}:{digest([call.name, call.arguments])}"


def read_approval(answer: JsonValue, call: ToolCallPart) -> Approval:
    """What an answer that fits APPROVAL_SCHEMA means. Anything but an explicit yes is a no."""
    if not isinstance(answer, dict):
        return Approval(answer is True, call.arguments)
    reason, arguments = answer.get("reason"), answer.get("arguments")
    return Approval(
        answer.get("approved") is True,
        arguments if isinstance(arguments, dict) else call.arguments,
        reason if isinstance(reason, str) else None,
    )
