"""What may be fetched from a URL in a message, and that pydantic-ai has no other way to fetch (M5)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic_ai
import pytest
from pydantic_ai import _ssrf, models
from pydantic_ai.messages import (
    MULTI_MODAL_CONTENT_TYPES,
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
    VideoUrl,
)

from runyard.agents import downloads
from runyard.errors import ConfigurationError, FetchNotAllowedError
from runyard.execution.steps import current_context
from runyard.support import fetch_hosts
from runyard.support.settings import FetchSettings
from tests.support.lure import Private, private

KINDS = (ImageUrl, AudioUrl, DocumentUrl, VideoUrl)
SOURCE = Path(pydantic_ai.__file__).parent


@pytest.fixture
def target() -> Iterator[Private]:
    with private() as server:
        yield server


@pytest.fixture
def in_attempt() -> Iterator[None]:
    token = current_context.set(object())  # type: ignore[arg-type]
    yield
    current_context.reset(token)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def allow(hosts: str, *, private: bool = False) -> None:
        monkeypatch.setenv("RUNYARD_FETCH_HOSTS", hosts)
        monkeypatch.setenv("RUNYARD_FETCH_PRIVATE", str(private))
        fetch_hosts.from_environment.cache_clear()

    allow("")
    yield allow
    monkeypatch.undo()
    fetch_hosts.from_environment.cache_clear()


def subclasses(cls: type) -> set[type]:
    return {cls} | {each for sub in cls.__subclasses__() for each in subclasses(sub)}


def users(word: str) -> set[str]:
    """The modules of pydantic-ai that say ``word`` in code."""
    pattern = re.compile(rf"\b{word}\(|import .*\b{word}\b")
    return {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if pattern.search(path.read_text("utf-8"))}


def test_m5_every_kind_of_url_is_known() -> None:
    """A kind that a later version adds has to be looked at here, and in contents.py."""
    assert subclasses(FileUrl) - {FileUrl} == set(KINDS)
    assert set(MULTI_MODAL_CONTENT_TYPES) == {*KINDS, BinaryContent, UploadedFile}
    assert {kind.kind for kind in KINDS} == {"image-url", "audio-url", "document-url", "video-url"}


def test_m5_every_way_to_fetch_is_known() -> None:
    """All downloads of files go through one function. The tool that fetches what a model asks for is the agent's to take."""
    assert users(downloads.FETCH) == {"_ssrf.py", "models/__init__.py", "common_tools/web_fetch.py"}
    assert users(downloads.BUDGETED) == {"models/__init__.py"}
    assert downloads.BUDGETED in inspect.getsource(models.download_item)
    clients = re.compile(r"\b(urlopen|requests\.get|httpx2?\.(get|stream|request))\(")
    assert {path.name for path in SOURCE.rglob("*.py") if clients.search(path.read_text("utf-8"))} == set()


def test_m5_the_guard_stands_before_both() -> None:
    assert downloads.guarded()
    assert getattr(models, downloads.BUDGETED).__module__ == getattr(_ssrf, downloads.FETCH).__module__ == downloads.__name__


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("force", [False, True, "allow-local"])
async def test_m5_no_download_in_an_attempt(
    kind: type[FileUrl], force: Any, target: Private, operator: Any, in_attempt: None
) -> None:
    file = kind(target.url, force_download=force, media_type="image/png")  # type: ignore[abstract]
    with pytest.raises(FetchNotAllowedError) as refused:
        await models.download_item(file)
    assert refused.value.details == {"host": "127.0.0.1"} and target.reached == []


async def test_m5_a_program_around_the_runs_fetches_as_it_likes(target: Private, operator: Any) -> None:
    await models.download_item(ImageUrl(target.url, force_download="allow-local"))
    assert len(target.reached) == 1


async def test_m5_a_process_that_executes_runs_fetches_nothing_anywhere(
    target: Private, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of attempts, too, but for what the operator allows."""
    monkeypatch.setattr(downloads, "_everywhere", False)
    assert downloads.guard_process()
    with pytest.raises(FetchNotAllowedError):
        await models.download_item(ImageUrl(target.url, force_download="allow-local"))
    assert target.reached == []
    operator("127.0.0.1", private=True)
    await models.download_item(ImageUrl(target.url))
    assert len(target.reached) == 1


async def test_m5_what_the_operator_allows_is_fetched(target: Private, operator: Any, in_attempt: None) -> None:
    """A host by its exact name, and where it is not public only if that is allowed too."""
    operator("127.0.0.1, files.example.org")
    with pytest.raises(ValueError, match="private"):
        await models.download_item(ImageUrl(target.url, force_download="allow-local"))
    with pytest.raises(FetchNotAllowedError):
        await models.download_item(ImageUrl(target.url.replace("127.0.0.1", "localhost")))
    assert target.reached == []
    operator("127.0.0.1", private=True)
    await models.download_item(ImageUrl(target.url))
    with pytest.raises(FetchNotAllowedError):
        await models.download_item(ImageUrl(target.url.replace("127.0.0.1", "localhost")))
    assert len(target.reached) == 1


async def test_m5_no_redirect_leaves_the_hosts(target: Private, operator: Any, in_attempt: None) -> None:
    operator("127.0.0.1", private=True)
    target.answer = (
        f"HTTP/1.1 302 Found\r\nlocation: {target.url.replace('127.0.0.1', 'localhost')}\r\ncontent-length: 0\r\n\r\n".encode()
    )
    with pytest.raises(ValueError, match="localhost"):
        await models.download_item(ImageUrl(target.url))
    assert len(target.reached) == 1


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "http://", "x", "http://[::1", "http://a@127.0.0.1/", "http://files.example.org@127.0.0.1/"),
        *("http://127.0.0.1#files.example.org", "http://files.example.org.evil.net/", "//127.0.0.1/", "gs://bucket/x"),
        *("http://127.0.0.1\\@files.example.org.evil.net/", "http://evil-files.example.org/", "http://evil.files.example.org/"),
    ],
)
def test_m5_a_host_is_compared_whole(url: str, operator: Any) -> None:
    operator("files.example.org")
    fetch_hosts.check_host("https://files.example.org/x.png")
    fetch_hosts.check_host("https://u:p@FILES.example.org.:8443/x.png")
    with pytest.raises(FetchNotAllowedError):
        fetch_hosts.check_host(url)


@pytest.mark.parametrize("wrong", ["https://files.example.org", "a:80", "*.example.org", "a/b", "a@b"])
def test_m5_hosts_are_names(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_FETCH_HOSTS", wrong)
    with pytest.raises(ConfigurationError, match="RUNYARD_FETCH_HOSTS"):
        FetchSettings()


def asked(*items: Any) -> list[Any]:
    tool = ToolReturnPart("t", list(items), tool_call_id="c")
    whole = ToolReturnPart("t", items[0], tool_call_id="d")
    return [
        [ModelRequest([UserPromptPart(list(items))])],
        [ModelResponse([TextPart("x")]), ModelRequest([tool])],
        [ModelRequest([whole])],
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_m5_a_request_that_would_download_is_refused_before_it_is_made(
    kind: type[FileUrl], operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the model; and each file by URL where downloads cannot be guarded."""
    for messages in asked(kind("http://127.0.0.1/x", force_download=True)):  # type: ignore[abstract]
        with pytest.raises(FetchNotAllowedError):
            downloads.check(messages)
    plain = asked(kind("http://127.0.0.1/x"))  # type: ignore[abstract]
    for messages in plain:
        downloads.check(messages)
    monkeypatch.setattr(downloads, "guarded", lambda: False)
    for messages in plain:
        with pytest.raises(FetchNotAllowedError):
            downloads.check(messages)
