"""Types of the fields of requests, with their checks and their schemas."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextvars import ContextVar
from datetime import date
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from runyard.domain.webhooks import MAX_URL_LENGTH
from runyard.models import MAX_ID_LENGTH, MAX_TAG_LENGTH, check_id
from runyard_backends.webhooks.addresses import Network, may_be_permitted, refusal

_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
YEAR_SECONDS: Final = 365 * 86400.0
MAX_SEQ: Final = 2**63 - 1
MAX_CHECKED_ENTRIES: Final = 1000
"""Maximum number of entries in an object whose names or values are checked. Each invalid entry causes an error. Without this
limit, one body could cause millions of errors."""

webhook_networks: Final[ContextVar[Collection[Network] | None]] = ContextVar("webhook_networks", default=None)
"""The networks of the setting ``webhook_allow_private`` of this server. In a client, the value is None, and the address of a
webhook is not checked, because only the server knows which networks it allows."""

ID_SCHEMA: Final[dict[str, Any]] = {"pattern": "^(?!\\.{1,2}$)[^\\u0000-\\u001f\\u007f-\\u00a0]+$"}


def checked_id(value: str) -> str:
    """Return ``value`` if it is an id. Raises InvalidInputError."""
    return check_id(value, "id")


def _moment(value: Any) -> Any:
    """Return ``value`` if it is a text that begins like a date and time. Without this check, Pydantic would also accept a
    number of seconds."""
    if not (isinstance(value, str) and _DATE.match(value)):
        raise ValueError("must be a date and time with its zone (RFC 3339), such as 2030-01-31T12:00:00Z")
    return value


def _day(value: Any) -> Any:
    if not (isinstance(value, str) and _DAY.fullmatch(value)):
        raise ValueError("must be a day, such as 2030-01-31")
    return value


def few(value: Any) -> Any:
    """Return ``value`` if it has at most MAX_CHECKED_ENTRIES entries. Entries of nested objects count. Raises
    ValueError."""
    waiting, left = [value], MAX_CHECKED_ENTRIES
    while waiting:
        if isinstance(found := waiting.pop(), dict):
            if (left := left - len(found)) < 0:
                raise ValueError(f"at most {MAX_CHECKED_ENTRIES} entries are allowed here")
            waiting += found.values()
    return value


def few_fields(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_CHECKED_ENTRIES:
        raise ValueError(f"at most {MAX_CHECKED_ENTRIES} fields are allowed here")
    return value


def _reachable(url: str) -> str:
    """Return ``url`` if its host is a name or an address to which webhooks may be sent. Raises ValueError."""
    host, allowed = urlsplit(url).hostname or "", webhook_networks.get()
    if allowed is not None and not may_be_permitted(host, allowed):
        raise ValueError(refusal(host))
    return url


Id = Annotated[
    str,
    AfterValidator(checked_id),
    Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="1 to 255 printable characters; not . or ..",
        json_schema_extra=ID_SCHEMA,
    ),
]
WebhookUrl = Annotated[
    str,
    Field(max_length=MAX_URL_LENGTH, pattern=r"^https?://[^/?#@\s]+([/?][^#\s]*)?$"),
    AfterValidator(_reachable),
]
Uuid = Annotated[str, Field(description="A message's id.", json_schema_extra={"format": "uuid"})]
Name = Annotated[str, AfterValidator(checked_id), Field(min_length=1, max_length=MAX_ID_LENGTH, json_schema_extra=ID_SCHEMA)]
Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]
Day = Annotated[date, BeforeValidator(_day)]
TagName = Annotated[
    str, AfterValidator(checked_id), Field(min_length=1, max_length=MAX_TAG_LENGTH, json_schema_extra=ID_SCHEMA)
]
Tags = Annotated[dict[TagName, str], BeforeValidator(few)]
