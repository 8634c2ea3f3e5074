"""Webhooks over HTTP: who may see the URL of a run, and who the secret that signs (A1)."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from fastapi import FastAPI
from standardwebhooks import Webhook

from runyard import Client
from runyard.domain.api_keys import Scope
from runyard.domain.webhook_secrets import derived
from runyard.domain.webhooks import masked
from runyard_api.http.document import operations
from tests.http.conftest import Caller
from tests.support.receiver import new_secret

URL = "https://hooks.example:8443/services/T0/B0/wXyZ?key=1"
SEEN = "https://hooks.example:8443/…"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, SEEN),
        ("http://h", "http://h/…"),
        ("http://h?token=1", "http://h/…"),
        ("https://[::1]:9/x", "https://[::1]:9/…"),
        ("https://me:secret@h/x", "https://h/…"),
        ("nonsense", "…"),
        ("http://[::1", "…"),
    ],
)
def test_masked_url_shows_no_secret(url: str, shown: str) -> None:
    assert masked(url) == shown


async def test_only_who_may_write_sees_where_a_run_reports(app: FastAPI, caller: Caller, client: Client) -> None:
    """Every route that a key with read alone may ask; the URL is often a secret by itself."""
    await client.enqueue("t", "hi", "r1", webhook=URL)
    await client.enqueue("t", "hi", "odd", webhook=URL, metadata={"x": "\ud800"})  # takes another way to JSON
    reader, asked = await caller(scopes=("read",)), 0
    for method, path, operation in operations(app.openapi()):
        readable = any("read" in scopes for way in operation["security"] for scopes in way.values())
        if readable and method == "get" and not path.endswith("/stream"):
            for run in ("r1", "odd"):
                where = path.format_map(defaultdict(lambda: "none", thread_id="t", run_id=run))
                named = {parameter["name"] for parameter in operation.get("parameters", ())}
                params = {name: value for name, value in {"wait": 0, "other": "t"}.items() if name in named}
                reply = await reader.get(where, params=params)
                assert "wXyZ" not in reply.text, path
                asked += "hooks.example" in reply.text
    assert asked >= 6, "of one run, of its wait, of lists"
    answerer = await caller(scopes=("respond",))
    assert "wXyZ" not in (await answerer.post("/v1/threads/t/abort", json={})).text
    for scopes in (("read", "write"), ("admin",)):
        http = await caller(scopes=scopes)
        for path in ("/v1/threads/t/runs/r1", "/v1/threads/t/runs/odd"):
            assert (await http.get(path)).json()["options"]["webhook"] == URL
        assert URL in (await http.get("/v1/runs")).text
    assert (await reader.get("/v1/threads/t/runs/r1")).json()["options"]["webhook"] == SEEN


PRIVATE = (
    *(
        "http://10.0.0.1/",
        "http://169.254.169.254/latest",
        "https://127.0.0.1:8000/x?y=1",
        "http://127.1/",
        "http://2130706433/",
    ),
    *("http://0x7f.1/", "http://127.0.0.1./", "http://0/", "http://[::1]/", "http://[::ffff:10.0.0.1]:9/", "http://[fe80::1]/"),
    *("http://localhost:9/", "http://LOCALHOST./"),
)


@pytest.mark.parametrize("url", PRIVATE)
async def test_an_address_that_no_delivery_reaches_is_refused(caller: Caller, url: str) -> None:
    """A2: The creator learns it at once, of a subscription and of a run. A name is resolved when a delivery is sent."""
    http = await caller(scopes=("admin", "write"))
    for path, body, pointer in (
        ("/v1/webhooks", {"url": url}, "/url"),
        ("/v1/threads/t/runs", {"message": "hi", "webhook": url}, "/webhook"),
    ):
        reply = await http.post(path, json=body)
        assert reply.status_code == 422, reply.text
        assert [(each["pointer"], "RUNYARD_WEBHOOK_ALLOW_PRIVATE" in each["message"]) for each in reply.json()["errors"]] == [
            (pointer, True)
        ]


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_WEBHOOK_ALLOW_PRIVATE", "10.1.0.0/16,::1/128")


async def test_allowed_and_public_addresses_and_names_are_accepted(allowed: None, caller: Caller) -> None:
    http = await caller(scopes=("admin",))
    for host, status in (("10.1.2.3", 201), ("localhost", 201), ("[::1]", 201), ("10.2.0.1", 422), ("127.0.0.1", 422)):
        assert (await http.post("/v1/webhooks", json={"url": f"http://{host}/"})).status_code == status, host
    for host in ("93.184.215.14", "[2606:4700::1111]", "localhost.example", "10.example", "notlocalhost"):
        assert (await http.post("/v1/webhooks", json={"url": f"http://{host}/"})).status_code == 201, host


class TestSecret:
    @pytest.fixture
    def root(self, monkeypatch: pytest.MonkeyPatch) -> str:
        secret = new_secret()
        monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", secret)
        return secret

    async def test_admins_read_and_rotate_their_tenants(self, caller: Caller, root: str) -> None:
        alpha, beta = [await caller(tenant=name, scopes=("admin",)) for name in ("alpha", "beta")]

        async def secret(http: Any) -> dict[str, Any]:
            reply = await http.get("/v1/webhook_secret")
            assert reply.status_code == 200 and reply.headers["cache-control"] == "no-store"
            return dict(reply.json())

        first, theirs = await secret(alpha), await secret(beta)
        assert first == {"secret": derived(root, "alpha", None, (1,))[0], "version": 1, "both_until": None}
        assert first["secret"] != theirs["secret"]
        reply = await alpha.post("/v1/webhook_secret/rotate", json={"overlap": 60})
        assert reply.status_code == 200 and reply.headers["cache-control"] == "no-store"
        second = reply.json()
        assert second["version"] == 2 and second["both_until"] and second["secret"] != first["secret"]
        assert await secret(alpha) == second and await secret(beta) == theirs
        assert (await alpha.post("/v1/webhook_secret/rotate")).json()["version"] == 3
        assert (await alpha.post("/v1/webhook_secret/rotate", json={"overlap": -1})).status_code == 422
        Webhook(second["secret"])

    @pytest.mark.parametrize("scope", ["read", "write", "respond"])
    async def test_key_without_the_scope_may_not_read_or_rotate_the_webhook_secret(
        self, caller: Caller, root: str, scope: Scope
    ) -> None:
        http = await caller(scopes=(scope,))
        assert (await http.get("/v1/webhook_secret")).status_code == 403
        assert (await http.post("/v1/webhook_secret/rotate", json={})).status_code == 403

    async def test_a_server_that_does_not_know_it(self, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RUNYARD_WEBHOOK_SECRET", raising=False)
        http = await caller()
        for reply in (await http.get("/v1/webhook_secret"), await http.post("/v1/webhook_secret/rotate", json={})):
            assert (reply.status_code, reply.json()["code"]) == (501, "capability_missing"), json.dumps(reply.json())
            assert "RUNYARD_WEBHOOK_SECRET" in reply.json()["detail"]
