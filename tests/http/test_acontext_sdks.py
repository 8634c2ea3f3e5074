"""Acontext's own clients, unmodified from their registries, against a running server (M1 to M4, B1 to B3)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import acontext
import pytest
from acontext.errors import APIError
from acontext.messages import MessagePart, build_acontext_message
from acontext.types.session import Message
from fastapi import FastAPI

from runyard import Client
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET
from tests.support.api_server import serving
from tests.support.node import BOUND, NODE, installed, said

SDK: Final = Path(__file__).parent / "acontext_sdk"

OPENAI: Final[list[Any]] = [
    {"role": "system", "content": "be kind"},
    {
        "role": "user",
        "name": "alice",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "a dog"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "x_unknown": [1]},
]
ANTHROPIC: Final[list[Any]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "see", "cache_control": {"type": "ephemeral"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}, "title": "a"},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "e"},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": 1}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True}],
    },
]
GEMINI: Final[list[Any]] = [
    {"role": "user", "parts": [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
    {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {"at": 1}}, "thoughtSignature": "aGk="}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "a cat"}}}]},
]
ACONTEXT: Final = [
    build_acontext_message(role="user", parts=["see", MessagePart(type="data", meta={"n": 1})], meta={"page": 1}),
    build_acontext_message(
        role="assistant",
        parts=[
            MessagePart(type="thinking", text="hm"),
            MessagePart(type="image", meta={"type": "url", "url": "https://example.org/a.png"}),
            MessagePart(type="tool-call", meta={"id": "c1", "name": "look", "arguments": '{"at": 1}'}),
        ],
    ),
    build_acontext_message(role="user", parts=[MessagePart(type="tool-result", text="a cat", meta={"tool_call_id": "c1"})]),
]


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(_env_file=None, requests_per_second=1e6, burst=10**6, token_secret=SECRET, compat=["acontext"])


@pytest.fixture
async def served(app: FastAPI, client: Client) -> AsyncIterator[tuple[str, str]]:
    """The URL of an API, and a key."""
    _, key = await client.create_key("sdk", scopes=("read", "write"))
    async with serving(app) as url:
        yield url, key


async def using(served: tuple[str, str], use: Callable[[acontext.AcontextClient], None]) -> None:
    """Call ``use`` with a client, in a thread: the client blocks."""
    url, key = served

    def go() -> None:
        with acontext.AcontextClient(api_key=key, base_url=f"{url}/api/v1") as sdk:
            use(sdk)

    await asyncio.to_thread(go)


async def test_python_sessions(served: tuple[str, str]) -> None:
    def use(sdk: acontext.AcontextClient) -> None:
        assert sdk.ping() == "pong"
        chosen = "0198c0de-0000-7000-8000-000000000001"
        made = sdk.sessions.create(user="alice", configs={"agent": "a"}, disable_task_tracking=True, use_uuid=chosen)
        assert (made.id, made.user_id, made.configs, made.disable_task_tracking) == (chosen, "alice", {"agent": "a"}, True)
        plain = sdk.sessions.create()
        assert (plain.user_id, plain.configs, plain.disable_task_tracking) == (None, None, False)
        one = sdk.sessions.list(limit=1, time_desc=False)
        two = sdk.sessions.list(limit=1, cursor=one.next_cursor)
        assert [each.id for each in one.items + two.items] == [chosen, plain.id] and one.has_more
        assert [each.id for each in sdk.sessions.list(user="alice").items] == [chosen]
        assert [each.id for each in sdk.sessions.list(filter_by_configs={"agent": "a"}).items] == [chosen]
        sdk.sessions.update_configs(chosen, configs={"a": 1, "b": 2})
        assert sdk.sessions.patch_configs(chosen, configs={"a": None, "c": 3}) == {"b": 2, "c": 3}
        assert sdk.sessions.get_configs(chosen).configs == {"b": 2, "c": 3}
        with pytest.raises(APIError) as taken:
            sdk.sessions.create(use_uuid=chosen)
        assert (taken.value.status_code, taken.value.error) == (409, "thread_already_exists")
        sdk.sessions.delete(chosen)
        with pytest.raises(APIError) as gone:
            sdk.sessions.get_configs(chosen)
        assert (gone.value.status_code, gone.value.code, gone.value.error) == (404, 404, "thread_not_found")

    await using(served, use)


@pytest.mark.parametrize(("format", "blobs"), [("openai", OPENAI), ("anthropic", ANTHROPIC), ("gemini", GEMINI)])
async def test_m2_python_reads_back_what_it_stored(served: tuple[str, str], format: Any, blobs: list[Any]) -> None:
    """And each other format reads it, too (M1)."""

    def use(sdk: acontext.AcontextClient) -> None:
        id = sdk.sessions.create().id
        stored = [sdk.sessions.store_message(id, blob=blob, format=format, meta={"n": n}) for n, blob in enumerate(blobs)]
        assert [each.parent_id for each in stored] == [None, *(each.id for each in stored[:-1])]
        page = sdk.sessions.get_messages(id, format=format)
        assert (page.items, page.ids, page.has_more) == (blobs, [each.id for each in stored], False)
        assert page.metas == [{"n": n} for n in range(len(blobs))] and page.this_time_tokens > 0
        for other in ("openai", "anthropic", "gemini", "acontext"):
            assert len(sdk.sessions.get_messages(id, format=other).ids) >= len(blobs) - 1
        shown = [Message.model_validate(item) for item in sdk.sessions.get_messages(id, format="acontext").items]
        assert shown == stored

    await using(served, use)


async def test_m2_python_reads_back_acontext_messages(served: tuple[str, str]) -> None:
    """With the nulls that the client sends for fields that a part does not have."""

    def use(sdk: acontext.AcontextClient) -> None:
        id = sdk.sessions.create().id
        stored = [sdk.sessions.store_message(id, blob=blob, format="acontext") for blob in ACONTEXT]
        for message, blob in zip(stored, ACONTEXT, strict=True):
            assert (message.role, message.meta) == (blob.role, blob.meta or {})
            assert [(p.type, p.text, p.meta) for p in message.parts] == [(p.type, p.text, p.meta) for p in blob.parts]
        items = sdk.sessions.get_messages(id, format="acontext").items
        assert [Message.model_validate(item) for item in items] == stored
        [_, call, result] = sdk.sessions.get_messages(id).items
        assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "c1"

    await using(served, use)


async def test_python_uploads_a_file(served: tuple[str, str]) -> None:
    def use(sdk: acontext.AcontextClient) -> None:
        id = sdk.sessions.create().id
        blob = build_acontext_message(role="user", parts=["see", MessagePart(type="image", file_field="picture")])
        stored = sdk.sessions.store_message(
            id, blob=blob, format="acontext", file=("a.png", b"hi", "image/png"), file_field="picture", meta={"n": 1}
        )
        assert (stored.parts[1].filename, stored.meta) == ("a.png", {"n": 1})
        [item] = sdk.sessions.get_messages(id).items
        assert item["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="

    await using(served, use)


async def test_b3_python_branches(served: tuple[str, str]) -> None:
    """Raw requests for the parameters that the client lacks."""

    def use(sdk: acontext.AcontextClient) -> None:
        id = sdk.sessions.create().id
        path = f"/session/{id}"
        ids = []
        for n in range(1, 9):
            body = {"format": "openai", "blob": {"role": "user" if n % 2 else "assistant", "content": f"M{n}"}}
            if n == 7:
                body["parent_id"] = ids[1]
            ids.append(sdk.request("POST", f"{path}/messages", json_data=body)["id"])
        leaves = sdk.request("GET", f"{path}/branches")["leaves"]
        assert [(leaf["message_id"], leaf["depth"]) for leaf in leaves] == [(ids[5], 6), (ids[7], 4)]
        assert sdk.sessions.get_messages(id).ids == [ids[0], ids[1], ids[6], ids[7]]
        assert sdk.request("GET", f"{path}/messages", params={"leaf_id": ids[5]})["ids"] == ids[:6]
        newest = sdk.sessions.get_messages(id, limit=3, time_desc=True)
        oldest = sdk.sessions.get_messages(id, limit=3, time_desc=True, cursor=newest.next_cursor)
        assert newest.ids + oldest.ids == [ids[7], ids[6], ids[1], ids[0]] and not oldest.has_more
        for parent, status in (("M1", 400), ("0198c0de-0000-7000-8000-000000000001", 404)):
            with pytest.raises(APIError) as refused:
                sdk.request("POST", f"{path}/messages", json_data={**body, "parent_id": parent})
            assert (refused.value.status_code, refused.value.code) == (status, status)

    await using(served, use)


async def test_python_without_a_valid_key(served: tuple[str, str]) -> None:
    def use(sdk: acontext.AcontextClient) -> None:
        with pytest.raises(APIError) as refused:
            sdk.sessions.list()
        assert (refused.value.status_code, refused.value.error) == (401, "unauthenticated")

    await using((served[0], "sk-ac-nobody"), use)


async def test_the_asynchronous_python_client(served: tuple[str, str]) -> None:
    url, key = served
    async with acontext.AcontextAsyncClient(api_key=key, base_url=f"{url}/api/v1") as sdk:
        session = await sdk.sessions.create()
        stored = await sdk.sessions.store_message(session.id, blob={"role": "user", "content": "hello"})
        assert (await sdk.sessions.get_messages(session.id)).ids == [stored.id]


@pytest.mark.timeout(2 * BOUND)
@pytest.mark.xdist_group("generated clients")
async def test_the_typescript_client(served: tuple[str, str], client: Client, tmp_path: Path) -> None:
    shutil.copy(SDK / "use_sdk.ts", tmp_path)
    shutil.copy(SDK / "package.json", tmp_path)
    (tmp_path / "node_modules").symlink_to(await installed(SDK))
    printed = await said(NODE, "--preserve-symlinks", "use_sdk.ts", *served, cwd=tmp_path)
    [message] = (await client.messages(printed.split()[-1])).items
    assert (message.text, message.metadata) == ("look", {"page": 1})
