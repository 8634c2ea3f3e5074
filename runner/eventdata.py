"""What the ``data`` of each type of event holds: the shapes that the streams keep and the API's document shows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import InvalidInputError
from .models import ErrorInfo, HitlRequest, JsonObject, JsonValue, Message


class _Data(BaseModel):
    """Readers ignore fields that they do not know. Fields without a value may be missing."""

    model_config = ConfigDict(extra="allow")


class AttemptBegins(_Data):
    """``attempt``: its number, from 1."""

    attempt: int


class AttemptFollows(AttemptBegins):
    """``message_id``: the last stored message; null if the run has stored none."""

    message_id: str | None = None


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
    """``request_ids``: what the run waits for."""

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
    """One piece: of the ``text``, of the model's ``thinking``, or of the ``arguments`` of a tool call, as JSON text.

    An agent may send data of its own under this type."""

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


class Gap(_Data):
    """Nothing: what is lost is not known."""


EVENT_DATA: Final[Mapping[str, type[BaseModel]]] = MappingProxyType(
    {
        "run.queued": AttemptBegins,
        "run.started": AttemptBegins,
        "run.suspended": RunSuspended,
        "run.resumed": AttemptFollows,
        "run.rewound": AttemptFollows,
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
        "gap": Gap,
    }
)


def check_event_data(type_: str, data: JsonObject) -> None:
    """Raise InvalidInputError if ``data`` lacks what events of ``type_`` hold, or holds it in another shape."""
    try:
        EVENT_DATA[type_].model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInputError(f"the data of {type_}: {where}: {first['msg']}", field=where) from None
