"""The classes of cubeloop that the adapters use. The package was called ``cubepi`` before it was called ``cubeloop``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from ..domain.messages import Message
from ..domain.size_limits import JsonObject, JsonValue
from ..errors import (
    CheckpointerError,
    DataCorruptedError,
    HitlAlreadyAnsweredError,
    HitlError,
    HitlStaleAnswerError,
    InvalidInputError,
    LockedError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
    RunNotClaimedError,
    RunNotCompletedError,
    RunyardError,
    SchemaMismatch,
    SchemaUninitialized,
    ThreadAlreadyExistsError,
    ThreadNotFoundError,
)
from ..support.optional_imports import load
from .cubeloop_messages import decode, encode

Name: TypeAlias = Literal["cubeloop", "cubepi"]

NAMES: Final[tuple[Name, ...]] = ("cubeloop", "cubepi")
"""The names under which the package can be imported. The first name is the present one."""

_SAME_NAME: Final = (
    ThreadNotFoundError,
    ThreadAlreadyExistsError,
    RunNotCompletedError,
    RunNotClaimedError,
    RunAlreadyClaimedError,
    RunAlreadyCompletedError,
)


@dataclass(frozen=True, slots=True)
class Framework:
    """The package ``cubeloop`` or the package ``cubepi``. The modules have the same names in both packages."""

    name: Name

    def module(self, path: str) -> ModuleType:
        """Return the module ``path`` of the package. Raise ExtraMissingError if the package is not installed."""
        return load(f"{self.name}.{path}")

    @property
    def agent(self) -> Any:
        return self.module("agent.agent").Agent

    def message(self, fields: Mapping[str, Any]) -> Any:
        """Return a message of the package. Raise DataCorruptedError if the stored fields do not fit a message."""
        base = self.module("providers.base")
        classes = {"user": base.UserMessage, "assistant": base.AssistantMessage, "tool_result": base.ToolResultMessage}
        try:
            return classes[str(fields.get("role"))].model_validate(fields)
        except (KeyError, ValidationError) as error:
            words = f"a stored message is not a message of {self.name}: {type(error).__name__}"
            raise DataCorruptedError(words, message_id=fields.get("id")) from error

    def messages(self, stored: Sequence[Message]) -> list[Any]:
        """Return messages of the package for stored messages."""
        return [self.message(fields) for fields in decode(stored)]

    def request(self, fields: Mapping[str, Any]) -> Any:
        """Return a request of the package. Raise DataCorruptedError if the stored fields do not fit a request."""
        try:
            return self.module("hitl.types").HitlRequest.model_validate(fields)
        except ValidationError as error:
            raise DataCorruptedError(f"a stored request is not a request of {self.name}: {error}") from error

    @contextmanager
    def translated(self, thread_id: str = "") -> Iterator[None]:
        """Replace an error of runyard by the package's error for the same case, if the package has such an error.

        A program that uses the package can then catch the package's class of errors.
        """
        try:
            yield
        except RunyardError as error:
            found = self._own(error, thread_id)
            if found is None:
                raise
            raise found from error

    def _own(self, error: RunyardError, thread_id: str) -> Exception | None:
        errors, hitl = self.module("checkpointer.exceptions"), self.module("hitl.exceptions")
        prefix = self.name.capitalize()
        made: Any = None
        if isinstance(error, _SAME_NAME):
            made = getattr(errors, next(cls.__name__ for cls in _SAME_NAME if isinstance(error, cls)))(error.message)
        elif isinstance(error, LockedError):
            made = errors.CheckpointerLockTimeoutError(error.message)
        elif isinstance(error, DataCorruptedError):
            row = str(error.details.get("message_id") or error.details.get("row") or "unknown")
            made = errors.CheckpointCorruptionError(thread_id=thread_id, backend="runyard", row_ref=row, cause=error)
        elif isinstance(error, SchemaUninitialized):
            made = getattr(errors, f"{prefix}SchemaUninitialized")(error.message)
        elif isinstance(error, SchemaMismatch):
            versions = {"expected": error.details.get("expected"), "actual": error.details.get("actual")}
            made = getattr(errors, f"{prefix}SchemaMismatch")(**versions, hint=error.message)
        elif isinstance(error, HitlStaleAnswerError | HitlAlreadyAnsweredError):
            made = hitl.HitlStaleAnswer(error.message)
        elif isinstance(error, HitlError):
            made = hitl.HitlError(error.message)
        elif isinstance(error, CheckpointerError):
            made = errors.CheckpointerError(error.message)
        return made if isinstance(made, Exception) else None


def framework(name: str | None = None) -> Framework:
    """Return the package ``cubeloop`` or ``cubepi``.

    ``name``: the name of the package. Without a name, return the package that the program has imported. If the program has
    imported neither package, return an installed one.

    Raises InvalidInputError if ``name`` is not one of the two names. Without a name, raises InvalidInputError if the program
    has imported both packages, and ExtraMissingError if neither package is installed.
    """
    if name is not None:
        for known in NAMES:
            if name == known:
                return Framework(known)
        raise InvalidInputError(f"package must be one of {', '.join(NAMES)}, got {name!r}", field="package")
    imported = [known for known in NAMES if known in sys.modules]
    if len(imported) > 1:
        raise InvalidInputError("this program has imported cubeloop and cubepi; choose one with package=…", field="package")
    installed = imported or [known for known in NAMES if find_spec(known) is not None]
    if not installed:
        load(NAMES[0])
    return Framework(installed[0])


def dumped(value: Any) -> JsonValue:
    """Return a structured value of cubeloop, such as an answer, as JSON.

    Raise InvalidInputError for a value that JSON cannot hold.
    """
    try:
        made: JsonValue = to_jsonable_python(value, serialize_unknown=False)
    except ValueError as error:
        raise InvalidInputError(f"not a JSON value: {error}") from None
    return made


def fields_of(message: Any) -> JsonObject:
    """Return the JSON object of a message or request of cubeloop."""
    dump = getattr(message, "model_dump", None)
    if dump is None:
        raise InvalidInputError(f"not a message of cubeloop: {type(message).__name__}", field="message")
    fields: JsonObject = dump(mode="json")
    return fields


def stored(message: Any) -> Message:
    """Return the message to store for a message of cubeloop."""
    return encode(fields_of(message))
