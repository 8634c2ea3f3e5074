"""The bodies of requests, and the conversion of a body to a message."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from runyard.domain.quoting import brief
from runyard.errors import InvalidBlobError
from runyard.formats.conversion import Blob, Format, from_blob
from runyard.models import JsonObject, JsonValue, Message

from ...field_types import few_fields

_NULLS: Final = frozenset({"text", "meta", "file_field", "asset", "filename"})
"""Fields that a part may lack. The clients send such a field as null."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    _check_fields = model_validator(mode="before")(few_fields)


class NewSession(_Request):
    """A session to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "alice", "configs": {"agent": "support"}}]})

    user: str | None = None
    disable_task_tracking: StrictBool | None = None
    configs: JsonObject | None = None
    use_uuid: str | None = Field(None, description="UUID of the session. Default: the server makes one.")


class Configs(_Request):
    """Configs of a session."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"configs": {"agent": "support"}}]})

    configs: JsonObject


class NewMessage(_Request):
    """A message to store."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"format": "openai", "blob": {"role": "user", "content": "hello"}, "meta": {"n": 1}}]}
    )

    blob: Blob = Field(description="One message in the format.")
    format: Format = "openai"
    meta: JsonObject | None = Field(None, description="Metadata of the message, which no model sees.")
    parent_id: str | None = Field(
        None, description="Id of the message that the new message follows. Default: the last message."
    )

    @property
    def names_message(self) -> bool:
        """True if the blob has the id of the message. Only the format ``native`` has such an id."""
        return self.format == "native" and isinstance(self.blob, dict) and "id" in self.blob

    def message(self) -> Message:
        """Return the message. Raises InvalidBlobError, InvalidInputError."""
        if self.format != "acontext" or not isinstance(self.blob, dict):
            message = from_blob(self.format, self.blob)
            message.metadata |= self.meta or {}
            return message
        blob = _without_nulls(self.blob)
        if self.meta is not None and isinstance(own := blob.get("meta", {}), dict):
            blob["meta"] = {**own, **self.meta}
        return from_blob(self.format, blob)


def _without_nulls(blob: JsonObject) -> JsonObject:
    """Return a message in the format ``acontext`` without nulls, because a null stands for a missing field."""
    made = {name: value for name, value in blob.items() if value is not None or name != "meta"}
    if isinstance(parts := blob.get("parts"), list):
        made["parts"] = [_part(part, n) for n, part in enumerate(parts)]
    return made


def _part(part: JsonValue, n: int) -> JsonValue:
    if not isinstance(part, dict):
        return part
    if (name := part.get("file_field")) is not None:
        path = f"/parts/{n}/file_field"
        raise InvalidBlobError(f"{path}: the request has no file {brief(name)} for this part", path=path, field="blob")
    return {name: value for name, value in part.items() if value is not None or name not in _NULLS}
