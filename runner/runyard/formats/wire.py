"""What the formats share: strict models of the wire, faults with their place, and the list of what a conversion loses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..domain.messages import Message, Part, Role, StopReason, ToolResultPart
from ..domain.size_limits import MAX_PARTS, MAX_VALUES, JsonObject, JsonValue, check_blob
from ..errors import InvalidBlobError, InvalidInputError

W = TypeVar("W")

Many: TypeAlias = Annotated[list[W], Field(max_length=MAX_PARTS, fail_fast=True)]
"""A list of parts or of other objects that become objects here."""
MAX_LOSSES: Final = 100
"""Maximum number of losses of one conversion that are listed one by one."""
_TEXTS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""The texts in JSON. The pattern matches in linear time, also if the last text has no end."""

MAX_QUOTED: Final = 200
"""Maximum number of characters of a caller's input in an error."""


class Wire(BaseModel):
    """A JSON object of a provider. Fields that the class does not declare are kept and count as lost in other formats."""

    model_config = ConfigDict(extra="allow", strict=True, validate_by_name=True, validate_by_alias=True)


class Loss(BaseModel):
    """A value that a conversion dropped or changed.

    ``path``: a JSON pointer to the value, in the message's original (``format`` is the format of the original) or in the
    message itself (``format`` is ``native``). ``what``: a sentence. ``dropped``: False if the value was changed instead.
    """

    format: str
    path: str
    what: str
    dropped: bool = True


class Losses(list[Loss]):
    """A list of losses. After MAX_LOSSES, the last entry counts the others."""

    more = 0

    def note(self, loss: Loss) -> None:
        """Add a loss."""
        if len(self) < MAX_LOSSES:
            self.append(loss)
            return
        self.more += 1
        self[-1] = Loss(format=loss.format, path="", what=f"{self.more + 1} further values are dropped or changed")


@dataclass
class Read:
    """A message under construction from a blob: its parts, and what they cannot hold.

    ``values``: the number of values in the JSON texts that were read.
    """

    format: str
    role: Role = "user"
    parts: list[Part] = field(default_factory=list)
    stop_reason: StopReason | None = None
    metadata: JsonObject = field(default_factory=dict)
    values: int = 0
    losses: Losses = field(default_factory=Losses)

    def lose(self, path: str, what: str) -> None:
        """Note that the message cannot hold the value at ``path``."""
        self.losses.note(Loss(format=self.format, path=path, what=what))

    def alter(self, path: str, what: str) -> None:
        """Note that the message holds the value at ``path`` in another form."""
        self.losses.note(Loss(format=self.format, path=path, what=what, dropped=False))

    def message(self) -> Message:
        """Return the message."""
        return Message(role=self.role, content=self.parts, stop_reason=self.stop_reason, metadata=self.metadata)


@dataclass
class Written:
    """JSON objects of a format under construction from a message, and what they cannot hold.

    ``names``: the names of tools by the ids of their calls.
    """

    names: Mapping[str, str]
    items: list[JsonObject] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)

    def lose(self, path: str, what: str) -> None:
        """Note that the format cannot hold the message's value at ``path``."""
        self.losses.note(Loss(format="native", path=path, what=what))

    def alter(self, path: str, what: str) -> None:
        """Note that the format holds the message's value at ``path`` in another form."""
        self.losses.note(Loss(format="native", path=path, what=what, dropped=False))

    def lose_kind(self, n: int, part: Part, role: str) -> None:
        """Note that a message of ``role`` cannot hold the part with the index ``n``."""
        self.lose(f"/content/{n}", f"a message of the role {role} cannot hold this {part.type} part")


Reader: TypeAlias = Callable[[JsonValue], Read]
Writer: TypeAlias = Callable[[Message, Mapping[str, str]], Written]


def parse(adapter: TypeAdapter[W], blob: JsonValue, format: str, at: str = "") -> W:
    """Return ``blob`` as a model of the wire. Raise InvalidBlobError with the place of the deepest fault below ``at``."""
    try:
        return adapter.validate_python(blob)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        # Of a union's alternatives, the one that fits best has its fault at the deepest place, and text is the simplest.
        best = max(found, key=lambda each: (pointer(blob, each["loc"]).count("/"), each["type"] != "string_type"))
        raise fault(format, at + pointer(blob, best["loc"]), best["msg"].removeprefix("Value error, ")) from None


def fault(format: str, path: str, words: str) -> InvalidBlobError:
    """Return the error for a fault at ``path`` of a blob."""
    path = path[:MAX_QUOTED]
    return InvalidBlobError(f"{path or 'the blob'}: {words[:MAX_QUOTED]}", format=format, path=path, field="blob")


def pointer(blob: JsonValue, path: Sequence[int | str]) -> str:
    """Return the JSON pointer of ``path``, without the parts that name an alternative of a union."""
    made = ""
    for n, part in enumerate(path):
        inside = isinstance(blob, dict) and part in blob
        if inside or (isinstance(blob, list) and isinstance(part, int) and part < len(blob)):
            blob = blob[part]
            made += f"/{escaped(part)}"
        elif n == len(path) - 1 and isinstance(blob, dict) and isinstance(part, str):
            made += f"/{escaped(part)}"
    return made


def escaped(name: object) -> str:
    """Return a name as one token of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def unknown(model: Any, blob: Any, path: str = "") -> Iterator[str]:
    """Yield the JSON pointers of the fields of ``blob`` that ``model`` does not declare. Empty values are left out."""
    if isinstance(model, list):
        for n, each in enumerate(model):
            yield from unknown(each, blob[n], f"{path}/{n}")
    if not isinstance(model, Wire):
        return
    for name, value in (model.model_extra or {}).items():
        if value not in (None, [], {}, ""):
            yield f"{path}/{escaped(name)}"
    for name, about in type(model).model_fields.items():
        key = about.alias if about.alias in blob else name
        if key in blob:
            yield from unknown(getattr(model, name), blob[key], f"{path}/{key}")


def lose_unknown(read: Read, model: Any, blob: JsonValue, path: str = "") -> None:
    """Note the fields of ``blob`` that ``model`` does not declare."""
    for place in unknown(model, blob, path):
        read.lose(place, "messages have no field for this")


def from_text(made: Read, text: str, path: str) -> JsonObject:
    """Return the JSON object that a provider wrote as text. No text is an empty object. Raise InvalidBlobError.

    The values of all texts of a message count together, before they are read.
    """
    if made.values + _separators(text) > MAX_VALUES:
        bare = _TEXTS.sub('""', text)
        if made.values + _separators(bare) > MAX_VALUES:
            raise fault(made.format, path, f"holds more than {MAX_VALUES} values")
        made.values += _separators(bare)
    else:
        made.values += _separators(text)
    try:
        value = json.loads(text) if text.strip() else {}
        check_blob(value)
    except (ValueError, RecursionError, InvalidInputError) as error:
        raise fault(made.format, path, f"is no JSON object that can be stored: {error}") from None
    if not isinstance(value, dict):
        raise fault(made.format, path, "is JSON, but no object")
    return value


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def objects(blob: JsonValue, format: str) -> list[JsonValue]:
    """Return the JSON objects of a blob that is an object or a list of them. Raise InvalidBlobError for an unsuitable list."""
    if not isinstance(blob, list):
        return [blob]
    if not 0 < len(blob) <= MAX_PARTS:
        raise fault(format, "", f"is a list of {len(blob)} objects, and 1 to {MAX_PARTS} are allowed")
    return blob


def to_text(value: JsonValue) -> str:
    """Return a JSON value as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def result_text(part: ToolResultPart, n: int, written: Written) -> str:
    """Return the content of a tool result as text, for a format that has no other. Note what is lost."""
    path = f"/content/{n}/content"
    if part.has_parts:
        texts = []
        for k, each in enumerate(part.parts):
            if each.type == "text":
                texts.append(each.text)
            else:
                written.lose(f"{path}/{k}", f"a tool result cannot hold this {each.type} part")
        written.alter(path, "the parts are joined to one text")
        return "\n".join(texts)
    if isinstance(part.content, str):
        return part.content
    written.alter(path, "a tool result is text, so that this value is written as JSON")
    return to_text(part.content)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether both values are equal as JSON text: 1, 1.0 and true differ, and so does another order of the names."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
