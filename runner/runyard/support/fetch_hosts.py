"""The hosts from which the files of messages may be fetched (M5). A message can name a file by URL.

The URL can come from an unknown person. The file is fetched by this process, by a library, or by the model's provider. Without
a guard of the library (:mod:`runyard.agents.downloads`), runyard does not know which of the three fetches the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from ..domain.messages import Message, Part
from ..errors import FetchNotAllowedError
from .settings import FetchSettings

SCHEMES: Final = ("http", "https")


@cache
def from_environment() -> FetchSettings:
    """Return the operator's settings."""
    return FetchSettings()


def check_host(url: str) -> None:
    """Raise FetchNotAllowedError if the operator does not allow the host of ``url``, or if the scheme is not http or https."""
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme, parts.hostname or ""
    except ValueError:
        scheme = host = ""
    if scheme not in SCHEMES or host.rstrip(".") not in from_environment().fetch_hosts:
        raise FetchNotAllowedError(
            f"the host {host or 'of the URL'} of a file is not among RUNYARD_FETCH_HOSTS; send the file as data, or add the "
            "host to this setting",
            host=host,
        )


def check_files(message: Message) -> None:
    """Raise FetchNotAllowedError if a file in ``message`` has a URL whose host is not allowed."""
    for url in _urls(message.content):
        check_host(url)


def _urls(parts: list[Part]) -> Iterator[str]:
    for part in parts:
        if part.type == "tool_result":
            yield from _urls([*part.parts] if part.has_parts else [])
        elif isinstance(url := getattr(part, "url", None), str) and not url.startswith("data:"):
            yield url
