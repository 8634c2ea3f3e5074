"""The page that shows the API's document."""

from __future__ import annotations

import re

import httpx
from fastapi import FastAPI

from runyard import Client
from runyard_api.http.app import asgi_app
from tests.http.conftest import Caller, transport


async def test_the_page_is_for_everybody_and_from_one_host(caller: Caller) -> None:
    """No key, no other host, no script that its policy does not allow."""
    nobody = await caller(key=None)
    page = await nobody.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {link.partition(":")[0] for link in links if ":" in link} == {"data"}
    assert "<script>" not in page.text and "onload" not in page.text
    served = {link: await nobody.get(f"/{link}") for link in links if ":" not in link}
    assert len(served) == 3 and all(file.status_code == 200 and file.content for file in served.values())
    assert "javascript" in served["docs/start.js"].headers["content-type"]
    assert re.search(r'url: "openapi\.json"', served["docs/start.js"].text)
    assert (await nobody.get("/docs/other.js")).status_code in (401, 404)


async def test_a_mounted_page_finds_its_document(client: Client) -> None:
    host = FastAPI(openapi_url=None)
    host.mount("/agents", asgi_app(client, auth="off"))
    async with httpx.AsyncClient(transport=transport(host), base_url="http://localhost") as http:
        assert 'src="docs/start.js"' in (await http.get("/agents/docs")).text  # relative to /agents/
        assert (await http.get("/agents/docs/start.js")).status_code == 200
        assert (await http.get("/agents/openapi.json")).json()["servers"] == [{"url": "/agents"}]
