"""The sessions and messages of Acontext, request by request: the tree (B1 to B3), the envelope, and what callers may try."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.errors import InvalidInputError
from runyard.models import Thread
from runyard_api.http.document import operations
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET, Caller, ask
from tests.http.shared_routes import asgi_app, first

API: Final = "/api/v1"
NOBODY: Final = "0198c0de-0000-7000-8000-000000000001"
ENVELOPE: Final = {"code", "data", "msg", "error"}


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(
        _env_file=None,
        requests_per_second=1e6,
        burst=10**6,
        token_secret=SECRET,
        failure_burst=10**6,
        compat=["acontext"],
    )


async def session(http: httpx.AsyncClient, **fields: Any) -> str:
    """The id of a new session."""
    reply = await http.post(f"{API}/session", json=fields)
    assert reply.status_code == 201, reply.text
    made = reply.json()
    assert (made["code"], made["msg"]) == (0, "")
    return str(made["data"]["id"])


async def store(http: httpx.AsyncClient, id: str, role: str, text: str, parent: str | None = None) -> str:
    """The id of a stored message."""
    body = {"format": "openai", "blob": {"role": role, "content": text}, **({"parent_id": parent} if parent else {})}
    reply = await http.post(f"{API}/session/{id}/messages", json=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["data"]["id"])


async def data(http: httpx.AsyncClient, path: str, **params: Any) -> Any:
    reply = await http.get(f"{API}{path}", params=params)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert set(answer) == {"code", "data", "msg"} and answer["code"] == 0
    return answer["data"]


def refused(reply: httpx.Response, status: int, error: str) -> str:
    """The words of an error in the envelope."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    said = reply.json()
    assert set(said) == ENVELOPE and (said["code"], said["data"], said["error"]) == (status, None, error)
    assert said["msg"]
    return str(said["msg"])


@pytest.fixture
async def tree(http: httpx.AsyncClient) -> tuple[str, list[str]]:
    """The session of Acontext's own example, and the ids of its eight messages."""
    id = await session(http)
    ids = [await store(http, id, role, f"M{n}") for n, role in enumerate(["user", "assistant"] * 3, 1)]
    ids.append(await store(http, id, "user", "M7", parent=ids[1]))
    ids.append(await store(http, id, "assistant", "M8"))
    return id, ids


async def test_b3_the_example_has_two_leaves(http: httpx.AsyncClient, tree: tuple[str, list[str]]) -> None:
    id, ids = tree
    found = await data(http, f"/session/{id}/branches")
    leaves = [(leaf["message_id"], leaf["depth"]) for leaf in found["leaves"]]
    assert leaves == [(ids[5], 6), (ids[7], 4)]
    assert all(leaf["created_at"].endswith("Z") for leaf in found["leaves"])
    assert (found["next_cursor"], found["has_more"]) == (None, False)


async def test_b2_a_leaf_chooses_the_path(http: httpx.AsyncClient, tree: tuple[str, list[str]]) -> None:
    id, ids = tree
    paths = {None: [0, 1, 6, 7], ids[5]: [0, 1, 2, 3, 4, 5], ids[7]: [0, 1, 6, 7], ids[2]: [0, 1, 2]}
    for leaf, path in paths.items():
        found = await data(http, f"/session/{id}/messages", **({"leaf_id": leaf} if leaf else {}))
        assert found["ids"] == [ids[n] for n in path]
        assert [item["content"] for item in found["items"]] == [f"M{n + 1}" for n in path]
    whole = await data(http, f"/session/{id}/messages", format="acontext", leaf_id=ids[7])
    assert [item["parent_id"] for item in whole["items"]] == [None, ids[0], ids[1], ids[6]]
    assert {item["session_id"] for item in whole["items"]} == {id}


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("path", [[0, 1, 2, 3, 4, 5], [0, 1, 6, 7]], ids=["a leaf", "the newest leaf"])
async def test_b2_pages_drop_and_repeat_nothing(
    http: httpx.AsyncClient, tree: tuple[str, list[str]], newest_first: bool, path: list[int]
) -> None:
    """Also while messages arrive on the newest branch, where they follow, and open others, to which no cursor leads."""
    id, ids = tree
    read: list[str] = []
    params: dict[str, Any] = {"limit": 1, "time_desc": str(newest_first).lower()}
    if 5 in path:
        params["leaf_id"] = ids[5]
    while True:
        page = await data(http, f"/session/{id}/messages", **params)
        read += page["ids"]
        await store(http, id, "user", "later")
        await store(http, id, "user", "elsewhere", parent=ids[0])
        if not page["has_more"]:
            break
        params["cursor"] = page["next_cursor"]
    assert read[: len(path)] == [ids[n] for n in (reversed(path) if newest_first else path)]
    assert len(read) == len(set(read)) <= len(path) + 1


async def test_b3_pages_of_leaves(http: httpx.AsyncClient, tree: tuple[str, list[str]]) -> None:
    id, ids = tree
    one = await data(http, f"/session/{id}/branches", limit=1)
    two = await data(http, f"/session/{id}/branches", limit=1, cursor=one["next_cursor"])
    assert [leaf["message_id"] for page in (one, two) for leaf in page["leaves"]] == [ids[5], ids[7]]
    assert (one["has_more"], two["has_more"]) == (True, False)


async def test_b1_concurrent_messages_make_one_chain(http: httpx.AsyncClient) -> None:
    """Without a parent each follows the last one; none becomes a sibling by accident."""
    id = await session(http)
    await asyncio.gather(*(store(http, id, "user", str(n)) for n in range(50)))
    [leaf] = (await data(http, f"/session/{id}/branches"))["leaves"]
    assert leaf["depth"] == 50


async def test_b1_parents_that_are_none(http: httpx.AsyncClient, tree: tuple[str, list[str]]) -> None:
    id, _ = tree
    other = await session(http)
    elsewhere = await store(http, other, "user", "x")
    blob = {"role": "user", "content": "x"}

    async def told(parent: Any) -> httpx.Response:
        return await http.post(f"{API}/session/{id}/messages", json={"blob": blob, "parent_id": parent})

    for parent in ("M1", "", "../x", 5, ["x"], "\0"):
        assert (await told(parent)).status_code == 400, parent
    refused(await told("M1"), 400, "invalid_input")
    refused(await told(5), 400, "invalid_request")
    for parent in (NOBODY, elsewhere):
        refused(await told(parent), 404, "message_not_found")
    refused(await http.get(f"{API}/session/{id}/messages", params={"leaf_id": "x"}), 400, "invalid_input")
    refused(await http.get(f"{API}/session/{id}/messages", params={"leaf_id": elsewhere}), 404, "message_not_found")
    assert len((await data(http, f"/session/{id}/branches"))["leaves"]) == 2


async def test_b1_a_session_with_a_live_run_is_busy(http: httpx.AsyncClient, client: Client) -> None:
    id = await session(http)
    await ask(client, id, "r1")
    reply = await http.post(f"{API}/session/{id}/messages", json={"blob": {"role": "user", "content": "x"}})
    refused(reply, 409, "thread_busy")
    refused(await http.delete(f"{API}/session/{id}"), 409, "thread_busy")


async def test_a_message_makes_no_session(http: httpx.AsyncClient) -> None:
    reply = await http.post(f"{API}/session/{NOBODY}/messages", json={"blob": {"role": "user", "content": "x"}})
    refused(reply, 404, "thread_not_found")
    refused(await http.get(f"{API}/session/{NOBODY}/messages"), 404, "thread_not_found")


async def test_a_native_thread_is_a_session_under_any_id(http: httpx.AsyncClient, client: Client) -> None:
    for id, path in (("a/b", "a%2Fb"), ("50%", "50%25"), ("ä b", "%C3%A4%20b"), ("..x", "..x")):
        await client.store_message(id, "hello")
        found = await data(http, f"/session/{path}/messages")
        assert found["items"] == [{"role": "user", "content": "hello"}]
        assert (await data(http, f"/session/{path}/configs"))["id"] == id


async def test_hostile_ids(http: httpx.AsyncClient) -> None:
    """A2: bytes that are no text, steps in paths, controls, ids that are too long."""
    for path, status in (
        ("%FF", 400),
        ("%", 400),
        ("%00", 400),
        ("x" * 256, 400),
        ("%0A", 400),
        ("%2E%2E", 400),
        ("x/y", 404),
        ("%2Fetc%2Fpasswd", 404),
    ):
        for suffix in ("/messages", "/branches", "/configs"):
            reply = await http.get(f"{API}/session/{path}{suffix}")
            assert (reply.status_code, set(reply.json())) == (status, ENVELOPE), path
    refused(await http.get(f"{API}/session/t/messages?cursor=%FF"), 400, "bad_request")


async def test_hostile_pages(http: httpx.AsyncClient, tree: tuple[str, list[str]]) -> None:
    """A2: limits out of bounds, and cursors that were made up or are of another list."""
    id, _ = tree
    forward = (await data(http, f"/session/{id}/messages", limit=1))["next_cursor"]
    leaves = (await data(http, f"/session/{id}/branches", limit=1))["next_cursor"]
    for path in (f"/session/{id}/messages", f"/session/{id}/branches", "/session"):
        for limit in ("0", "-1", "1001", "9" * 30, "1.5", "x", ""):
            refused(await http.get(f"{API}{path}", params={"limit": limit}), 400, "invalid_request")
        for cursor in ("x", "AAAA", "\u2028", base64.b64encode(b'{"a":1}').decode()):
            refused(await http.get(f"{API}{path}", params={"cursor": cursor}), 400, "invalid_cursor")
        refused(await http.get(f"{API}{path}", params={"cursor": "x" * 5000}), 400, "invalid_request")
    refused(await http.get(f"{API}/session/{id}/messages", params={"cursor": leaves}), 400, "invalid_cursor")
    refused(await http.get(f"{API}/session/{id}/branches", params={"cursor": forward}), 400, "invalid_cursor")
    refused(await http.get(f"{API}/session/{id}/messages", params={"format": "xml"}), 400, "invalid_request")
    assert "edit_strategies" in refused(
        await http.get(f"{API}/session/{id}/messages", params={"edit_strategies": "[]"}), 400, "invalid_request"
    )


async def test_every_error_has_the_envelope(app: FastAPI, http: httpx.AsyncClient, caller: Caller) -> None:
    """A5: those of the middleware, too. The clients read nothing else."""
    id = await session(http)
    refused(await (await caller(key=None)).get(f"{API}/session"), 401, "unauthenticated")
    reader = await caller(scopes=("read",))
    refused(await reader.post(f"{API}/session", json={}), 403, "forbidden")
    refused(await http.put(f"{API}/session/{id}/messages", json={}), 405, "method_not_allowed")
    refused(await http.get(f"{API}/disk"), 404, "route_not_found")
    plain = await http.post(f"{API}/session/{id}/messages", content=b"{}", headers={"Content-Type": "text/plain"})
    refused(plain, 415, "unsupported_media_type")
    form = await http.put(f"{API}/session/{id}/configs", files={"payload": (None, "{}")})
    refused(form, 415, "unsupported_media_type")
    large = await http.post(f"{API}/session", content=b"x" * (11 * 2**20), headers={"Content-Type": "application/json"})
    refused(large, 413, "request_too_large")
    refused(await http.get(f"{API}/session?x={'x' * 40_000}"), 431, "headers_too_large")
    for body in (
        b"{",
        b"[]",
        b'{"configs": 1}',
        b'{"x": 1}',
        b'{"use_uuid": "x"}',
        b"[" * 500,
        b"\xff",
        b'{"user": "\\ud800"}',
    ):
        reply = await http.post(f"{API}/session", content=body, headers={"Content-Type": "application/json"})
        assert (reply.status_code, set(reply.json())) == (400, ENVELOPE), body
    app.state.service.settings.max_page = 10
    assert (await http.get(f"{API}/session/{id}/messages", params={"limit": 11})).status_code == 200
    assert (await http.get("/v1/threads/none")).headers["content-type"] == "application/problem+json"


async def test_m6_a_faulty_message_is_refused_with_its_place(http: httpx.AsyncClient) -> None:
    id = await session(http)
    for format, blob, place in (
        ("openai", {"role": "user", "content": [{"type": "text"}]}, "/content/0/text"),
        ("anthropic", {"role": "user", "content": 5}, "/content"),
        ("acontext", {"role": "user", "parts": [{"type": "text", "text": 5}]}, "/parts/0/text"),
        ("acontext", {"role": "user", "parts": [{"type": "file", "file_field": "f"}]}, "/parts/0/file_field"),
        ("acontext", [{"role": "user", "parts": []}], ""),
        ("acontext", {"role": "user", "parts": 5}, "/parts"),
    ):
        reply = await http.post(f"{API}/session/{id}/messages", json={"format": format, "blob": blob})
        assert place in refused(reply, 400, "invalid_blob")
    assert (await data(http, f"/session/{id}/messages"))["ids"] == []


async def test_metadata_is_beside_every_message(http: httpx.AsyncClient) -> None:
    """Also with an original: the message in its own format is the same JSON."""
    id = await session(http)
    blobs: dict[str, Any] = {
        "openai": {"role": "user", "content": "x", "name": "alice"},
        "anthropic": {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        "gemini": {"role": "user", "parts": [{"text": "x", "thought_signature": "AA=="}]},
        "acontext": {"role": "user", "parts": [{"type": "text", "text": "x", "odd": 1}], "meta": {"own": 1}},
    }
    for format, blob in blobs.items():
        body = {"format": format, "blob": blob, "meta": {"source": "web"}}
        stored = (await http.post(f"{API}/session/{id}/messages", json=body)).json()["data"]
        meta = {"source": "web", **({"own": 1} if format == "acontext" else {})}
        assert stored["meta"] == meta
        page = await data(http, f"/session/{id}/messages", format=format, limit=1, time_desc="true")
        assert page["metas"] == [meta] and page["losses"] == []
        kept = {name: page["items"][0][name] for name in blob}
        assert kept == (blob if format != "acontext" else {**blob, "meta": meta})
    across = await data(http, f"/session/{id}/messages", format="gemini")
    assert "cache_control" in json.dumps(across["losses"]) and "/metadata" not in json.dumps(across["losses"])


def form(payload: Any, **files: tuple[str, bytes, str]) -> dict[str, Any]:
    return {"files": [("payload", (None, json.dumps(payload))), *files.items()]}


async def test_files_become_data_of_their_parts(http: httpx.AsyncClient) -> None:
    """Content that would be out of bounds as JSON is none."""
    id = await session(http)
    content = b"1," * 200_000 + b"9" * 1000 + bytes(range(256))
    parts = [{"type": "text", "text": "see"}, {"type": "file", "file_field": "f", "meta": {"own": 1}}]
    payload = {"format": "acontext", "blob": {"role": "user", "parts": parts}, "meta": {"n": 1}}
    reply = await http.post(f"{API}/session/{id}/messages", **form(payload, f=("ä.csv", content, "text/csv")))
    assert reply.status_code == 201, reply.text
    stored = reply.json()["data"]["parts"][1]
    assert (stored["type"], stored["filename"], stored["meta"]["media_type"]) == ("file", "ä.csv", "text/csv")
    assert base64.b64decode(stored["meta"]["data"]) == content and stored["meta"]["own"] == 1
    [item] = (await data(http, f"/session/{id}/messages", format="openai"))["items"]
    assert item["content"][1]["file"]["filename"] == "ä.csv"


async def test_a_file_is_stored_once(http: httpx.AsyncClient, client: Client) -> None:
    """Without an original beside it: a file may have almost all of the bytes of a message."""
    id = await session(http)
    part = {"type": "file", "text": None, "meta": None, "file_field": "f"}
    payload = {"format": "acontext", "blob": {"role": "user", "parts": [part], "meta": None}}
    reply = await http.post(f"{API}/session/{id}/messages", **form(payload, f=("a.pdf", b"x" * (5 * 2**20), "application/pdf")))
    assert reply.status_code == 201, reply.text
    [message] = (await client.messages(id)).items
    assert message.source is None


async def test_hostile_forms(http: httpx.AsyncClient) -> None:
    """A2: nothing is stored, and no form costs more than its bytes."""
    id = await session(http)
    path = f"{API}/session/{id}/messages"
    part = {"type": "file", "file_field": "f"}
    file = ("a", b"x" * 1000, "text/plain")
    good = {"format": "acontext", "blob": {"role": "user", "parts": [part]}}
    twice = {"format": "acontext", "blob": {"role": "user", "parts": [part] * 1000}}
    deep = json.loads("[" * 150 + "]" * 150)
    wide = {**good, "meta": {"x": list(range(60_000))}}
    forms: list[dict[str, Any]] = [
        form(good),
        form(good, g=file),
        form(twice, f=file),
        form({**good, "meta": {"deep": deep}}, f=file),
        form(wide, f=file),
        form([], f=file),
        form({"format": "openai", "blob": {"role": "user", "content": "x"}}, f=file),
        {"files": [("payload", ("a", b"{}", "application/json"))]},
        {"files": [("f", file)]},
        {"files": [("payload", (None, "{")), ("f", file)]},
        {"files": [("payload", (None, json.dumps(good))), ("payload", (None, json.dumps(good))), ("f", file)]},
        {"files": [("payload", (None, json.dumps(good))), *[(f"f{n}", file) for n in range(2100)]]},
        {"files": [("payload", (None, json.dumps(good))), ("f", file), ("f", file)]},
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        {"content": b"--x\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        {"content": b"\r\n" * 10_000, "headers": {"Content-Type": b"multipart/form-data; boundary=\xff"}},
        {"content": b"", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
    ]
    for n, each in enumerate(forms):
        reply = await http.post(path, **each)
        assert (reply.status_code, set(reply.json())) == (400, ENVELOPE), (n, reply.text)
    assert (await data(http, f"/session/{id}/messages"))["ids"] == []
    long = await http.post(path, **form({**good, "meta": {"n": 10**150}}, f=file))
    assert "digits" in refused(long, 400, "invalid_request")
    large = await http.post(path, **form(good, f=("a", b"x" * (7 * 2**20), "text/plain")))
    refused(large, 413, "message_too_large")
    refused(await http.post(path, **form(good, f=("a", b"x" * (11 * 2**20), "text/plain"))), 413, "request_too_large")


async def test_sessions_are_chosen_by_user_and_configs(http: httpx.AsyncClient, client: Client) -> None:
    ids = [await session(http, user="alice", configs={"agent": "a", "n": 1, "tags": ["x", {"y": [1, 2]}]})]
    ids.append(await session(http, user="bob", configs={"agent": "b", "n": True, "pad": "x" * 9000}))
    ids.append(await session(http, disable_task_tracking=True))

    async def found(**params: Any) -> list[str]:
        return [each["id"] for each in (await data(http, "/session", **params))["items"]]

    assert await found() == ids
    assert await found(user="alice") == ids[:1]
    for wanted, n in (
        ({"agent": "a"}, [0]),
        ({"agent": "b", "n": True}, [1]),
        ({"n": 1}, [0]),
        ({"tags": ["x"]}, [0]),
        ({"tags": [{"y": [2]}]}, [0]),
        ({"tags": [{"y": [3]}]}, []),
        ({"agent": {"a": 1}}, []),
        ({}, [0, 1]),
    ):
        assert await found(filter_by_configs=json.dumps(wanted)) == [ids[i] for i in n], wanted
    for wrong in ("x", "[]", "1", "[" * 300, json.dumps({"x": list(range(60))})):
        refused(await http.get(f"{API}/session", params={"filter_by_configs": wrong}), 400, "invalid_input")
    refused(await http.get(f"{API}/session", params={"time_desc": "true"}), 400, "invalid_input")
    listed = (await data(http, "/session"))["items"]
    assert [(each["user_id"], each["disable_task_tracking"], each["omitted"]) for each in listed] == [
        ("alice", False, []),
        ("bob", False, ["configs"]),
        (None, True, []),
    ]
    one = await data(http, "/session", limit=2)
    assert one["has_more"] and [each["id"] for each in one["items"]] == ids[:2]
    assert await found(cursor=one["next_cursor"]) == ids[2:]


async def test_configs_are_replaced_and_merged(http: httpx.AsyncClient, client: Client) -> None:
    """The agent's own values in the thread's extra stay."""
    id = await session(http, configs={"a": 1, "b": {"c": 1}})
    await client.update_thread(id, extra={"agents": "own"})
    merged = await http.patch(f"{API}/session/{id}/configs", json={"configs": {"a": None, "b": {"d": 1}, "e": 2}})
    assert merged.json()["data"] == {"configs": {"b": {"d": 1}, "e": 2}}
    assert (await data(http, f"/session/{id}/configs"))["configs"] == {"b": {"d": 1}, "e": 2}
    put = await http.put(f"{API}/session/{id}/configs", json={"configs": {"z": 1}})
    assert put.json() == {"code": 0, "data": None, "msg": ""}
    assert (await client.thread(id)).extra == {"agents": "own", "configs": {"z": 1}}
    for method, path in (("PUT", NOBODY), ("PATCH", NOBODY)):
        refused(await http.request(method, f"{API}/session/{path}/configs", json={"configs": {}}), 404, "thread_not_found")


async def test_concurrent_changes_of_configs_lose_none(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change comes between the read and the write of a merge: once, and then each time."""
    id = await session(http)
    read, left = Client.thread, 1

    async def interrupted(self: Client, thread_id: str) -> Thread:
        nonlocal left
        found = await read(self, thread_id)
        if left:
            left -= 1
            await self.update_thread(thread_id, extra={"configs": {"other": left}})
        return found

    monkeypatch.setattr(Client, "thread", interrupted)
    merged = await http.patch(f"{API}/session/{id}/configs", json={"configs": {"own": 1}})
    assert merged.json()["data"] == {"configs": {"other": 0, "own": 1}}
    left = 1000
    refused(await http.patch(f"{API}/session/{id}/configs", json={"configs": {"own": 2}}), 412, "precondition_failed")
    left = 0
    assert (await data(http, f"/session/{id}/configs"))["configs"] == {"other": 990}


async def test_a_session_may_have_a_chosen_id(http: httpx.AsyncClient) -> None:
    assert await session(http, use_uuid=NOBODY.upper()) == NOBODY
    refused(await http.post(f"{API}/session", json={"use_uuid": NOBODY}), 409, "thread_already_exists")
    keyed = [await http.post(f"{API}/session", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [reply.status_code for reply in keyed] == [201, 200]
    [one, two] = [reply.json()["data"] for reply in keyed]
    assert one == two
    body = {"blob": {"role": "user", "content": "x"}}
    path = f"{API}/session/{one['id']}/messages"
    sent = [await http.post(path, json=body, headers={"Idempotency-Key": "m"}) for _ in range(2)]
    assert sent[0].json() == sent[1].json()
    gone = await http.delete(f"{API}/session/{NOBODY}")
    assert (gone.status_code, gone.json()) == (200, {"code": 0, "data": None, "msg": ""})
    refused(await http.delete(f"{API}/session/{NOBODY}"), 404, "thread_not_found")


BODIES: Final[dict[str, Any]] = {
    "acontext_create_session": {},
    "acontext_store_message": {"blob": {"role": "user", "content": "x"}},
    "acontext_replace_configs": {"configs": {}},
    "acontext_merge_configs": {"configs": {}},
}


def routes(app: FastAPI) -> Iterator[tuple[str, str, str, Any]]:
    """Operation, method, path and description of each route of the tag."""
    for method, path, described in operations(app.openapi()):
        if described["tags"] == ["acontext"]:
            yield described["operationId"], method.upper(), path, described


async def test_a1_another_tenant_finds_nothing(app: FastAPI, http: httpx.AsyncClient, caller: Caller, client: Client) -> None:
    id = await session(http, user="secret-user", configs={"secret": 1})
    await store(http, id, "user", "secret-words")
    other = await caller(tenant="other")
    tested = 0
    for name, method, path, _ in routes(app):
        reply = await other.request(method, path.format(thread_id=id), json=BODIES.get(name))
        if "{" in path:
            refused(reply, 404, "thread_not_found")
            tested += 1
        assert "secret" not in reply.text and id not in reply.text.replace(f"{id!r}", "")
    assert tested == 7
    assert (await data(http, f"/session/{id}/messages"))["items"] == [{"role": "user", "content": "secret-words"}]
    assert (await data(other, "/session"))["items"][0]["project_id"] == "other"


async def test_a1_every_route_needs_its_scope(app: FastAPI, caller: Caller, http: httpx.AsyncClient) -> None:
    id = await session(http)
    weak = {"read": await caller(scopes=("write", "respond")), "write": await caller(scopes=("read", "respond"))}
    token = await http.post("/v1/stream_tokens", json={"thread_id": id})
    stream = {"token": token.json()["token"]}
    for name, method, path, described in routes(app):
        url = path.format(thread_id=id)
        scopes = described["security"][0]["apiKey"]
        assert scopes == ["read" if method == "GET" else "write"] or name == "acontext_ping"
        if name == "acontext_ping":
            assert (await (await caller(scopes=("respond",))).get(url)).json()["msg"] == "pong"
            continue
        refused(await weak[scopes[0]].request(method, url, json=BODIES.get(name)), 403, "forbidden")
        refused(await (await caller(key=None)).request(method, url, params=stream, json=BODIES.get(name)), 403, "forbidden")


async def test_a5_rates_count_here_too(client: Client, settings: ApiSettings, caller: Caller) -> None:
    app = asgi_app(client, settings=settings.model_copy(update={"requests_per_second": 0.01, "burst": 2}))
    _, key = await client.create_key("k")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://api", headers={"Authorization": f"Bearer {key}"}
    ) as http:
        replies = [await http.get(f"{API}/session") for _ in range(3)]
    refused(replies[2], 429, "rate_limited")
    assert int(replies[2].headers["retry-after"]) >= 1


def test_the_document_has_it_only_if_it_is_mounted(app: FastAPI) -> None:
    """A5: off by default, and nothing else changes."""
    plain, mounted = first().openapi(), app.openapi()
    assert not any(path.startswith("/api/") for path in plain["paths"]) and "acontext" not in str(plain["tags"])
    assert [tag for tag in mounted["tags"] if tag not in plain["tags"]] == [
        {"name": "acontext", "description": "Sessions and messages for clients of Acontext. A session is a thread."}
    ]
    more = {path for path in mounted["paths"] if path.startswith("/api/v1/")}
    assert set(mounted["paths"]) - set(plain["paths"]) == more and len(more) == 6
    assert plain["components"]["schemas"].items() <= mounted["components"]["schemas"].items()
    for _, _, path, described in routes(app):
        assert described["description"], path
        assert {"400", "401", "403", "413", "429", "503"} <= described["responses"].keys(), path
        for status, answer in described["responses"].items():
            schema = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert (schema == "Failure") == (status not in ("200", "201")), path


async def test_without_the_setting_the_paths_are_unknown(client: Client) -> None:
    app = asgi_app(client, auth="keys", settings=ApiSettings(_env_file=None, token_secret=SECRET))
    _, key = await client.create_key("k")
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://api", headers=headers) as http:
        reply = await http.get(f"{API}/session")
    assert (reply.status_code, reply.json()["code"]) == (404, "route_not_found")


def test_unknown_names_are_refused(client: Client) -> None:
    """A5: and the error lists the names that there are."""
    for names in ("nonsense", "acontext,nonsense", "ACONTEXT", "acontext.messages"):
        settings = ApiSettings(_env_file=None, token_secret=SECRET, compat=names)
        with pytest.raises(InvalidInputError, match="choose from: acontext, events"):
            asgi_app(client, settings=settings)
    twice = ApiSettings(_env_file=None, token_secret=SECRET, compat=" acontext,acontext,")
    assert asgi_app(client, settings=twice.model_copy(update={"compat": ["acontext"]}))
    assert twice.compat == ["acontext", "acontext"]
