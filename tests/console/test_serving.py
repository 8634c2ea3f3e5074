"""What the API serves below `/console`: the built files, their headers, and nothing else, whatever somebody asks for."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

from runyard import Client
from runyard_api.http import console
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from runyard_backends.memory import MemoryWorld, connect
from tests.console.conftest import SECRET
from tests.support.api_server import serving

pytestmark = pytest.mark.timeout(60)

EVIL: Final = "evil.example"
HOSTILE_HEADERS: Final = {
    **dict.fromkeys(("X-Forwarded-Prefix", "X-Script-Name", "X-Original-URL", "X-Rewrite-URL"), f"//{EVIL}/x"),
    "X-Forwarded-Host": EVIL,
    "X-Forwarded-Proto": "javascript",
    "Forwarded": f"host={EVIL};proto=javascript",
    "Referer": f"https://{EVIL}/<script>",
    "User-Agent": f"<script src=//{EVIL}>",
    "Origin": f"https://{EVIL}",
    "Accept-Language": f'"><script src=//{EVIL}>',
}
PLACES: Final = (
    *("/console", "/console/", "/console/threads/t", "/console/threads/a%2Fb", "/console//", f"/console//{EVIL}/x"),
    *(f"/console/%5C%5C{EVIL}/x", "/console/..%2F..%2Fetc%2Fpasswd", "/console/%2e%2e/%2e%2e/v1/threads"),
    *("/console/index.html", "/console/<script>alert(1)</script>", "/console/javascript:alert(1)", "/console/" + "x/" * 900),
    *(f"/console?base=//{EVIL}/", "/console/threads/t?message=%3Cscript%3E&run=%22%3E%3Cimg&event=javascript:alert(1)"),
)
"""Targets of requests that are answered with the page."""
OUTSIDE: Final = (
    *("/console/assets/../index.html", "/console/assets/../built.txt", "/console/assets/../../http/console.py"),
    *("/console/assets/%2e%2e/built.txt", "/console/assets/..%2Fbuilt.txt", "/console/assets/%2e%2e%2f%2e%2e%2fpages.py"),
    *("/console/assets/..%5Cbuilt.txt", "/console/assets/..\\built.txt", "/console/assets/....//built.txt"),
    *("/console/assets//etc/passwd", "/console/assets/%2Fetc%2Fpasswd", "/console/assets/file:///etc/passwd"),
    *("/console/assets/", "/console/assets/.", "/console/assets/" + "a" * 4000, "/console/assets/%E2%80%AEconsole.js"),
    *("/console/assets/%252e%252e%252fbuilt.txt", "/console/assets/console.js%3f", "/console/assets/console.js;x=1"),
)


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Site(NamedTuple):
    """An API on the memory backend. ``prefix``: the path under which a host has mounted it."""

    port: int
    prefix: str = ""

    async def ask(self, target: str, method: str = "GET", **headers: str) -> Answer:
        """Send a request as it is: no part of its target is normalised."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {self.prefix}{target} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode("latin-1").split("\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
        return Answer(int(first.split()[1]), found, body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    app = asgi_app(
        Client(await connect(world=MemoryWorld())), auth="keys", settings=ApiSettings(_env_file=None, token_secret=SECRET)
    )
    async with serving(app) as url:
        yield Site(int(url.rpartition(":")[2]))


def check_policy(answer: Answer) -> None:
    assert answer.headers["content-security-policy"] == console.POLICY
    assert "frame-ancestors 'none'" in console.POLICY and "default-src 'none'" in console.POLICY
    assert "unsafe" not in console.POLICY and "*" not in console.POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def folder_of(target: str, base: str) -> str:
    """Return the folder to which a browser resolves ``base``. Unlike urljoin, it counts empty segments."""
    *folder, _ = target.partition("?")[0].split("/")
    *steps, _ = base.split("/")
    for step in steps:
        if step == "..":
            folder.pop()
        elif step != ".":
            folder.append(step)
    return "/".join([*folder, ""])


def assets(page: bytes) -> list[str]:
    return re.findall(r'(?:href|src)="(assets/[^"]+)"', page.decode())


@pytest.mark.parametrize("target", PLACES)
async def test_a_place_is_the_page_and_its_files_are_those_of_its_server(site: Site, target: str) -> None:
    """A browser that resolves the page's URLs reaches the files, from whatever place. No header is in the page."""
    answer = await site.ask(target, **HOSTILE_HEADERS)
    assert answer.status == 200, answer
    check_policy(answer)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert EVIL.encode() not in answer.body and b"alert" not in answer.body
    assert EVIL not in str(answer.headers) and "location" not in answer.headers and "set-cookie" not in answer.headers
    base = re.search(rb'<base href="([^"]*)">', answer.body)
    assert base is not None and re.fullmatch(rb"(?:\.\./)*|\./|console/", base[1])
    if "%2e%2e/" not in target:  # a browser resolves these before it asks
        assert folder_of(target, base[1].decode()) == "/console/"


@pytest.mark.parametrize("target", OUTSIDE)
async def test_no_file_outside_the_bundle_is_served(site: Site, target: str) -> None:
    answer = await site.ask(target)
    assert answer.status == 404, answer
    check_policy(answer)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert b"root:" not in answer.body and b"import" not in answer.body


@pytest.mark.parametrize("target", ["/console/%00", "/console/assets/%00", "/console/%ff", "/console/assets/%zz"])
async def test_what_is_no_text_is_refused(site: Site, target: str) -> None:
    answer = await site.ask(target)
    assert answer.status == 400
    check_policy(answer)


async def test_files_are_kept_for_ever_and_the_page_is_asked_again(site: Site) -> None:
    page = await site.ask("/console/")
    names = assets(page.body)
    assert [name.rpartition(".")[2] for name in names] == ["css", "js"]
    for name in names:
        plain, packed = await site.ask(f"/console/{name}"), await site.ask(f"/console/{name}", Accept_Encoding="br, gzip")
        for each in (plain, packed):
            check_policy(each)
            assert each.status == 200 and each.headers["cache-control"] == console.IMMUTABLE
            assert "Accept-Encoding" in each.headers["vary"]
            assert each.headers["content-type"].startswith(("text/css", "text/javascript"))
        assert re.search(r"-[A-Z0-9]{8}\.(?:js|css)$", name), "the name has no hash of the content"
        assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body) == plain.body
        for name_of_header in ("If-None-Match", "If-Match", "If-Modified-Since", "Range", "If-Range"):
            for value in ("*", '"x"', "bytes=0-3", "bytes=-1,-2,-3", "Fri, 01 Jan 2100 00:00:00 GMT"):
                forged = await site.ask(f"/console/{name}", **{name_of_header: value})
                assert (forged.status, forged.body) == (200, plain.body)
        head = await site.ask(f"/console/{name}", "HEAD")
        assert (head.status, head.body) == (200, b"") and head.headers["content-length"] == str(len(plain.body))


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        *((each, True) for each in ("gzip", "GZIP", "br;q=1.0, gzip;q=0.8", "x-gzip", "gzip;q=0.001, *;q=0", "deflate,gzip")),
        *((each, False) for each in ("", "gzip;q=0", "gzip; q=0.000", "identity", "br", "notgzip", "gzipped", "br, gzip;q=0")),
    ],
)
async def test_gzip_is_sent_to_those_who_accept_it(site: Site, accepted: str, packed: bool) -> None:
    [style, _] = assets((await site.ask("/console/")).body)
    answer = await site.ask(f"/console/{style}", Accept_Encoding=accepted)
    assert (answer.headers.get("content-encoding") == "gzip") is packed


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_files_are_only_read(site: Site, method: str) -> None:
    for target in ("/console", "/console/threads/t", "/console/assets/x.js"):
        answer = await site.ask(target, method, Content_Length="0")
        assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD"
        check_policy(answer)


async def test_off_serves_nothing() -> None:
    settings = ApiSettings(_env_file=None, token_secret=SECRET, console="off")
    app = asgi_app(Client(await connect(world=MemoryWorld())), auth="keys", settings=settings)
    async with serving(app) as url:
        off = Site(int(url.rpartition(":")[2]))
        for target in ("/console", "/console/", "/console/index.html", "/console/threads/t", "/console/assets/x.js"):
            answer = await off.ask(target)
            assert answer.status == 404 and answer.headers["content-type"] == "application/problem+json"
            assert b"<" not in answer.body
