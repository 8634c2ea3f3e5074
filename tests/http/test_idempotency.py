"""``Idempotency-Key`` stands for the id that an operation has for repetitions (R2, F4, H3, B1)."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from runyard import Client
from runyard.worker.worker import Worker
from runyard_api.http.idempotency import UNUSED
from tests.http.conftest import Caller, ask, said_of_the_api
from tests.support.receiver import new_secret


def posts() -> dict[str, dict[str, Any]]:
    """Every POST of the document: its path → its operation."""
    paths = said_of_the_api().document["paths"]
    return {path: methods["post"] for path, methods in paths.items() if "post" in methods}


BY_STATE = {
    *("cancel_run", "redrive_run", "abort_pending", "create_stream_token"),
    *("pause_queue", "resume_queue", "drain_worker", "create_key", "redeliver_webhook"),
}
"""What has no id for repetitions: the state decides, a token is no change, and a key whose text was lost is revoked."""


def test_every_post_takes_a_key_and_says_what_it_does() -> None:
    said = {
        operation["operationId"]: parameter["description"]
        for operation in posts().values()
        for parameter in operation["parameters"]
        if parameter["name"].lower() == "idempotency-key"
    }
    assert said.keys() == {operation["operationId"] for operation in posts().values()}
    assert {name for name, words in said.items() if words == UNUSED} == BY_STATE


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


async def test_creating_a_thread_again_under_a_key_creates_one(http: httpx.AsyncClient) -> None:
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


async def test_storing_a_message_again_under_a_key_stores_one(http: httpx.AsyncClient) -> None:
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
    await twice(http, "/v1/threads/t/regenerate", {}, {"message": "say z", "message_id": None}, (202, 200))


async def test_the_first_prompt_of_a_fork_is_a_step_of_its_own(http: httpx.AsyncClient, worker: Worker) -> None:
    """What the guide says of it: added later it is started, once; left out later it is not stopped."""
    await http.post("/v1/threads/t/runs/wait", json={"message": "say hi", "run_id": "r"})
    key, said = {"Idempotency-Key": "once"}, {"message": "say x"}
    answers = [await http.post("/v1/threads/t/fork", json=body, headers=key) for body in ({}, said, said, {})]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
    runs = [(answer.json()["run"] or {}).get("run_id") for answer in answers]
    assert runs == [None, runs[1], runs[1], None] and runs[1] is not None
    assert (await http.post("/v1/threads/t/fork", json={"message": "say y"}, headers=key)).status_code == 409


async def test_repetition_keeps_fields_that_are_not_compared(http: httpx.AsyncClient) -> None:
    """What the first request said of it holds."""
    key, path = {"Idempotency-Key": "once"}, "/v1/threads/t/runs"
    first = await http.post(path, json={"message": "a", "priority": "high", "metadata": {"n": 1}}, headers=key)
    other = {"message": "a", "timeout": 5, "delay": 9, "max_attempts": 2, "queue": "q", "metadata": {"n": 2}}
    again = await http.post(path, json=other, headers=key)
    assert (again.status_code, again.json()) == (200, first.json())
    for compared in ({"agent": "other"}, {"parallel": True}, {"expires_in": 9}, {"multitask_strategy": "reject"}):
        assert (await http.post(path, json={"message": "a", **compared}, headers=key)).status_code == 409, compared


async def test_answer_repeated_under_a_key_is_one_answer(http: httpx.AsyncClient, client: Client) -> None:
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


async def test_a_key_is_its_operations(http: httpx.AsyncClient, worker: Worker) -> None:
    """What it stands for in one operation is unknown to another on the same thread."""
    key = {"Idempotency-Key": "once"}
    run = (await http.post("/v1/threads/t/runs/wait", json={"message": "say hi"}, headers=key)).json()["run"]["run_id"]
    message = (await http.post("/v1/threads/t/messages", json={"message": "x"}, headers=key)).json()["id"]
    fork = (await http.post("/v1/threads/t/fork", json={"after_run_id": run}, headers=key)).json()["thread"]["thread_id"]
    again = (await http.post("/v1/threads/t/regenerate", json={}, headers=key)).json()["run_id"]
    assert len({run, message, fork, again}) == 4


@pytest.mark.parametrize("key", ["", "x" * 256, "two words", "caf\xe9"])
async def test_a_key_is_bounded(http: httpx.AsyncClient, key: str) -> None:
    """A2."""
    for path in posts():
        given = {"Idempotency-Key": key.encode("latin-1")}
        refused = await http.post(re.sub(r"\{\w+\}", "x", path), json={}, headers=given)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), path
        assert "header" in [error["location"] for error in refused.json()["errors"]], path


async def test_verb_repeated_under_a_key_changes_nothing_more(http: httpx.AsyncClient, client: Client) -> None:
    """Repeated under a key, it changes nothing more."""
    key = {"Idempotency-Key": "once"}
    run = "/v1/threads/t/runs/r"
    await http.post("/v1/threads/t/runs", json={"message": "say hi", "run_id": "r"})
    first, again = [await http.post(f"{run}/cancel", headers=key) for _ in range(2)]
    assert (first.status_code, first.json()) == (200, again.json())
    await ask(client, "u", "asks")
    codes = [(await http.post("/v1/threads/u/abort", json={"run_id": "asks"}, headers=key)).status_code for _ in range(2)]
    assert codes == [200, 204]
    tokens = [await http.post("/v1/stream_tokens", json={"thread_id": "t"}, headers=key) for _ in range(2)]
    assert [reply.status_code for reply in tokens] == [201, 201]


async def test_a_rotation_happens_once(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret that a lost answer told is told again; another key, or none, makes the next."""
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", new_secret())
    path, key = "/v1/webhook_secret/rotate", {"Idempotency-Key": "once"}
    first, again = [await http.post(path, json={"overlap": 60}, headers=key) for _ in range(2)]
    assert (first.status_code, first.json()["version"], first.json()) == (200, 2, again.json())
    assert (await http.post(path, headers={"Idempotency-Key": "twice"})).json()["version"] == 3
    assert [(await http.post(path)).json()["version"] for _ in range(2)] == [4, 5]
    mine = {"rotation_id": "mine"}
    assert [(await http.post(path, json=mine, headers=key)).json()["version"] for _ in range(2)] == [6, 6]


@pytest.mark.parametrize("second", ["one", "two"])
async def test_a_request_has_one_key(http: httpx.AsyncClient, second: str) -> None:
    """A2: of two, neither is taken."""
    keys = [("Idempotency-Key", "one"), ("Idempotency-Key", second)]
    for path in posts():
        refused = await http.post(re.sub(r"\{\w+\}", "x", path), json={}, headers=keys)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), path
        assert [error["location"] for error in refused.json()["errors"]] == ["header"], path
    assert (await http.get("/v1/threads")).json()["items"] == []


async def test_sending_a_signal_again_under_a_key_sends_one(http: httpx.AsyncClient) -> None:
    await http.post("/v1/threads", json={"thread_id": "t"})
    sent = await twice(http, "/v1/threads/t/signals", {"name": "paid", "value": 7}, {"name": "paid", "value": 8}, (200, 200))
    assert (sent["name"], sent["value"], sent["sent_by"]) == ("paid", 7, "test")
