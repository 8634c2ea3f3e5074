"""Stream tokens are believed for their signature alone, and say no more than what they open (A1)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI
from itsdangerous import URLSafeSerializer
from starlette.requests import HTTPConnection

from runyard import Client
from runyard.domain.api_keys import Scope, Secret
from runyard.errors import ConfigurationError
from runyard.worker.worker import Worker
from runyard_api.http import tokens
from runyard_api.http.principal import Principal
from runyard_api.http.settings import ApiSettings
from runyard_backends.memory import MemoryWorld
from tests.http.conftest import BOUND, SECRET, Caller, transport
from tests.http.shared_routes import asgi_app
from tests.support.api_server import frames, serving

THREAD, RUN = "secret-thread", "r1"
STREAM, OF_THREAD = f"/v1/threads/{THREAD}/runs/{RUN}/stream", f"/v1/threads/{THREAD}/stream"
OTHER: Final = "fedcba9876543210" * 2


@pytest.fixture
async def alpha(client: Client) -> Client:
    """A tenant with a run that is over, so that its stream ends."""
    alpha = Client(client.backend.for_tenant("alpha"))
    for thread_id in (THREAD, "other-thread"):
        for run_id in (RUN, "r2"):
            await alpha.enqueue(thread_id, "nobody else may read this", run_id)
            await alpha.cancel(thread_id, run_id)
    return alpha


@pytest.fixture
async def nobody(caller: Caller) -> httpx.AsyncClient:
    """A caller without a key."""
    return await caller(key=None)


async def key_of(client: Client, tenant: str, *scopes: Scope) -> tuple[str, str]:
    """The id and the text of a new key."""
    made, text = await Client(client.backend.for_tenant(tenant)).create_key(tenant, scopes=scopes or ("read", "write"))
    return made.key_id, text


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def signed(claims: Any, secret: str = SECRET, salt: bytes = tokens.PURPOSE, **how: Any) -> str:
    """As a server with ``secret`` would."""
    how = {"key_derivation": "hmac", "digest_method": hashlib.sha256, **how}
    return str(URLSafeSerializer(secret, salt=salt, serializer=json, signer_kwargs=how).dumps(claims))


def under_a_digest(key: str, tenant: str, run_id: str | None) -> str:
    """What the holder of ``key`` can sign: with the digest of it that the store keeps."""
    secret = Secret.parse(key)
    assert secret is not None
    payload = json.dumps([secret.key_id, tenant, secret.key_id, THREAD, run_id, 4_000_000_000]).encode()
    return f"{base64url(payload)}.{base64url(hmac.new(b'stream token ' + secret.digest, payload, hashlib.sha256).digest())}"


def soon(seconds: float = 60) -> int:
    return int((time.time() + seconds) * 1000)


def claims_of(key_id: str, **other: Any) -> dict[str, Any]:
    good = {"version": 1, "by": "key", "key_id": key_id, "thread_id": THREAD, "run_id": RUN, "expires": soon()}
    return {**good, **other}


@pytest.mark.parametrize("scope", ["read", "write", "respond"])
async def test_a_key_signs_no_tokens(nobody: httpx.AsyncClient, client: Client, alpha: Client, scope: Scope) -> None:
    """Neither for another tenant nor for its own: what its holder can compute signs nothing."""
    _, key = await key_of(client, "beta", scope)
    for path, run_id in ((STREAM, RUN), (OF_THREAD, None)):
        for tenant in ("alpha", "beta"):
            reply = await nobody.get(path, params={"token": under_a_digest(key, tenant, run_id)})
            assert reply.status_code == 401, (tenant, path)


def jwt(algorithm: str, claims: Any, key: bytes) -> str:
    head, body = (base64url(json.dumps(part).encode()) for part in ({"alg": algorithm, "typ": "JWT"}, claims))
    text = f"{head}.{body}"
    return f"{text}." + ("" if algorithm == "none" else base64url(hmac.new(key, text.encode(), hashlib.sha256).digest()))


def unsigned(key_id: str, key: str, good: str) -> Iterator[str]:
    """Tokens for which the server's signature is missing, or is for something else."""
    claims = claims_of(key_id)
    payload, _, signature = good.rpartition(".")
    secret = Secret.parse(key)
    assert secret is not None
    yield from (signed(claims, secret.digest.hex()), signed(claims, secret.secret), signed(claims, key), signed(claims, OTHER))
    yield from (signed(claims, salt=b"itsdangerous"), signed(claims, salt=b""), signed(claims, key_derivation="none"))
    yield from (signed(claims, digest_method=hashlib.sha1), signed(claims, digest_method=hashlib.sha512))
    yield from (jwt(name, claims, SECRET.encode()) for name in ("none", "HS256", "HS1", "RS256"))
    yield from (payload, f"{payload}.", f".{signature}", f"{payload}.{payload}", f"{payload}..{signature}", f"{payload}.AAAA")
    yield from (good[:n] for n in range(1, len(good), 7))
    yield from (good[:-1], good[1:], f".{good}", f"{good}=", f"{good}==", f"{good}A", f"{good} ", f" {good}", f"{good}\n")
    yield from (f"{good}!", good + "\0", f"{good}é", good.replace(".", "。"), good.upper(), good.swapcase(), f"Bearer {good}")
    # Of its 43 characters the last one carries four bits: as base64 these are the same signature.
    yield from (
        good[:-1] + last for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" if last != good[-1]
    )
    for body in ("[" * 5000, '{"a":' * 3000, "9" * 5000, "\ud800", '{"a":1,"a":2}', "NaN"):
        yield f"{base64url(body.encode('utf-8', 'surrogatepass'))}.{signature}"
    yield from (
        "x" * 20_000,
        f"{payload}.{'A' * 20_000}",
        f"{'A' * 20_000}.{signature}",
        ".",
        "..",
        "...",
        "null",
        "\0",
        "é.é",
        "💥",
    )


async def test_token_that_the_server_did_not_sign_is_refused(nobody: httpx.AsyncClient, client: Client, alpha: Client) -> None:
    key_id, key = await key_of(client, "alpha")
    good = signed(claims_of(key_id))
    assert (await nobody.get(STREAM, params={"token": good})).status_code == 200
    tried = 0
    for token in unsigned(key_id, key, good):
        reply = await nobody.get(STREAM, params={"token": token})
        assert reply.status_code == 401, token[:200]
        tried += 1
    assert tried > 100


DEEP: list[Any] = []
for _ in range(400):
    DEEP = [DEEP]
ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 1.0, 1.5, 4e9, 4_000_000_000, 4_000_000_000_000, 2**53, 2**63, 10**300, -(10**300)),
    *(math.nan, math.inf, -math.inf, "", "x", "1", "\0", "\n", "\ud800", "x" * 256, "x" * 3000, "NaN", "0" * 16, "é" * 16),
    *([], [1], ["read"], [THREAD], {}, {"a": 1}, {"$ne": None}, DEEP),
)


async def test_claims_that_are_none(nobody: httpx.AsyncClient, client: Client, alpha: Client) -> None:
    """Also under the server's own signature: every claim has a type, a range and a length."""
    key_id, _ = await key_of(client, "alpha")
    good = claims_of(key_id)
    valid = {
        ("version", 1),
        ("run_id", None),
        *((name, text) for name in ("thread_id", "run_id") for text in ("x", "1", "NaN")),
    }
    valid |= {(name, text) for name in ("thread_id", "run_id") for text in ("0" * 16, "é" * 16)}
    wrong: list[Any] = [{**good, name: odd} for name in good for odd in ODD if not _is_in((name, odd), valid)]
    wrong += [{name: value for name, value in good.items() if name != left_out} for left_out in good]
    wrong += [{**good, "tenant": "alpha"}, {**good, "scopes": ["read"]}, {**good, "id": "x"}, {**good, "": 1}]
    wrong += [{**good, "by": "anyone"}, {**good, "by": "host", "tenant": "alpha", "id": "a", "name": None}]
    wrong += [{**good, "expires": at} for at in (soon(-1), soon(3600 + tokens.CLOCK_SKEW_SECONDS + 60), soon() // 1000)]
    wrong += [
        {**good, "key_id": text} for text in (key_id.upper() + "G", key_id[:-1], key_id + "0", f"{key_id}\n", f" {key_id}")
    ]
    wrong += [*ODD, list(good.values()), [key_id, "alpha", key_id, THREAD, RUN, 4_000_000_000]]
    for claims in wrong:
        for path in (STREAM, "/v1/whoami"):
            reply = await nobody.get(path, params={"token": signed(claims)})
            assert reply.status_code == 401, (path, str(claims)[:200])
    assert len(wrong) > 200


@pytest.mark.parametrize("text", ["", "0" * 15, "0" * 17, "A" * 16, "0" * 15 + "\0", "0" * 16 + "\n", "é" * 16, "0" * 3000])
def test_a_key_is_named_by_what_a_key_can_be_called(text: str) -> None:
    """A2: no store is asked for anything else."""
    reader = tokens.Tokens([SECRET], 60)
    assert reader.read(signed(claims_of("0" * 16))) is not None
    assert reader.read(signed(claims_of(text))) is None


def _is_in(claim: tuple[str, Any], valid: set[tuple[str, Any]]) -> bool:
    """As JSON has it: True is not 1."""
    return any((claim[0], repr(claim[1])) == (name, repr(value)) for name, value in valid)


async def test_a_token_opens_what_its_key_may_see(nobody: httpx.AsyncClient, client: Client, alpha: Client) -> None:
    """Tenant and scopes are the key's, whatever thread and run it names."""
    own, _ = await key_of(client, "alpha")
    beta, _ = await key_of(client, "beta")
    for claims, path, status in (
        (claims_of(own), STREAM, 200),
        (claims_of(own, run_id=None), STREAM, 200),
        (claims_of(own, run_id="r2"), STREAM, 403),
        (claims_of(own, thread_id="other-thread"), STREAM, 403),
        (claims_of(own), OF_THREAD, 403),
        (claims_of(own, run_id="r2"), f"/v1/threads/{THREAD}/runs/r2", 403),
        (claims_of(own), f"/v1/threads/{THREAD}", 403),
        (claims_of(own), "/v1/threads", 403),
        (claims_of(beta), STREAM, 404),
        (claims_of(beta, run_id=None), STREAM, 404),
        (claims_of(beta, run_id=None), OF_THREAD, 404),
    ):
        assert (await nobody.get(path, params={"token": signed(claims)})).status_code == status, (claims, path)
    reply = await nobody.post("/v1/stream_tokens", params={"token": signed(claims_of(own))}, json={"thread_id": THREAD})
    assert reply.status_code == 403


async def test_a_token_of_a_fork_reads_nothing_of_its_source(nobody: httpx.AsyncClient, client: Client, worker: Worker) -> None:
    """A1: The fork shows an inherited run up to its cut. The stream of the run is the source's."""
    await (await client.enqueue(THREAD, "say later words", RUN)).result(BOUND)
    await client.fork(THREAD, "fork", after_run_id=RUN)
    own, key = await client.create_key("own", scopes=("read",))
    of_fork, headers = f"/v1/threads/fork/runs/{RUN}/stream", {"X-Api-Key": key}
    for run_id in (None, RUN):
        query = {"token": signed(claims_of(own.key_id, thread_id="fork", run_id=run_id))}
        assert (await nobody.get(of_fork, params=query)).status_code == 404
    refused = await nobody.post("/v1/stream_tokens", json={"thread_id": "fork", "run_id": RUN}, headers=headers)
    assert refused.status_code == 404 and refused.json()["code"] == "run_not_found"
    shown = [(await nobody.get(path, headers=headers)).text for path in (of_fork, STREAM)]
    assert shown[0] == shown[1] and "later" in shown[0]


async def test_read_is_needed_to_ask_and_to_use(
    app: FastAPI, caller: Caller, nobody: httpx.AsyncClient, client: Client, alpha: Client, world: MemoryWorld
) -> None:
    body = {"thread_id": THREAD, "run_id": RUN}
    for scopes, status in (
        ((), 403),
        (("write",), 403),
        (("respond", "write"), 403),
        (("read",), 201),
        (("admin",), 201),
    ):
        key_id, key = await key_of(client, "alpha", *(scopes or ("respond",)))
        assert (await (await caller(key=key)).post("/v1/stream_tokens", json=body)).status_code == status
        used = await nobody.get(STREAM, params={"token": signed(claims_of(key_id))})
        assert used.status_code == (200 if status == 201 else 403), scopes
    lose(world, key_id, "respond")
    app.state.service.gate.forget()
    assert (await nobody.get(STREAM, params={"token": signed(claims_of(key_id))})).status_code == 403


def lose(world: MemoryWorld, key_id: str, *left: Scope) -> None:
    """As an operator may in the table."""
    key, digest = world.db.keys[key_id]
    world.db.keys[key_id] = (key.model_copy(update={"scopes": left}), digest)


@pytest.mark.parametrize("how", ["expiry", "scope"])
async def test_an_open_stream_ends(client: Client, alpha: Client, settings: ApiSettings, world: MemoryWorld, how: str) -> None:
    """With its token, also on a thread on which nothing happens; and when its key may not read any more."""
    key_id, key = await key_of(client, "alpha")
    app = asgi_app(client, settings=settings.model_copy(update={"heartbeat": 60.0 if how == "expiry" else 0.1}))
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=BOUND) as browser, asyncio.timeout(BOUND):
        body = {"thread_id": THREAD, "lifetime": 4.0 if how == "expiry" else 300.0}
        made = await browser.post("/v1/stream_tokens", json=body, headers={"X-Api-Key": key})
        query = {"token": made.json()["token"]}
        async with browser.stream("GET", OF_THREAD, params=query) as reply:
            assert reply.status_code == 200
            if how == "scope":
                lose(world, key_id, "write")
                app.state.service.gate.forget()
            async for frame in frames(reply):
                assert frame.comment
        assert (await browser.get(OF_THREAD, params=query)).status_code == (401 if how == "expiry" else 403)


async def test_requests_count_for_the_key_whatever_token_they_carry(
    client: Client, alpha: Client, settings: ApiSettings
) -> None:
    key_id, key = await key_of(client, "alpha")
    slow = settings.model_copy(update={"requests_per_second": 0.001, "burst": 6})
    headers = {"X-Api-Key": key}
    async with httpx.AsyncClient(transport=transport(asgi_app(client, settings=slow)), base_url="http://api") as http:
        made = [await http.post("/v1/stream_tokens", json={"thread_id": THREAD}, headers=headers) for _ in range(2)]
        mixed = [reply.json()["token"] for reply in made]
        mixed += [signed(claims_of(key_id, expires=soon(n), run_id=run_id)) for n, run_id in ((61, RUN), (62, None), (63, RUN))]
        statuses = [(await http.get(STREAM, params={"token": token})).status_code for token in mixed]
        assert statuses == [200, 200, 200, 200, 429]
        assert (await http.get("/v1/threads", headers=headers)).status_code == 429


async def test_streams_count_for_the_key_whatever_token_opened_them(
    client: Client, alpha: Client, settings: ApiSettings
) -> None:
    key_id, key = await key_of(client, "alpha")
    app = asgi_app(client, settings=settings.model_copy(update={"streams_per_key": 2}))
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=BOUND) as http, asyncio.timeout(BOUND):
        one, two, three = ({"token": signed(claims_of(key_id, run_id=None, expires=soon(60 + n)))} for n in range(3))
        async with http.stream("GET", OF_THREAD, params=one) as first, http.stream("GET", OF_THREAD, params=two) as second:
            assert (first.status_code, second.status_code) == (200, 200)
            assert (await http.get(OF_THREAD, params=three)).status_code == 429
            assert (await http.get(STREAM, headers={"X-Api-Key": key})).status_code == 429


async def test_first_of_two_secrets_signs_and_both_verify(client: Client, alpha: Client, settings: ApiSettings) -> None:
    """The first signs, all verify."""
    _, key = await key_of(client, "alpha")
    old, both, new = (
        asgi_app(client, settings=ApiSettings(_env_file=None, token_secret=text))
        for text in (SECRET, f"{OTHER}, {SECRET}", OTHER)
    )
    by_old, by_both = [await token_of(app, key) for app in (old, both)]
    for app, token, status in (
        (old, by_old, 200),
        (both, by_old, 200),
        (new, by_old, 401),
        (old, by_both, 401),
        (new, by_both, 200),
    ):
        async with httpx.AsyncClient(transport=transport(app), base_url="http://api") as http:
            assert (await http.get(STREAM, params={"token": token})).status_code == status


async def token_of(app: FastAPI, key: str) -> str:
    async with httpx.AsyncClient(transport=transport(app), base_url="http://api", headers={"X-Api-Key": key}) as http:
        made = await http.post("/v1/stream_tokens", json={"thread_id": THREAD, "run_id": RUN})
        return str(made.json()["token"])


async def known(request: HTTPConnection) -> Principal | None:
    return Principal("alpha", frozenset({"read"}), request.headers.get("x-user", "ann"))


@pytest.mark.parametrize("secret", [None, "short", "x" * 31, f"{SECRET},short"])
def test_a_secret_is_needed_where_callers_differ(client: Client, secret: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a process makes up is not known to the others; the words say how to make one, and do not show what was given."""
    monkeypatch.delenv("RUNYARD_API_TOKEN_SECRET", raising=False)
    made = ApiSettings(_env_file=None, token_secret=secret)
    for auth in ("keys", known):
        with pytest.raises(ConfigurationError, match=r"RUNYARD_API_TOKEN_SECRET.*openssl rand -hex 32") as refused:
            asgi_app(client, auth=auth, settings=made)  # type: ignore[arg-type]
        assert refused.value.details == {"variables": ["RUNYARD_API_TOKEN_SECRET"]} and "xxxx" not in str(refused.value)
    if secret is None:
        asgi_app(client, auth="off", settings=made)
    assert SECRET not in repr(ApiSettings(_env_file=None, token_secret=SECRET))


def from_anywhere(app: FastAPI, host: str = "10.0.0.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(host, 1)), base_url="http://localhost")


async def test_tokens_of_a_hosts_scheme(client: Client, alpha: Client, settings: ApiSettings) -> None:
    """There is no row to ask: the signature vouches for the tenant. A token of another scheme opens nothing."""
    key_id, _ = await key_of(client, "alpha")
    hosted, keyed, off = (asgi_app(client, auth=auth, settings=settings) for auth in (known, "keys", "off"))  # type: ignore[arg-type]
    opens = {"version": 1, "thread_id": THREAD, "run_id": RUN, "expires": soon()}
    kinds = {
        "host": signed({**opens, "by": "host", "tenant": "alpha", "id": "ann", "name": None}),
        "key": signed({**opens, "by": "key", "key_id": key_id}),
        "anyone": signed({**opens, "by": "anyone"}),
    }
    for app, takes in ((hosted, "host"), (keyed, "key"), (off, "anyone")):
        async with from_anywhere(app, "127.0.0.1") as http:
            for kind, token in kinds.items():
                reply = await http.get(STREAM, params={"token": token})
                expected = 401 if kind != takes else 404 if kind == "anyone" else 200  # without keys it is the default tenant's
                assert reply.status_code == expected, (takes, kind)
    async with from_anywhere(off) as far:
        assert (await far.get(STREAM, params={"token": kinds["anyone"]})).status_code == 401
    async with from_anywhere(hosted) as http:
        made = await http.post("/v1/stream_tokens", json={"thread_id": THREAD, "run_id": RUN})
        query = {"token": made.json()["token"]}
        assert (await http.get(STREAM, params=query)).status_code == 200
        assert (await http.get("/v1/whoami", params=query)).json()["id"] == "ann"
        odd = {**opens, "by": "host", "tenant": "alpha", "id": "ann", "name": None}
        for name in ("tenant", "id", "name"):
            for value in (1, True, [], {}, "x" * 1001, *(() if name == "name" else (None,))):
                assert (await http.get(STREAM, params={"token": signed({**odd, name: value})})).status_code == 401, (
                    name,
                    value,
                )
        long = await http.post("/v1/stream_tokens", json={"thread_id": THREAD}, headers={"X-User": "x" * 1001})
        assert (long.status_code, long.json()["details"]) == (400, {"field": "id"})


async def test_the_longest_ids_fit(client: Client, caller: Caller, nobody: httpx.AsyncClient) -> None:
    _, key = await key_of(client, "alpha")
    ids = ["".join(chr(0x1F300 + (7 * n + shift) % 200) for n in range(255)) for shift in (0, 3)]
    alpha = Client(client.backend.for_tenant("alpha"))
    await alpha.enqueue(ids[0], "x", ids[1])
    await alpha.cancel(ids[0], ids[1])
    made = await (await caller(key=key)).post("/v1/stream_tokens", json={"thread_id": ids[0], "run_id": ids[1]})
    assert made.status_code == 201
    path = f"/v1/threads/{ids[0]}/runs/{ids[1]}/stream"
    assert (await nobody.get(path, params={"token": made.json()["token"]})).status_code == 200


async def test_a_hosts_principal_ends_when_it_says(client: Client, alpha: Client, settings: ApiSettings) -> None:
    """Its streams do, and no token of it lasts longer."""

    async def brief(request: HTTPConnection) -> Principal | None:
        found = await known(request)
        return replace(found, expires=ends) if found is not None else None

    app = asgi_app(client, auth=brief, settings=settings.model_copy(update={"heartbeat": 60.0}))
    async with serving(app) as url, httpx.AsyncClient(base_url=url, timeout=BOUND) as http, asyncio.timeout(BOUND):
        ends = time.time() + 4
        made = await http.post("/v1/stream_tokens", json={"thread_id": THREAD, "lifetime": 300})
        assert made.json()["expires_at"] == (await http.get("/v1/whoami")).json()["expires_at"]
        async with http.stream("GET", OF_THREAD) as reply:
            async for frame in frames(reply):
                assert frame.comment
        assert (await http.get(OF_THREAD, params={"token": made.json()["token"]})).status_code == 401
