"""``POST /v1/runs``: many prompts in one request, and one outcome per prompt (R1 to R4, A2)."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client, Prompt, RunHandle, RunyardError, errors
from runyard.client import accepting
from runyard.support import turns
from runyard.worker.worker import Worker
from runyard_api.http.batch_bodies import BatchedPrompt
from runyard_api.http.routes import batches
from runyard_backends.http import runs as http_runs
from runyard_backends.http.transport import HttpReply, Transport
from runyard_backends.memory.runs import MemoryRunStore
from tests.http.conftest import BOUND, Caller, transport


async def send(http: httpx.AsyncClient, *items: Any, status: int = 200, **headers: str) -> Any:
    reply = await http.post("/v1/runs", json={"items": items}, headers=headers)
    assert reply.status_code == status, reply.text
    return reply.json()


def prompt(thread_id: str = "t", message: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"thread_id": thread_id, "message": message, **fields}


def words(reply: Any) -> list[str]:
    """Return each outcome as a word: the code of the problem, ``new`` or ``known``."""
    return [one["problem"]["code"] if one["problem"] else "new" if one["created"] else "known" for one in reply["items"]]


async def test_each_prompt_has_its_outcome_in_order(http: httpx.AsyncClient, client: Client) -> None:
    sent = [prompt("a", run_id="r"), prompt("b", run_id="r"), prompt("a", "other", run_id="r"), prompt("a", run_id="r")]
    reply = await send(http, *sent)
    assert words(reply) == ["new", "new", "run_conflict", "known"]
    refused = reply["items"][2]
    assert refused["run"] is None and refused["problem"]["status"] == 409 and refused["problem"]["details"]["differs"]
    assert reply["items"][0]["run"]["thread_id"] == "a" and (await client.run("b", "r")).input is not None


async def test_a_thousand_prompts_and_no_more(http: httpx.AsyncClient, client: Client) -> None:
    """A thousand equal prompts are one run."""
    assert words(await send(http, *(prompt(run_id="r") for _ in range(1000)))) == ["new"] + ["known"] * 999
    reply = await send(http, *(prompt("u") for _ in range(1001)), status=422)
    assert reply["code"] == "invalid_request" and reply["errors"][0]["pointer"] == "/items"
    await send(http, status=422)
    with pytest.raises(errors.ThreadNotFoundError):
        await client.thread("u")


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        (prompt(thread_id=7), "/items/1/thread_id"),
        (prompt(message=7), "/items/1/message"),
        (prompt(tenant="other"), "/items/1/tenant"),
        (prompt(parallel="yes"), "/items/1/parallel"),
        (prompt(on_disconnect="cancel"), "/items/1/on_disconnect"),
        ({"message": "x"}, "/items/1/thread_id"),
        ("text", "/items/1"),
        (None, "/items/1"),
        ([], "/items/1"),
    ],
)
async def test_a_prompt_beyond_the_schema_is_refused_alone(http: httpx.AsyncClient, wrong: Any, pointer: str) -> None:
    reply = await send(http, prompt(), wrong, prompt())
    assert words(reply) == ["new", "invalid_request", "new"]
    refused = reply["items"][1]["problem"]
    assert [error["pointer"] for error in refused["errors"]] == [pointer] and refused["status"] == 422
    assert refused["detail"].startswith(pointer) and "instance of" not in refused["detail"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"items": {}}, "/items"), ({"items": [prompt()], "x": 1}, "/x"), ({}, "/items"), ([prompt()], "")],
)
async def test_a_body_that_is_no_list_of_prompts_is_refused_as_a_whole(
    http: httpx.AsyncClient, client: Client, body: Any, pointer: str
) -> None:
    reply = await http.post("/v1/runs", json=body)
    assert reply.status_code == 422 and [error["pointer"] for error in reply.json()["errors"]] == [pointer]
    assert (await client.runs()).items == []


async def test_the_event_loop_runs_between_the_prompts(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: while they are checked, and while their outcomes are written."""
    monkeypatch.setattr(turns, "SLICE_SECONDS", 0.0)
    seen: list[int] = []
    turned = 0

    async def count() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    def noted(function: Any) -> Any:
        def call(*args: Any) -> Any:
            seen.append(turned)
            return function(*args)

        return call

    monkeypatch.setattr(BatchedPrompt, "model_validate", noted(BatchedPrompt.model_validate))
    monkeypatch.setattr(batches, "_outcome", noted(batches._outcome))
    counting = asyncio.create_task(count())
    assert words(await send(http, *(prompt(f"t{n}") for n in range(20)))) == ["new"] * 20
    counting.cancel()
    assert len(seen) == len(set(seen)) == 40


async def test_a_detail_that_json_lacks_is_sent_as_text(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(store: MemoryRunStore, requests: Any, series: Any) -> list[RunyardError]:
        return [RunyardError("no", at=object) for _ in requests]

    monkeypatch.setattr(MemoryRunStore, "accept_many", refuse)
    assert (await send(http, prompt()))["items"][0]["problem"]["details"] == {"at": str(object)}


async def test_allowed_networks_are_read_once(http: httpx.AsyncClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: a body with a thousand webhooks would otherwise read the settings a thousand times."""
    app.state.service.webhook_networks = [ip_network("10.1.0.0/16")]
    monkeypatch.setenv("RUNYARD_SLOTS", "none")
    urls = ("http://10.1.0.1/", "http://10.2.0.1/", "https://example.com/")
    assert words(await send(http, *(prompt(webhook=url) for url in urls))) == ["new", "invalid_request", "new"]


async def test_large_values_are_left_out_of_the_reply(http: httpx.AsyncClient) -> None:
    """A reply with a thousand runs stays small, even if each run has a large result."""
    large = prompt(message="x" * 2**20, run_id="r")
    for outcome in ("new", "known"):
        reply = await http.post("/v1/runs", json={"items": [large] * 3})
        assert words(reply.json()) == [outcome, "known", "known"]
        assert [one["run"]["omitted"] for one in reply.json()["items"]] == [["input"]] * 3 and len(reply.content) < 10_000


async def test_repetition_under_a_key_is_the_same_runs(http: httpx.AsyncClient) -> None:
    """The place in the batch tells equal prompts apart."""
    sent = [prompt(), prompt(), prompt("u"), prompt(run_id="mine")]
    key = {"Idempotency-Key": "once"}
    first, again = await send(http, *sent, **key), await send(http, *sent, **key)
    assert words(first) == ["new"] * 4 and words(again) == ["known"] * 4
    ids = [one["run"]["run_id"] for one in first["items"]]
    assert ids == [one["run"]["run_id"] for one in again["items"]] and len(set(ids)) == 4 and ids[3] == "mine"
    assert words(await send(http, *sent)) == ["new"] * 3 + ["known"]


async def test_the_scope_and_the_tenant_are_those_of_the_key(caller: Caller, client: Client) -> None:
    reader = await caller(scopes=("read",))
    assert (await send(reader, prompt(), status=403))["code"] == "forbidden"
    writer = await caller(tenant="acme", scopes=("write",))
    assert words(await send(writer, prompt(run_id="r"))) == ["new"]
    assert (await client.runs()).items == []


async def test_an_unreachable_store_is_the_answer_to_the_whole_request(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(store: MemoryRunStore, requests: Any, series: Any) -> list[RunyardError]:
        return [errors.BackendUnavailableError("gone") for _ in requests]

    monkeypatch.setattr(MemoryRunStore, "accept_many", gone)
    reply = await http.post("/v1/runs", json={"items": [prompt(), prompt()]})
    assert reply.status_code == 503 and reply.headers["retry-after"]


class TestClient:
    async def test_many_prompts(self, remote: Client, worker: Worker) -> None:
        outcomes = await remote.enqueue_many([Prompt(f"t{n % 5}", "say hi", f"r{n}") for n in range(50)])
        assert all(isinstance(one, RunHandle) and one.created for one in outcomes)
        assert isinstance(outcomes[-1], RunHandle) and (await outcomes[-1].result(BOUND)).text == "hi"

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The number of prompts of each request."""
        found: list[int] = []
        ask = Transport.ask

        async def counted(transport: Transport, *path: str, **how: Any) -> HttpReply:
            found.append(len(how["body"]["items"]))
            return await ask(transport, *path, **how)

        monkeypatch.setattr(Transport, "ask", counted)
        return found

    async def test_the_server_refuses_one_of_many(self, remote: Client, asked: list[int]) -> None:
        """The problem is at the place of the prompt. No other request is needed."""
        many = [Prompt("t", "x", f"r{n}") for n in range(100)]
        many[70] = Prompt("t", "x", "bad", webhook="http://10.0.0.1/hook")
        outcomes = await remote.enqueue_many(many)
        assert [n for n, one in enumerate(outcomes) if isinstance(one, RunyardError)] == [70]
        assert isinstance(outcomes[70], errors.InvalidInputError) and asked == [100]

    async def test_halves_of_a_body_with_too_many_values_are_sent(self, remote: Client, asked: list[int]) -> None:
        many = [Prompt("t", "x", f"r{n}", metadata={"list": [0] * 2000}) for n in range(40)]
        outcomes = await remote.enqueue_many(many)
        assert all(isinstance(one, RunHandle) for one in outcomes) and asked == [40, 20, 20]

    async def test_later_prompts_do_not_overtake_prompts_of_a_lost_request(
        self, remote: Client, client: Client, asked: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R3: After a request without a reply, the later prompts are not sent, also those of the next thousand."""
        monkeypatch.setattr(http_runs, "MAX_BATCH_BYTES", 1000)
        monkeypatch.setattr(accepting, "MAX_PROMPTS_PER_CALL", 40)
        answer = Transport._answer

        async def lost(transport: Transport, request: httpx.Request) -> HttpReply:
            if len(asked) == 2:
                raise errors.BackendUnavailableError("gone")
            return await answer(transport, request)

        monkeypatch.setattr(Transport, "_answer", lost)
        monkeypatch.setattr(Transport, "_patiently", lambda transport, call, repeat: call())
        outcomes = await remote.enqueue_many([Prompt("t", "x", f"r{n}") for n in range(100)])
        stored = [run.run_id for run in (await client.runs()).items]
        assert len(asked) == 2 and stored == [f"r{n}" for n in reversed(range(asked[0]))]
        assert all(isinstance(one, RunHandle) for one in outcomes[: asked[0]])
        assert {type(one) for one in outcomes[asked[0] :]} == {errors.BackendUnavailableError}

    async def test_an_error_of_the_caller_is_raised(self, app: FastAPI, client: Client, asked: list[int]) -> None:
        """A key without the scope, or a server without the route. Nothing more is sent."""
        _, key = await client.create_key("reader", scopes=("read",))
        async with Client.connect("http://api", api_key=key, transport=transport(app)) as reader:
            with pytest.raises(errors.ForbiddenError):
                await reader.enqueue_many([Prompt("t", "x" * 2**20, f"r{n}") for n in range(9)])
        assert len(asked) == 1

    async def test_large_prompts_are_sent_apart(self, remote: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request has at most MAX_BATCH_BYTES. A prompt beyond the limit of the server is refused alone."""
        monkeypatch.setattr(http_runs, "MAX_BATCH_BYTES", 10_000)
        sizes = [10, 4000, 4000, 4000, 20_000, 11 * 2**20, 10]
        outcomes = await remote.enqueue_many([Prompt("t", "x" * size, f"r{n}") for n, size in enumerate(sizes)])
        assert [n for n, one in enumerate(outcomes) if isinstance(one, RunyardError)] == [5]
        assert isinstance(outcomes[5], RunyardError) and outcomes[5].http_status == 413

    async def test_what_needs_a_direct_connection_is_refused(self, remote: Client) -> None:
        [outcome] = await Client(remote.backend, app_version="1").enqueue_many([Prompt("t", "x")])
        assert isinstance(outcome, errors.CapabilityMissingError)
