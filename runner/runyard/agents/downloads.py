"""Downloads of files in messages. Only hosts that the operator allows may be used (M5).

A message may give a file as a URL. Either the model's provider fetches the file, or pydantic-ai downloads it. An unknown
person may have written the URL, and pydantic-ai would send the request from inside this process's network. This module
therefore refuses each download from a host that is not in ``RUNYARD_FETCH_HOSTS``. In the processes of a worker, this rule
applies to all code. In other programs, the rule applies only to attempts of runs. A redirect is followed only to an allowed
host.

pydantic-ai itself limits downloads to http and https, to few redirects, and to public addresses. ``RUNYARD_FETCH_PRIVATE``
allows other addresses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, TypeAlias

from pydantic_ai.messages import FileUrl, ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart

from ..execution.steps import current_context
from ..support.fetch_hosts import check_host, from_environment

Download: TypeAlias = Callable[..., Awaitable[Any]]

BUDGETED: Final = "_download_within_request_budget"
"""The function in ``pydantic_ai.models`` that every download of a file in a message calls."""
FETCH: Final = "safe_download"
"""The function in ``pydantic_ai._ssrf`` that sends the request."""

_hosts: ContextVar[Collection[str] | None] = ContextVar("runyard_fetch_hosts", default=None)
_everywhere = False
"""Whether the host of a download is also checked outside of attempts."""


def check(messages: Iterable[ModelMessage]) -> None:
    """Raise FetchNotAllowedError if a file in ``messages`` would be downloaded from a host that is not allowed.

    If runyard cannot guard this version of pydantic-ai, every file with a URL counts as a download.
    """
    for file in _files(messages):
        if file.force_download or not guarded():
            check_host(file.url)


def guard_process() -> bool:
    """Check the hosts of all downloads in this process, also outside of attempts.

    Return False if runyard cannot guard this version of pydantic-ai.

    Call this function in a process that executes runs. An agent may start threads and event loops without the run's context.
    """
    global _everywhere
    _everywhere = True
    return guarded()


@cache
def guarded() -> bool:
    """Make pydantic-ai check the host before each download.

    Return False if this version of pydantic-ai lacks the functions to replace.
    """
    from pydantic_ai import _ssrf, models

    download, fetch = getattr(models, BUDGETED, None), getattr(_ssrf, FETCH, None)
    if download is None or fetch is None:
        return False
    setattr(models, BUDGETED, _refusing(download))
    setattr(_ssrf, FETCH, _within_hosts(fetch))
    return True


def _refusing(download: Download) -> Download:
    async def guarded_download(url: str, *, allow_local: bool = False, **options: Any) -> Any:
        if current_context.get() is None and not _everywhere:  # a download of the host program, outside of runs
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
