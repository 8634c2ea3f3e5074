"""``Idempotency-Key`` stands for the id that an operation has for repetitions (semantics: R2, F4, H3, B1)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from runner.client import Client
from runner.worker import Worker

from .conftest import Caller, ask, said_of_the_api

BY_STATE = {"cancel_run", "redrive_run", "abort_pending", "create_stream_token", "rotate_webhook_secret"}
"""What has no id for repetitions: the state of the run decides, and a token is no change."""


def test_every_operation_that_makes_something_takes_a_key() -> None:
    posts = {
        operation["operationId"]: {parameter["name"].lower() for parameter in operation.get("parameters", ())}
        for methods in said_of_the_api().document["paths"].values()
        for method, operation in methods.items()
        if method == "post"
    }
    assert {name for name, parameters in posts.items() if "idempotency-key" not in parameters} == BY_STATE


async def twice(
    http: httpx.AsyncClient, path: str, body: Any, other: Any, codes: tuple[int, int], refused: int = 409, key: str = "once"
) -> Any:
    """The answer to ``body`` under a key, the same when repeated; ``other`` under the same key is refused."""
    first = await http.post(path, json=body, headers={"Idempotency-Key": key})
    again = await http.post(path, json=body, headers={"Idempotency-Key": key})
    assert (first.status_code, again.status_code) == codes, (first.text, again.text)
    assert first.headers.get("location") == again.headers.get("location")
    conflict = await http.post(path, json=other, headers={"Idempotency-Key": key})
    assert conflict.status_code == refused and conflict.headers["content-type"] == "application/problem+json", conflict.text
    different = await http.post(path, json=body, headers={"Idempotency-Key": "twice"})
    assert different.headers.get("location") != first.headers.get("location") or "location" not in first.headers
    return first.json()


async def test_threads(http: httpx.AsyncClient) -> None:
    await twice(http, "/v1/threads", {"title": "a"}, {"title": "b"}, (201, 200))
    assert len((await http.get("/v1/threads")).json()["items"]) == 2


@pytest.mark.parametrize("verb", ["runs", "runs/wait?wait=0"])
async def test_runs(http: httpx.AsyncClient, verb: str) -> None:
    codes = (202, 200) if verb == "runs" else (202, 202)
    await twice(http, f"/v1/threads/t/{verb}", {"message": "a"}, {"message": "b"}, codes)
    assert len((await http.get("/v1/threads/t/runs")).json()["items"]) == 2


async def test_a_prompt_is_one_run_however_it_is_asked_for(http: httpx.AsyncClient, worker: Worker) -> None:
    """Accepted and then streamed or waited for under the same key: one run, one answer."""
    key = {"Idempotency-Key": "once"}
    accepted = await http.post("/v1/threads/t/runs", json={"message": "say hi"}, headers=key)
    waited = await http.post("/v1/threads/t/runs/wait", json={"message": "say hi"}, headers=key)
    streamed = await http.post("/v1/threads/t/runs/stream", json={"message": "say hi"}, headers=key)
    assert accepted.json()["run_id"] == waited.json()["run"]["run_id"] and waited.json()["text"] == "hi"
    assert accepted.headers["location"] == waited.headers["location"] == streamed.headers["location"]


async def test_messages(http: httpx.AsyncClient) -> None:
    """A repetition is the message that is stored; another one under the key is refused."""
    path = "/v1/threads/t/messages"
    made = await twice(http, path, {"message": "a"}, {"message": "b"}, (201, 201), refused=400)
    stored = (await http.get(path)).json()["items"]
    assert len(stored) == 2 and stored[0]["id"] == made["id"]


async def test_forks_and_probes(http: httpx.AsyncClient, worker: Worker) -> None:
    await http.post("/v1/threads/t/runs/wait", json={"message": "say hi", "run_id": "r"})
    made = await twice(http, "/v1/threads/t/fork", {"message": "say x"}, {"title": "b"}, (201, 200))
    assert made["run"]["thread_id"] == made["thread"]["thread_id"]
    job, another = {"wait": True, "metadata": {"a": 1}}, {"wait": True, "metadata": {"a": 2}}
    await twice(http, "/v1/threads/t/fork", job, another, (202, 200), key="job")
    probe, other = {"message": "say x"}, {"message": "say y"}
    assert (await twice(http, "/v1/threads/t/fork_once", probe, other, (200, 200)))["text"] == "x"
    await twice(http, "/v1/threads/t/fork_many", {"messages": ["say x"]}, {"messages": ["say y"]}, (200, 200))
    await twice(http, "/v1/threads/t/regenerate", {}, {"message": "say z", "message_id": None}, (202, 200), refused=400)


async def test_answers(http: httpx.AsyncClient, client: Client) -> None:
    asked = await ask(client, "t", "r")
    key = {"Idempotency-Key": "once"}
    first = await http.post("/v1/threads/t/respond", json={"answer": "blue"}, headers=key)
    again = await http.post("/v1/threads/t/respond", json={"answer": "blue"}, headers=key)
    assert first.status_code == again.status_code == 200 and first.json() == again.json()
    other = await http.post("/v1/threads/t/respond", json={"answer": "red"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "hitl_already_answered")
    assert first.json()["request_id"] == asked


async def test_an_id_in_the_body_wins(http: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "once"}
    made = await http.post("/v1/threads/t/runs", json={"message": "a", "run_id": "mine"}, headers=key)
    assert made.json()["run_id"] == "mine"
    assert (await http.post("/v1/threads/t/runs", json={"message": "b"}, headers=key)).json()["run_id"] != "mine"


async def test_a_key_is_its_tenants_and_its_threads(caller: Caller) -> None:
    """Nobody meets another's run by a guessed key."""
    key = {"Idempotency-Key": "once"}
    mine, theirs = await caller("a"), await caller("b")
    found = {
        (await http.post(f"/v1/threads/{thread}/runs", json={"message": "x"}, headers=key)).json()["run_id"]
        for http in (mine, theirs)
        for thread in ("t", "u")
    }
    assert len(found) == 4


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "caf\xe9"])
async def test_a_key_is_bounded(http: httpx.AsyncClient, key: str) -> None:
    """A2."""
    refused = await http.post("/v1/threads", json={}, headers={"Idempotency-Key": key.encode("latin-1")})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert refused.json()["errors"][0]["location"] == "header"
