"""The lines of a file of threads. Each line is a JSON object with the name of its kind in ``type``.

A file has the line ``family``, the sections of its threads, and the line ``end``. A section has the lines of one thread, in the
order in which an import executes them. The section of a parent has a line ``fork`` for each fork. The section of the fork
follows later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from runyard.domain.base_models import StrictModel
from runyard.domain.json_text import Shape, read
from runyard.domain.quoting import brief
from runyard.domain.size_limits import MAX_EXTRA, MESSAGE_BYTES
from runyard.domain.validation import MAX_LABELS, first_problem
from runyard.errors import InvalidInputError
from runyard.models import HitlRequest, JsonObject, Message

VERSION: Final = 1
"""The version of the format of the lines."""
MAX_LINE_BYTES: Final = 6 * MESSAGE_BYTES + 2**22
"""Maximum bytes of a line. JSON needs up to six bytes for one byte of a message."""
MAX_LINE_VALUES: Final = MAX_EXTRA + 100_000
"""Maximum number of values in a line. The number is enough for the extra and the config of a thread, which need at least two
bytes for each value."""
MAX_LINES: Final = 100_000_000
"""Maximum number of lines of a file."""
MAX_THREADS: Final = 100_000
"""Maximum number of threads of a file. A check keeps the ids of all threads in memory."""
MAX_RUNS: Final = 1_000_000
"""Maximum number of runs of a thread. A check keeps the ids of the runs of one thread in memory."""
MAX_NOTE: Final = 1000
"""Maximum number of characters of a note."""


class Family(StrictModel):
    """The first line of a file of threads. ``export_id``: the id of the export, from which new ids are derived.
    ``thread_id``: the exported thread."""

    type: Literal["family"] = "family"
    version: int = VERSION
    export_id: str = Field(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
    thread_id: str


class ThreadLine(StrictModel):
    """The beginning of a section. ``origin``: a digest by which a repeated import recognizes its own thread. ``closing``: if
    the thread is a repaired fork, the id of the message that closes open tool calls. An import repairs the fork
    again. The closing message of the imported fork therefore has another id."""

    type: Literal["thread"] = "thread"
    thread_id: str
    origin: str = Field(pattern="^[0-9a-f]{16}$")
    agent: str | None = None
    title: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    extra: JsonObject = Field(default_factory=dict)
    config: JsonObject = Field(default_factory=dict)
    closing: list[str] = Field(default_factory=list, max_length=1)


class BranchLine(StrictModel):
    """The following lines belong to a branch that begins after the message ``at``. If ``at`` is None, the branch begins with
    the first message of the thread."""

    type: Literal["branch"] = "branch"
    at: str | None = None


class ClaimLine(StrictModel):
    """A run is claimed."""

    type: Literal["claim"] = "claim"
    run_id: str


class MessageLine(StrictModel):
    """A message is appended."""

    type: Literal["message"] = "message"
    message: Message


class CompleteLine(StrictModel):
    """A run is completed."""

    type: Literal["complete"] = "complete"
    run_id: str


class CancelLine(StrictModel):
    """A run ended without completion. ``deleted``: True if the run was deleted before the export. Its line exists because
    forks show some of its messages."""

    type: Literal["cancel"] = "cancel"
    run_id: str
    deleted: bool = False


class ForkLine(StrictModel):
    """The thread is forked to ``thread_id``, which has a later section. Either ``after_run_id`` or ``at_message_id`` is the
    cut. ``repair``: True to close the open tool calls."""

    type: Literal["fork"] = "fork"
    thread_id: str
    origin: str = Field(pattern="^[0-9a-f]{16}$")
    agent: str | None = None
    after_run_id: str | None = None
    at_message_id: str | None = None
    repair: bool = False


class RequestLine(StrictModel):
    """A HITL request, with its answer if it was answered."""

    type: Literal["request"] = "request"
    request: HitlRequest


class LeafLine(StrictModel):
    """A leaf of the thread. ``depth``: the number of messages on its path. An import compares this number with the path in the
    deployment. ``labels``: the labels of the leaf's branch. ``labelled``: the id of a message. An import gives the labels to
    the branch of this message. If the leaf has no labels, ``labelled`` is None."""

    type: Literal["leaf"] = "leaf"
    message_id: str
    depth: int = Field(ge=0)
    labels: list[str] = Field(default_factory=list, max_length=MAX_LABELS)
    labelled: str | None = None


class HeadLine(StrictModel):
    """The head is the branch that ends at this message. The nil UUID stands for the place before the first message. Each
    section has one such line."""

    type: Literal["head"] = "head"
    message_id: str


class NoteLine(StrictModel):
    """A note about data of the thread that the file lacks."""

    type: Literal["note"] = "note"
    what: str = Field(max_length=MAX_NOTE)


class EndLine(StrictModel):
    """The last line of a complete file. ``lines``: the number of lines before this line."""

    type: Literal["end"] = "end"
    lines: int = Field(ge=0, le=MAX_LINES)


Line: TypeAlias = (
    Family
    | ThreadLine
    | BranchLine
    | ClaimLine
    | MessageLine
    | CompleteLine
    | CancelLine
    | ForkLine
    | RequestLine
    | LeafLine
    | HeadLine
    | NoteLine
    | EndLine
)

_LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="type")])


def refused(number: int, why: str, **details: Any) -> InvalidInputError:
    """Return the error for a line. ``number``: the number of the line, from 1."""
    return InvalidInputError(f"line {number}: {why}", **{"field": "file", **details, "line": number})


def shortened(text: str, most: int = 200) -> str:
    """Return the first characters of ``text``."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_of(line: Line) -> bytes:
    """Return a line as JSON of printable ASCII, with a newline. Printable ASCII cannot control a terminal that shows the
    line."""
    return json.dumps(line.model_dump(mode="json"), separators=(",", ":")).replace("\x7f", "\\u007f").encode() + b"\n"


def lines(file: BinaryIO) -> Iterator[tuple[int, Line]]:
    """Yield the lines of a file with their numbers. Only one line is in memory. Raises InvalidInputError with the number of
    the ``line``."""
    for number, text in _texts(file):
        yield number, _line(number, text)


def copy_lines(source: BinaryIO, target: BinaryIO) -> None:
    """Copy a stream without a known length, such as a pipe. Raises InvalidInputError if a size exceeds a bound of
    :func:`lines`, or if the first line does not begin a file of threads."""
    for number, text in _texts(source):
        if number == 1:
            _line(number, text)
        target.write(text)


def _texts(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(text) > MAX_LINE_BYTES:
            raise refused(number, f"the line has more than {MAX_LINE_BYTES} bytes", most=MAX_LINE_BYTES)
        if number > MAX_LINES:
            raise refused(number, f"the file has more than {MAX_LINES} lines", most=MAX_LINES)
        yield number, text


def _line(number: int, text: bytes) -> Line:
    try:
        Shape(MAX_LINE_VALUES).feed_all(text)
        value = read(text)
    except ValueError as error:
        raise refused(number, f"the line cannot be read as JSON: {brief(str(error))}") from None
    if number == 1:
        _check_version(value)
    try:
        return _LINE.validate_python(value)
    except ValidationError as error:
        where, why, _ = first_problem(error)
        raise refused(number, f"{shortened(where) or 'the line'}: {shortened(why)}") from None


def _check_version(value: Any) -> None:
    if not isinstance(value, dict) or value.get("type") != "family":
        raise refused(1, "the file does not begin with a line of the type family; was it made by `runyard threads export`?")
    if value.get("version") != VERSION:
        found = brief(value.get("version"))
        raise refused(1, f"the file has the version {found}, and this program reads version {VERSION}; upgrade runyard")
