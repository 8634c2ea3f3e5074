"""Code that the formats share:

- the base class of strict models of a provider's JSON
- the errors with the place of a fault
- the list of losses of a conversion
- the text of a tool result
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..domain import json_text
from ..domain.json_text import Shape
from ..domain.messages import Message, Part, Role, StopReason, TextPart, ToolResultPart
from ..domain.size_limits import MAX_PARTS, MAX_VALUES, JsonObject, JsonValue, check_blob
from ..domain.validation import words_of
from ..errors import InvalidBlobError, InvalidInputError

W = TypeVar("W")

Many: TypeAlias = Annotated[list[W], Field(max_length=MAX_PARTS, fail_fast=True)]
"""A list of parts or of other JSON values. The length of the list is bounded, because each entry becomes a Python object."""
MAX_LOSSES: Final = 100
"""Maximum number of losses in the list of one conversion. Further losses are only counted."""
MAX_QUOTED: Final = 200
"""Maximum number of characters of a caller's input in an error."""


class Wire(BaseModel):
    """A JSON object of a provider. Fields that a subclass does not declare are kept, but a conversion to another format loses
    them."""

    model_config = ConfigDict(extra="allow", strict=True, validate_by_name=True, validate_by_alias=True)


class Loss(BaseModel):
    """A value that a conversion dropped or changed.

    ``path``: a JSON pointer to the value. If ``format`` is ``native``, the pointer refers to the message. For any other format,
    the pointer refers to the message's original in this format. A path of more than MAX_QUOTED characters is shortened.
    ``what``: a sentence about the loss. ``dropped``: True if the value was dropped, False if it was changed.
    """

    format: str
    path: str
    what: str
    dropped: bool = True


@dataclass
class Losses:
    """The losses of one conversion. ``more``: the number of losses after the first MAX_LOSSES."""

    found: list[Loss] = field(default_factory=list)
    more: int = 0

    def note(self, format: str, path: str, what: str, *, dropped: bool = True) -> None:
        """Add a loss."""
        if len(self.found) < MAX_LOSSES:
            self.found.append(Loss(format=format, path=path[:MAX_QUOTED], what=what, dropped=dropped))
        else:
            self.more += 1

    def listed(self) -> list[Loss]:
        """Return the losses. If some losses were only counted, the last entry gives their number. This entry has no path."""
        if not self.more:
            return self.found
        words = f"{self.more} further values are dropped or changed"
        return [*self.found, Loss(format=self.found[-1].format, path="", what=words)]


@dataclass
class Read:
    """A message under construction from a blob.

    ``values``: the number of values in the JSON texts that were read. ``nested``: the number of parts in tool results.
    """

    format: str
    role: Role = "user"
    parts: list[Part] = field(default_factory=list)
    stop_reason: StopReason | None = None
    metadata: JsonObject = field(default_factory=dict)
    values: int = 0
    nested: int = 0
    losses: Losses = field(default_factory=Losses)

    def lose(self, path: str, what: str) -> None:
        """Record a loss: the message cannot hold the value at ``path``."""
        self.losses.note(self.format, path, what)

    def alter(self, path: str, what: str) -> None:
        """Record a loss: the message holds the value at ``path`` in another form."""
        self.losses.note(self.format, path, what, dropped=False)

    def nest(self, parts: Sequence[object], path: str) -> None:
        """Count the parts of the tool result at ``path``. Raise InvalidBlobError if the message has too many parts."""
        self.nested += len(parts)
        if self.nested > MAX_PARTS:
            raise fault(self.format, path, f"the tool results have more than {MAX_PARTS} parts")

    def message(self) -> Message:
        """Return the message."""
        return Message(role=self.role, content=self.parts, stop_reason=self.stop_reason, metadata=self.metadata)


@dataclass
class Written:
    """The JSON objects into which a message is converted, and the losses of this conversion. A writer of a format adds to both.

    ``names``: the names of tools by the ids of their calls.
    """

    names: Mapping[str, str]
    items: list[JsonObject] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)

    def lose(self, path: str, what: str) -> None:
        """Record a loss: the format cannot hold the message's value at ``path``."""
        self.losses.note("native", path, what)

    def alter(self, path: str, what: str) -> None:
        """Record a loss: the format holds the message's value at ``path`` in another form."""
        self.losses.note("native", path, what, dropped=False)

    def lose_kind(self, n: int, part: Part, role: str) -> None:
        """Record a loss: a message of ``role`` cannot hold the part with the index ``n``."""
        self.lose(f"/content/{n}", f"a message of the role {role} cannot hold this {part.type} part")


Reader: TypeAlias = Callable[[JsonValue], Read]
Writer: TypeAlias = Callable[[Message, Mapping[str, str]], Written]


def parse(adapter: TypeAdapter[W], blob: JsonValue, format: str, at: str = "") -> W:
    """Return ``blob`` as a model. If ``blob`` is invalid, raise InvalidBlobError with the place of the deepest fault. ``at``:
    the place of ``blob``."""
    try:
        return adapter.validate_python(blob)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        # In a union, the alternative that fits best has the deepest fault. If two faults are equally deep, prefer the
        # alternative that is not text.
        best = max(found, key=lambda each: (pointer(blob, each["loc"]).count("/"), each["type"] != "string_type"))
        raise fault(format, at + pointer(blob, best["loc"]), words_of(best)) from None


def fault(format: str, path: str, words: str) -> InvalidBlobError:
    """Return the error for a fault at ``path`` of a blob."""
    path = path[:MAX_QUOTED]
    return InvalidBlobError(f"{path or 'the blob'}: {words[:MAX_QUOTED]}", format=format, path=path, field="blob")


def pointer(blob: JsonValue, path: Sequence[int | str]) -> str:
    """Return the JSON pointer of ``path``, without the elements that name an alternative of a union."""
    made = ""
    named = False
    for n, part in enumerate(path):
        last = n == len(path) - 1
        if isinstance(blob, dict):
            if not (named or last) and part in (blob.get("type"), blob.get("role")):
                named = True  # the next "text" is a field of the alternative "text"
                continue
            if part not in blob and not (last and isinstance(part, str)):
                continue
        elif not (isinstance(blob, list) and isinstance(part, int) and part < len(blob)):
            continue
        made += f"/{escaped(part)}"
        if not last:
            blob, named = blob[part], False
    return made


def escaped(name: object) -> str:
    """Return a name as one token of a JSON pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def unknown(model: Any, blob: Any, path: str = "") -> Iterator[str]:
    """Yield the JSON pointers of the fields of ``blob`` that ``model`` does not declare. Fields with empty values are left
    out."""
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
    """Record a loss for each field of ``blob`` that ``model`` does not declare."""
    for place in unknown(model, blob, path):
        read.lose(place, "messages have no field for this")


def from_text(made: Read, text: str, path: str) -> JsonObject:
    """Return the JSON object that a provider wrote as text. A blank text is an empty object. Raise InvalidBlobError for any
    other text.

    A message has at most MAX_VALUES values in all its texts together. A text with too many values is refused before it is
    parsed.
    """
    shape = Shape(MAX_VALUES - made.values)
    try:
        content = text.encode()
        shape.feed_all(content)
        value = json_text.read(content) if text.strip() else {}
        check_blob(value)
    except (ValueError, InvalidInputError) as error:
        raise fault(made.format, path, f"is not a JSON object that can be stored: {error}") from None
    made.values += shape.values
    if not isinstance(value, dict):
        raise fault(made.format, path, "is JSON, but not an object")
    return value


def objects(blob: JsonValue, format: str) -> list[JsonValue]:
    """Return the JSON objects of a blob: one object or a list. Raise InvalidBlobError for an empty list, and for a list that is
    too long."""
    if not isinstance(blob, list):
        return [blob]
    if not 0 < len(blob) <= MAX_PARTS:
        raise fault(format, "", f"is a list of {len(blob)} objects; give 1 to {MAX_PARTS}")
    return blob


def to_text(value: JsonValue) -> str:
    """Return a JSON value as text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_refusal(message: Message) -> bool:
    """Return whether the message's text becomes a ``refusal`` in OpenAI's formats."""
    if message.role != "assistant" or message.stop_reason != "refusal":
        return False
    return sum(isinstance(part, TextPart) for part in message.content) == 1


def result_text(part: ToolResultPart, n: int, written: Written) -> str:
    """Return the content of a tool result as text, for a format whose results are text only. Record the losses in
    ``written``."""
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
    written.alter(path, "a tool result is a text, so this value becomes JSON text")
    return to_text(part.content)


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether both values have the same JSON text. 1, 1.0 and true are different, and the order of names matters."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)
