"""Stream tokens are believed for their signature alone, and say no more than what they open (semantics: A1)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest

from runner.client import Client
from runner.keys import Scope, Secret
from tests.http.conftest import Caller

THREAD, RUN, WORDS = "secret-thread", "r1", "nobody else may read this"
STREAMS = (f"/v1/threads/{THREAD}/runs/{RUN}/stream", f"/v1/threads/{THREAD}/stream")


def text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def under_a_digest(key: str, tenant: str, run_id: str | None, own_id: str | None = None) -> str:
    """What the holder of ``key`` can sign: with the digest of it that the store keeps."""
    secret = Secret.parse(key)
    assert secret is not None
    payload = json.dumps([secret.key_id, tenant, own_id or secret.key_id, THREAD, run_id, 4_000_000_000]).encode()
    return f"{text(payload)}.{text(hmac.new(b'stream token ' + secret.digest, payload, hashlib.sha256).digest())}"


@pytest.fixture
async def alpha(client: Client) -> Client:
    """A tenant whose run nobody else may read. It is over, so that its stream ends."""
    alpha = Client(client.backend.for_tenant("alpha"))
    await alpha.enqueue(THREAD, WORDS, RUN)
    await alpha.cancel(THREAD, RUN)
    return alpha


@pytest.mark.parametrize("scope", ["read", "write", "respond"])
async def test_a_key_signs_no_tokens(caller: Caller, client: Client, alpha: Client, scope: Scope) -> None:
    """Neither for another tenant nor for its own: what its holder can compute signs nothing."""
    _, key = await Client(client.backend.for_tenant("beta")).create_key("beta", scopes=(scope,))
    nobody = await caller(key=None)
    for path, run_id in zip(STREAMS, (RUN, None), strict=True):
        for tenant in ("alpha", "beta"):
            reply = await nobody.get(path, params={"token": under_a_digest(key, tenant, run_id)})
            assert (reply.status_code, WORDS in reply.text) == (401, False), (tenant, path)
