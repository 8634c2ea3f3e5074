"""The OpenAPI document says what the API does: checked by reading it, and by thousands of requests made from it.

``RUNYARD_TEST_REQUESTS=2000`` lets schemathesis go through all its phases, 2,000 requests and more.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.models import EVENT_TYPES, FEED_TYPES
from runyard_api.http.app import asgi_app
from runyard_api.http.document import operations
from runyard_api.http.settings import ApiSettings
from tests.http.conformity import Documented
from tests.http.conftest import SECRET
from tests.support.api_server import serving
from tests.support.long_form import LONG
from tests.support.receiver import new_secret

HERE = Path(__file__).parent
FULL = int(os.environ.get("RUNYARD_TEST_REQUESTS", "2000" if LONG else "0")) > 300
BOUND = 1500 if FULL else 300
PHASES = ("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "20")
SHORT = ("--phases", "examples,fuzzing", "--max-examples", "4")
"""About 150 requests."""


@pytest.fixture
def document(app: FastAPI) -> dict[str, Any]:
    return app.openapi()


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    """A: an id, words, a scope, an example of what goes in, and every answer that it may give."""
    assert document["openapi"].startswith("3.1")
    ids = [op["operationId"] for _, _, op in operations(document)]
    assert len(ids) == len(set(ids)) >= 35 and all(re.fullmatch(r"[a-z]+(_[a-z]+)*", id) for id in ids)
    for method, path, op in operations(document):
        assert op["description"] and op["tags"] and "security" in op, path
        if op["security"]:
            assert {"400", "401", "403", "413", "422", "429", "503"} <= op["responses"].keys(), path
        if body := op.get("requestBody"):
            assert body["content"].keys() == {"application/json"}, (method, path)


def test_no_description_has_a_role_of_a_docstring(document: dict[str, Any]) -> None:
    assert re.findall(r":[a-z]+:`[^`]*`", json.dumps(document)) == []


def test_every_way_to_say_who_asks_is_described(document: dict[str, Any]) -> None:
    """A1: a key in two headers, and for streams a token in the query."""
    schemes = document["components"]["securitySchemes"]
    assert {name: (scheme["type"], scheme.get("in"), scheme.get("name")) for name, scheme in schemes.items()} == {
        "apiKey": ("http", None, None),
        "apiKeyHeader": ("apiKey", "header", "X-Api-Key"),
        "streamToken": ("apiKey", "query", "token"),
    }
    by_token = set()
    for method, path, op in operations(document):
        named = [name for each in op["security"] for name in each]
        assert named in ([], ["apiKey", "apiKeyHeader"], list(schemes)), path
        if "streamToken" in named:
            by_token.add((method, path))
    streams = {("get", path) for path, methods in document["paths"].items() if path.endswith("/stream") and "get" in methods}
    assert by_token == streams | {("get", "/v1/whoami")} and len(streams) == 2


def test_bodies_have_examples(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for _, path, op in operations(document):
        if body := op.get("requestBody"):
            schema = body["content"]["application/json"]["schema"]
            name = schema.get("$ref", "").rpartition("/")[2]
            assert not name or schemas[name].get("examples"), path


def test_the_document_says_where_what_and_who(document: dict[str, Any]) -> None:
    assert document["servers"] and document["info"]["license"]["identifier"] == "Apache-2.0"
    for method, path, op in operations(document):
        for status, answer in op["responses"].items():
            said = document["components"]["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
            assert "X-Request-Id" in said["headers"], (method, path, status)


def test_every_type_of_event_has_a_schema(document: dict[str, Any]) -> None:
    """E2: told apart by ``type``; what is not of the type's shape is none."""
    said = Documented(document)
    event = {"id": "1-1", "type": "run.queued", "thread_id": "t", "run_id": "r", "data": {"attempt": 1}}
    assert set(document["components"]["schemas"]["Event"]["discriminator"]["mapping"]) == set(EVENT_TYPES)
    said.check_event(json.dumps(event).encode())
    for wrong in ({"data": {}}, {"type": "run.suspended"}, {"id": None}, {"data": {"attempt": "one"}}):
        with pytest.raises(AssertionError):
            said.check_event(json.dumps({**event, **wrong}).encode())


def test_webhooks_are_told_of_what_the_feed_has(document: dict[str, Any]) -> None:
    """E5: one entry per type, with the headers that prove who sent it."""
    assert set(document["webhooks"]) == set(FEED_TYPES)
    for told in document["webhooks"].values():
        body = told["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/WebhookEvent"}
        assert {p["name"] for p in told["post"]["parameters"]} == {"webhook-id", "webhook-timestamp", "webhook-signature"}


def test_answers_hold_all_their_fields(document: dict[str, Any]) -> None:
    """A generated client need not ask whether a field is there; requests may leave out what has a default."""
    schemas = document["components"]["schemas"]
    for name in ("Run", "RunOutcome", "Thread", "RunPage", "Usage"):
        assert set(schemas[name]["required"]) == set(schemas[name]["properties"]), name
    assert schemas["Prompt"]["required"] == ["message"]
    assert len({schema.get("title", name) for name, schema in schemas.items()}) == len(schemas)


def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [ref for each in value.values() for ref in references(each)]
        return [ref for each in value for ref in references(each)] if isinstance(value, list) else []

    for ref in set(references(document)):
        found: Any = document
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]


def test_every_path_of_the_rules_is_there(document: dict[str, Any]) -> None:
    """A: exactly those paths, those that make stream tokens and say who asks, and those of operators."""
    t, r = "/v1/threads/{thread_id}", "/v1/threads/{thread_id}/runs/{run_id}"
    expected = {
        *(f"/v1/{name}" for name in ("threads", "runs", "requests", "agents", "workers", "feed", "usage")),
        *("/v1/runs/{run_id}", "/v1/stream_tokens", "/v1/whoami", "/v1/webhook_secret", "/v1/webhook_secret/rotate"),
        *(f"/v1/webhooks{rest}" for rest in ("", "/{webhook_id}", "/{webhook_id}/secret", "/{webhook_id}/secret/rotate")),
        *("/v1/webhook_deliveries", "/v1/webhook_deliveries/{delivery_id}/redeliver"),
        *("/v1/queues", "/v1/queues/{queue}/pause", "/v1/queues/{queue}/resume", "/v1/workers/{worker_id}/drain"),
        *("/v1/limits", "/v1/limits/{name}", "/v1/keys", "/v1/keys/{key_id}"),
        *("/v1/doctor", "/v1/workers/{worker_id}/stacks"),
        *("/v1/agents/{name}", f"{t}/messages/{{message_id}}", f"{t}/branches/{{number}}/messages"),
        *("/v1/requests/{request_id}", "/v1/requests/{request_id}/respond"),
        *(t, r, "/livez", "/readyz", "/metrics"),
        *(
            f"{t}/{name}"
            for name in ("runs", "runs/stream", "runs/wait", "respond", "signals", "abort", "regenerate", "stream")
        ),
        *(
            f"{t}/{name}"
            for name in ("fork", "fork_once", "fork_many", "messages", "branches", "lineage", "diff", "labels/{label}")
        ),
        *(f"{r}/{name}" for name in ("stream", "wait", "explain", "attempts", "timeline", "cancel", "redrive")),
        *(f"{r}/{name}" for name in ("progress", "candidates")),
    }
    assert document["paths"].keys() == expected


@pytest.mark.timeout(BOUND + 200)
async def test_the_api_does_what_its_document_says(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: no 5xx, no status and no content that is not documented, whatever is sent; every check of schemathesis."""
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", new_secret())
    settings = ApiSettings(
        _env_file=None,
        max_wait=0.01,
        max_stream=0.05,
        requests_per_second=1e6,
        burst=10**6,
        streams_per_key=10**6,
        token_secret=SECRET,
        compat=["acontext", "events", "openhands"],
    )
    app = asgi_app(client, settings=settings)
    _, key = await client.create_key("schemathesis", scopes=("read", "write", "respond", "admin"))
    async with serving(app) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml"), "run"),
            *(f"{url}/openapi.json", "-H", f"Authorization: Bearer {key}", "--checks", "all"),
            *(PHASES if FULL else SHORT),
            *("--generation-deterministic", "--continue-on-failure", "--no-color", "--warnings", "off"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tmp_path,
        )
        async with asyncio.timeout(BOUND):
            said, _ = await process.communicate()
    text = said.decode()
    print(text[-4000:])
    assert process.returncode == 0, text[-20_000:]
    made = re.search(r"(\d+) generated", text)
    assert made is not None and int(made[1]) >= (2000 if FULL else 80)
