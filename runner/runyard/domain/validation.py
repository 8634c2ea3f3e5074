"""Validation of ids, names, tags and times from clients, and new random ids."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import uuid_utils

from ..errors import InvalidInputError
from .quoting import brief
from .size_limits import check_value

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_ID_LENGTH: Final = 255

MAX_TAG_LENGTH: Final = 64

MAX_LABEL_LENGTH: Final = 64

MAX_LABELS: Final = 100
"""Maximum number of labels of one thread."""

ROOT_ID: Final = "00000000-0000-0000-0000-000000000000"
"""The nil UUID. As a ``parent_id``, this id names the place before the first message of a thread. No message has this id."""

ALLOWED_YEARS: Final = range(1970, 9000)
"""The years of the times that clients may send. Every store and every time zone supports times in these years."""
_CANONICAL_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FIRST: Final = datetime(ALLOWED_YEARS.start, 1, 1, tzinfo=UTC)
_END: Final = datetime(ALLOWED_YEARS.stop, 1, 1, tzinfo=UTC)


def new_id() -> str:
    """Return a new uuid7 as text. Later ids sort after earlier ids."""
    return str(uuid_utils.uuid7())


def check_id(value: Any, name: str, most: int = MAX_ID_LENGTH) -> str:
    """Return ``value`` if it is a valid id. Otherwise raise :class:`InvalidInputError`.

    An id has 1 to ``most`` printable characters. ``.`` and ``..`` are not valid, because the resolution of a URL removes them
    from a path, even if they are percent-encoded (RFC 3986, 5.2.4).
    """
    if not (isinstance(value, str) and 1 <= len(value) <= most and value.isprintable()):
        raise InvalidInputError(f"{name} must be 1 to {most} printable characters, got {brief(value)}", field=name)
    if value in (".", ".."):
        raise InvalidInputError(f"{name} cannot be {value!r}, which changes the path of a URL; choose another", field=name)
    return str(value)


def first_problem(error: ValidationError) -> tuple[str, str, Any]:
    """Return three values about the first field that pydantic refused: its path (such as ``retry.delay``), the fault, and the
    refused value."""
    first = error.errors(include_url=False)[0]
    return ".".join(map(str, first["loc"])), words_of(first), first["input"]


def words_of(fault: Mapping[str, Any]) -> str:
    """Return the message of a fault that pydantic found, in words for a reader who does not know the classes of runyard."""
    return "Input should be an object" if fault["type"] == "model_type" else str(fault["msg"]).removeprefix("Value error, ")


def check_label(value: Any) -> str:
    """Return ``value`` if it is a valid id of at most 64 characters. Otherwise raise InvalidInputError."""
    return check_id(value, "label", MAX_LABEL_LENGTH)


def check_name(value: Any, name: str) -> str | None:
    """Return the name of an agent or a queue if it is a valid id or None. Otherwise raise :class:`InvalidInputError`."""
    return None if value is None else check_id(value, name)


def check_uuid(value: Any, name: str) -> str:
    """Return ``value`` in the canonical form of a UUID (B1). Raise InvalidInputError if it is not a UUID."""
    if isinstance(value, str) and _CANONICAL_UUID.fullmatch(value):
        return value
    try:
        return str(uuid.UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidInputError(f"{name} must be a UUID, got {brief(value)}", field=name) from None


def check_message_id(value: Any, name: str) -> str:
    """Return ``value`` in the canonical form of a UUID. Raise InvalidInputError if it is not a UUID, or is :data:`ROOT_ID`."""
    if (id := check_uuid(value, name)) == ROOT_ID:
        raise InvalidInputError(f"{name} must not be the nil UUID, which is the place before the first message", field=name)
    return id


def check_tags(tags: Mapping[str, Any], title: str | None = None) -> dict[str, str]:
    """Return a copy of ``tags``, with ``title`` as the tag ``title`` (F7).

    ``tags``: texts under keys of 1 to 64 printable characters. Raises InvalidInputError for other tags, and for tags that
    exceed the :mod:`runyard.domain.size_limits`.
    """
    check_value(title, "title")
    check_value(tags, "tags")
    for key, value in tags.items():
        if not (isinstance(value, str) and 1 <= len(key) <= MAX_TAG_LENGTH and key.isprintable()):
            raise InvalidInputError(
                f"tags are text under keys of 1 to {MAX_TAG_LENGTH} printable characters, got {brief(key)}", field="tags"
            )
    return {**tags, "title": title} if title is not None else dict(tags)


def check_aware(moment: datetime | None, name: str = "run_at") -> datetime | None:
    """Return ``moment`` if it is None, or has a time zone and is in ALLOWED_YEARS (UTC). Otherwise raise InvalidInputError.

    A time without a time zone is refused, because it would be another instant on another machine. The allowed years end before
    Python's last year. A duration can therefore be added to each allowed time.
    """
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidInputError(f"{name} is a datetime with a time zone, got {brief(moment)}", field=name)
    if moment.tzinfo is None:
        raise InvalidInputError(f"{name} needs a time zone, got {moment.isoformat()}; use datetime.now(UTC)", field=name)
    if not _FIRST <= moment < _END:
        raise InvalidInputError(
            f"{name} is from the year {ALLOWED_YEARS[0]} to {ALLOWED_YEARS[-1]}, got {moment.isoformat()}", field=name
        )
    return moment


def check_limit(limit: int, most: int | None = None) -> None:
    """Raise InvalidInputError if ``limit`` is less than 1 or more than ``most``."""
    if limit < 1 or (most is not None and limit > most):
        raise InvalidInputError(f"limit is 1 {f'to {most}' if most else 'or more'}, got {brief(limit)}", field="limit")
