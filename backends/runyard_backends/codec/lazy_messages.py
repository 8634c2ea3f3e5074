"""Messages that are decoded at their first use.

Decoding 10,000 messages takes tens of milliseconds, and most agents read only the last messages of a long history. A lazy
message keeps its row. The fields that are columns of the row are read without decoding. Any other use decodes the row, and
turns the object into a plain :class:`~runyard.models.Message`. The fields, the equality, the copies and the JSON of the object
are those of a decoded message.
"""

from __future__ import annotations

from abc import ABCMeta
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, Final, TypeAlias

from pydantic import BaseModel

from runyard.models import Message

from .damaged_rows import UNDECODABLE
from .message_rows import fields, messages
from .values import Row

_COLUMNS: Final = {"seq": 0, "id": 1, "parent_id": 2, "run_id": 3, "role": 4}
"""Positions of the columns that are fields of a message."""

KeptRow: TypeAlias = tuple[Row, Mapping[str, str | int]]
"""The row of a message, and the thread that the error for a damaged row names. Both are arguments of
:func:`.message_rows.messages`."""

# A model has a slot for private attributes. A message has no private attributes, so a lazy message keeps its row there.
_kept: Final = BaseModel.__dict__["__pydantic_private__"]
_set: Final = object.__setattr__


def _decode(lazy: Message) -> None:
    """Turn ``lazy`` into a plain message. Raises DataCorruptedError if its row cannot be decoded."""
    if (kept := _kept.__get__(lazy)) is not None:
        row, thread = kept
        try:
            Message.__pydantic_validator__.validate_python(fields(row), self_instance=lazy, extra="ignore")
        except UNDECODABLE:
            messages([row], **thread)  # raises the error with the names of the thread and the message
            raise
        _kept.__set__(lazy, None)
    _set(lazy, "__class__", Message)


def _get(lazy: Message, name: str) -> Any:
    if name == "__class__":
        return Message
    if name == "__pydantic_decorators__":  # isinstance reads this attribute of a model
        return Message.__pydantic_decorators__
    position = _COLUMNS.get(name)
    if position is not None and (kept := _kept.__get__(lazy)) is not None:
        return kept[0][position]
    _decode(lazy)
    return getattr(lazy, name)


# ABCMeta makes the subclass without the metaclass of pydantic, which would build a validator and a serializer for it. The
# methods of a model begin with a read of an attribute of the object, and therefore work on a decoded message.
_Lazy: Final[type[Message]] = ABCMeta.__new__(
    type(Message),
    Message.__name__,
    (Message,),
    {"__module__": Message.__module__, "__qualname__": Message.__qualname__, "__slots__": (), "__getattribute__": _get},
)


def lazy_messages(kept: Sequence[KeptRow]) -> list[Message]:
    """Return one lazy message per row. If a row cannot be decoded, the first use of its message raises DataCorruptedError."""
    made = list(map(object.__new__, repeat(_Lazy, len(kept))))
    deque(map(_kept.__set__, made, kept), maxlen=0)
    return made
