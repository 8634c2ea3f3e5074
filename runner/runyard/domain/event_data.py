"""The shape of ``data`` for each event type, in streams and in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ..errors import InvalidInputError
from .fan_outs import CandidateStatus
from .messages import Message
from .requests import HitlRequest
from .runs import ErrorInfo
from .size_limits import JsonObject, JsonValue
from .validation import first_problem


class _Data(BaseModel):
    """Base class of event data. Readers ignore unknown fields. A field without a value can be missing."""

    model_config = ConfigDict(extra="allow")


class AttemptBegins(_Data):
    """The start of an attempt. ``attempt``: the number of the attempt, from 1."""

    attempt: int


class AttemptFollows(AttemptBegins):
    """The start of a later attempt. ``message_id``: the id of the run's last stored message, or null if the run has none."""

    message_id: str | None = None


class AttemptRewinds(AttemptFollows):
    """The start of an attempt after a crash, an error or a release.

    ``takeover``: true if the worker of the previous attempt died, false if the previous attempt failed or was released.
    ``error``: the error with which the previous attempt failed.
    """

    takeover: bool | None = None
    error: ErrorInfo | None = None


class RunCompleted(_Data):
    status: Literal["completed"]


class RunFailed(_Data):
    status: Literal["failed"]
    error: ErrorInfo | None = None


class RunCancelled(_Data):
    status: Literal["cancelled"]
    error: ErrorInfo | None = None


class RunDead(_Data):
    status: Literal["dead"]
    error: ErrorInfo | None = None


class RunSuspended(_Data):
    """The suspension of the run. ``request_ids``: the ids of the run's pending requests."""

    status: Literal["suspended"]
    request_ids: list[str]


class MessageStarted(_Data):
    message_id: str
    role: Literal["assistant"]


class StreamedCall(_Data):
    """The tool call whose arguments are streamed."""

    id: str
    name: str


class MessageDelta(_Data):
    """One piece of a message: of its ``text``, of the model's ``thinking``, or of the JSON ``arguments`` of a tool call.

    An agent may also send other data under this type.
    """

    message_id: str | None = None
    text: str | None = None
    thinking: str | None = None
    arguments: str | None = None
    tool_call: StreamedCall | None = None


class MessageCompleted(_Data):
    message_id: str
    message: Message


class ToolStarted(_Data):
    call_id: str
    name: str
    arguments: JsonObject | None = None


class ToolCompleted(_Data):
    call_id: str
    name: str
    is_error: bool


class HitlRequested(_Data):
    request: HitlRequest


class HitlAnswered(_Data):
    request_id: str
    answer: JsonValue = None


class CandidateEnded(_Data):
    """The end of a candidate of a fan-out. ``number``: the index of the candidate's message.

    ``total``: the number of all candidates. ``ended``: the number of candidates that have ended.
    """

    number: int
    status: CandidateStatus
    ended: int
    total: int


class Gap(_Data):
    """An empty object. The data of the lost events are unknown."""


EVENT_DATA: Final[Mapping[str, type[BaseModel]]] = MappingProxyType(
    {
        "run.queued": AttemptBegins,
        "run.started": AttemptBegins,
        "run.suspended": RunSuspended,
        "run.resumed": AttemptFollows,
        "run.rewound": AttemptRewinds,
        "run.completed": RunCompleted,
        "run.failed": RunFailed,
        "run.cancelled": RunCancelled,
        "run.dead": RunDead,
        "message.started": MessageStarted,
        "message.delta": MessageDelta,
        "message.completed": MessageCompleted,
        "tool.started": ToolStarted,
        "tool.completed": ToolCompleted,
        "hitl.requested": HitlRequested,
        "hitl.answered": HitlAnswered,
        "candidate.ended": CandidateEnded,
        "gap": Gap,
    }
)


def check_event_data(type_: str, data: JsonObject) -> None:
    """Raise InvalidInputError if ``data`` lacks a required field of the event ``type_``, or has a field of a wrong type."""
    try:
        EVENT_DATA[type_].model_validate(data)
    except ValidationError as error:
        field, problem, _ = first_problem(error)
        raise InvalidInputError(f"the data of {type_}: {field}: {problem}", field=field) from None
