"""What may be fetched from a URL in a message: nothing, unless the operator names its host (semantics: M5).

A model takes a URL as it is, or pydantic-ai downloads the file for it. The first is the provider's affair. The second would be
a request by this process, into its own network, to an address that anybody may have written. So each download is refused
unless ``RUNYARD_FETCH_HOSTS`` has the host: everywhere in a worker's processes, and elsewhere in an attempt of a run.
pydantic-ai itself holds what is allowed to http and https, to public addresses (``RUNYARD_FETCH_PRIVATE`` allows others), and
to few redirects, none of which leaves the hosts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic_ai.messages import FileUrl, ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart

from ..errors import FetchNotAllowedError
from ..settings import FetchSettings
from .steps import current_context

Download: TypeAlias = Callable[..., Awaitable[Any]]

BUDGETED: Final = "_download_within_request_budget"
"""What every download of a file in a message goes through, in ``pydantic_ai.models``."""
FETCH: Final = "safe_download"
"""What makes its request, in ``pydantic_ai._ssrf``."""

_hosts: ContextVar[Collection[str] | None] = ContextVar("runyard_fetch_hosts", default=None)
_everywhere = False
"""Refuse outside of attempts, too."""


@cache
def from_environment() -> FetchSettings:
    """What the operator allows."""
    return FetchSettings()


def check(messages: Iterable[ModelMessage]) -> None:
    """Refuse what would be downloaded for any model. Raises FetchNotAllowedError.

    Where this version of pydantic-ai cannot be guarded, any file by URL might be, and is refused.
    """
    for file in _files(messages):
        if file.force_download or not guarded():
            check_host(file.url)


def check_host(url: str) -> None:
    """Raises FetchNotAllowedError unless the operator allows the host of ``url``."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if host.rstrip(".") not in from_environment().fetch_hosts:
        raise FetchNotAllowedError(
            f"the file would have to be fetched from {host or 'somewhere'}, which is not among RUNYARD_FETCH_HOSTS; give it as "
            "data, or allow the host",
            host=host,
        )


def guard_process() -> bool:
    """From here on refuse downloads in the whole process, for one that executes runs: threads and event loops that an agent
    starts know nothing of its run. False if this version of pydantic-ai cannot be guarded."""
    global _everywhere
    _everywhere = True
    return guarded()


@cache
def guarded() -> bool:
    """Put the guard before pydantic-ai's downloads. False if they are not where they are looked for."""
    from pydantic_ai import _ssrf, models

    download, fetch = getattr(models, BUDGETED, None), getattr(_ssrf, FETCH, None)
    if download is None or fetch is None:
        return False
    setattr(models, BUDGETED, _refusing(download))
    setattr(_ssrf, FETCH, _within_hosts(fetch))
    return True


def _refusing(download: Download) -> Download:
    async def guarded_download(url: str, *, allow_local: bool = False, **options: Any) -> Any:
        if current_context.get() is None and not _everywhere:  # of the program that we are in, not of a run
            return await download(url, allow_local=allow_local, **options)
        check_host(url)
        token = _hosts.set(from_environment().fetch_hosts)
        try:
            return await download(url, allow_local=from_environment().fetch_private, **options)
        finally:
            _hosts.reset(token)

    return guarded_download


def _within_hosts(fetch: Download) -> Download:
    async def fetch_within(url: str, *args: Any, **options: Any) -> Any:
        hosts = _hosts.get()
        return await fetch(url, *args, **options | ({"allowed_domains": [*hosts]} if hosts is not None else {}))

    return fetch_within


def _files(messages: Iterable[ModelMessage]) -> Iterator[FileUrl]:
    for message in messages:
        if not isinstance(message, ModelRequest):
            continue
        for part in message.parts:
            content = part.content if isinstance(part, UserPromptPart | ToolReturnPart) else None
            if isinstance(content, FileUrl):
                yield content
            elif isinstance(content, Sequence) and not isinstance(content, str | bytes):
                yield from (item for item in content if isinstance(item, FileUrl))


guarded()
