"""Events of runs, and entries of the feed."""

from __future__ import annotations

import json
import threading
from copy import copy, deepcopy
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, SupportsIndex, get_args

from pydantic import BaseModel, Field
from pydantic_core import PydanticSerializationError, to_jsonable_python

from .base_models import StrictModel
from .size_limits import JsonObject

_SEALING = threading.Lock()
"""A lock for sealing and opening events, because several threads of a synchronous client may have the same event."""


class Event(StrictModel):
    """One event of a run's stream. ``id``: ``"<fence>-<n>"``, or None for a ``gap``. ``type``: one of EVENT_TYPES."""

    __slots__ = ("_json",)

    id: str | None
    type: str
    thread_id: str
    run_id: str
    data: JsonObject = Field(default_factory=dict)

    @classmethod
    def trusted(cls, id: str | None, type: str, thread_id: str, run_id: str, data: JsonObject) -> Event:
        """Return an event with these values, without a validation of the values."""
        event = cls.__new__(cls)
        for name, value in (
            ("__dict__", {"id": id, "type": type, "thread_id": thread_id, "run_id": run_id, "data": data}),
            ("__pydantic_fields_set__", set(cls.__pydantic_fields__)),
            ("__pydantic_extra__", None),
            ("__pydantic_private__", None),
        ):
            object.__setattr__(event, name, value)
        return event

    def share(self) -> None:
        """Cache the result of the next :meth:`to_json` for later calls. Call this method if the event is sent to several
        readers."""
        object.__setattr__(self, "_json", b"")

    def to_json(self) -> bytes:
        """Return the event as JSON. The JSON escapes invalid Unicode from agents."""
        kept: bytes | None = getattr(self, "_json", None)
        if kept:
            return kept
        try:
            made = self.model_dump_json().encode()
        except (PydanticSerializationError, UnicodeEncodeError):  # a lone surrogate, which the json module escapes
            made = json.dumps(to_jsonable_python(self.__dict__)).encode()
        if kept is not None:
            object.__setattr__(self, "_json", made)
        return made

    def seal(self) -> None:
        """Keep the event as JSON only. A later read of its data decodes the JSON again.

        Sealing saves memory while a slow reader has a large event, because a value with many small members takes tens of times
        more memory than its JSON.
        """
        with _SEALING:
            if not isinstance(self, SealedEvent):  # no other thread has sealed the event meanwhile
                object.__setattr__(self, "_json", self.to_json())
                object.__setattr__(self, "__class__", SealedEvent)
                del _FIELDS.__get__(self)["data"]


_FIELDS: Final = BaseModel.__dict__["__dict__"]
"""The descriptor that reads and changes a model's fields. A SealedEvent needs this descriptor too, because its class defines
another ``__dict__``.
"""


class SealedEvent(Event):
    """A sealed event, which has its data as JSON only.

    The event stays sealed when ``id``, ``type``, ``thread_id`` or ``run_id`` is read, and when :meth:`to_json` is called. Any
    access to ``data`` changes the event into an :class:`Event` again, in place. Printing, comparing and copying access
    ``data``.
    """

    __slots__ = ()

    def seal(self) -> None:
        """Do nothing, because the event is sealed."""

    def share(self) -> None:
        """Do nothing, because a sealed event keeps its JSON."""

    def to_json(self) -> bytes:
        """Return the JSON that the event holds."""
        made: bytes = self._json
        return made or Event.to_json(self)  # another thread is opening the event

    def peek(self) -> JsonObject:
        """Decode the data and return it. The event stays sealed."""
        data: JsonObject = json.loads(self.to_json())["data"]
        return data

    def open(self) -> Event:
        """Decode the event in place and return it."""
        with _SEALING:
            if type(self) is SealedEvent:  # no other thread has opened the event meanwhile
                _FIELDS.__get__(self)["data"] = self.peek()
                object.__setattr__(self, "_json", b"")  # other readers may have this event, and need its JSON
                object.__setattr__(self, "__class__", Event)
        return self

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """The fields of the event. Pydantic reads them here."""
        return self.open().__dict__

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            return self.open().data
        raise AttributeError(f"an event has no {name!r}", name=name, obj=self)

    def __eq__(self, other: object) -> bool:
        return self.open() == other

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Any:
        return copy(self.open())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        return deepcopy(self.open(), memo)

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return self.open().__reduce_ex__(protocol)


class ThreadEvent(NamedTuple):
    """An event of one of a thread's runs. ``cursor`` continues the thread's stream after this event."""

    cursor: str
    event: Event


FeedType = Literal[
    "run.completed", "run.failed", "run.cancelled", "run.dead", "run.suspended",
    "message.stored", "thread.forked", "thread.deleted",
]  # fmt: skip

FEED_TYPES: Final[tuple[FeedType, ...]] = get_args(FeedType)


class FeedEntry(StrictModel):
    """One committed change (E5). ``cursor`` continues the feed after this entry. ``run_id`` is set for the types ``run.…``.

    ``parent_thread_id``, ``forked_after_run_id``, ``forked_at_seq``: the source and the cut of a forked thread, for the type
    ``thread.forked``. ``first_seq``, ``last_seq``, ``last_message_id``: the messages of the run, for the types ``run.…``. The
    path to ``last_message_id`` ends with the messages of the run. The store fills these three fields when the feed is read. The
    three fields are None if the run has no messages, or if the thread or run was deleted.
    """

    cursor: str
    type: FeedType
    thread_id: str
    run_id: str | None = None
    created_at: datetime
    parent_thread_id: str | None = None
    forked_after_run_id: str | None = None
    forked_at_seq: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    last_message_id: str | None = None


EVENT_TYPES: Final = (
    *("run.queued", "run.started", "run.suspended", "run.resumed", "run.rewound"),
    *("run.completed", "run.failed", "run.cancelled", "run.dead"),
    *("message.started", "message.delta", "message.completed", "tool.started", "tool.completed"),
    *("hitl.requested", "hitl.answered", "candidate.ended", "gap"),
)

STREAM_ENDS: Final = frozenset({"run.completed", "run.failed", "run.cancelled", "run.dead", "run.suspended"})
