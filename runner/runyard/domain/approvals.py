"""Approvals: their keys, the schema of their answers, and the decision in an answer.

``check_answer`` in ``requests.py`` checks an answer against its schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .derived_ids import digest
from .messages import ToolCallPart
from .size_limits import JsonObject, JsonValue

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
"""Schema of the answers to an approval: ``true``, ``false``, or an object that also has a reason or edited arguments."""

DENIED_IN_TIME: Final[JsonObject] = {"answer": {"approved": False, "reason": "nobody decided in time"}}
"""The answer that an approval gets at its deadline by default. This answer denies the call (H7, H9)."""

TIMED_OUT: Final[JsonObject] = {"timed_out": True}
"""An answer at a deadline. No human can give this answer, because it fits no schema of answers."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A human's decision on a tool call.

    ``arguments``: the arguments of the call as the human edited them. If the human edited none, these are the model's
    arguments. ``timed_out``: whether the answer is TIMED_OUT.
    """

    approved: bool
    arguments: JsonObject
    reason: str | None = None
    timed_out: bool = False

    def __bool__(self) -> bool:
        return self.approved


def approval_key(call: ToolCallPart) -> str:
    """Return the key of the approval of a call.

    A call with changed arguments has another key and needs another approval (H5).
    """
    return f"approve:{call.id}:{digest([call.name, call.arguments])}"


def read_approval(answer: JsonValue, call: ToolCallPart) -> Approval:
    """Return the decision in ``answer``.

    Only the answer ``true``, or an object whose ``approved`` is ``true``, approves the call.

    ``answer``: a value that fits APPROVAL_SCHEMA, or TIMED_OUT.
    """
    if not isinstance(answer, dict):
        return Approval(answer is True, call.arguments)
    reason, arguments = answer.get("reason"), answer.get("arguments")
    return Approval(
        answer.get("approved") is True,
        arguments if isinstance(arguments, dict) else call.arguments,
        reason if isinstance(reason, str) else None,
        answer == TIMED_OUT,
    )
