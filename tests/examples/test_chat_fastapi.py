"""examples/chat_fastapi: over HTTP, as its page does it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.examples.programs import BOUND, example


@pytest.fixture
async def web(tmp_path: Path, postgres_url: str, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with example("chat_fastapi/web.py", tmp_path, postgres_url, redis_url) as program:
        await program.said("Uvicorn running")
        async with httpx.AsyncClient(base_url=program.url, timeout=BOUND) as web:
            yield web


async def events(web: httpx.AsyncClient, chat: str, run: str, after: str | None = None) -> list[tuple[str, str, Any]]:
    """Id, type and data of a run's events, to the end of its stream."""
    told: list[tuple[str, str, Any]] = []
    headers = {"Last-Event-ID": after} if after else {}
    async with asyncio.timeout(BOUND), web.stream("GET", f"/chats/{chat}/runs/{run}/events", headers=headers) as stream:
        fields: dict[str, str] = {}
        async for line in stream.aiter_lines():
            name, _, value = line.partition(": ")
            if line and name:
                fields[name] = value
            elif fields.get("event"):
                told.append((fields["id"], fields["event"], json.loads(fields["data"])["data"]))
                fields = {}
    return told


async def test_chat_example_streams_resumes_repeats_and_branches(web: httpx.AsyncClient) -> None:
    """R1, R2, E1, E2, F1, F7: prompt, stream, come back in the middle, repeat, branch."""
    assert "<title>Stories" in (await web.get("/")).text
    prompt = {"text": "Tell me about a lighthouse", "run_id": "r1"}
    assert (await web.post("/chats/c1/prompts", json=prompt)).status_code == 202

    told = await events(web, "c1", "r1")
    typed = "".join(data.get("text", "") for _, type_, data in told if type_ == "message.delta")
    assert told[-1][1] == "run.completed" and typed.startswith("Once a lighthouse")
    middle = len(told) // 2
    assert await events(web, "c1", "r1", after=told[middle][0]) == told[middle + 1 :]

    assert (await web.post("/chats/c1/prompts", json=prompt)).status_code == 202
    other = await web.post("/chats/c1/prompts", json={**prompt, "text": "something else"})
    assert (other.status_code, other.json()["code"]) == (409, "run_conflict")
    chat = (await web.get("/chats/c1")).json()
    assert [message["text"] for message in chat["messages"]] == [prompt["text"], typed] and chat["running"] is None

    made = await web.post("/chats/c1/runs/r1/branch", json={"text": "Roll the dice", "run_id": "r2"})
    branch = made.json()["chat"]
    assert (await events(web, branch, "r2"))[-1][1] == "run.completed"
    messages = (await web.get(f"/chats/{branch}")).json()["messages"]
    assert [message["text"] for message in messages[:3]] == [prompt["text"], typed, "Roll the dice"]
    assert messages[3]["tools"] == ["roll"] and messages[-1]["text"].startswith("It is a ")
    assert (await web.get("/chats/c1")).json() == chat
    assert [(each["id"], each["parent"]) for each in (await web.get("/chats")).json()] == [("c1", None), (branch, "c1")]

    refused = await web.post("/chats/c1/runs/never/branch", json={"text": "?"})
    assert (refused.status_code, refused.json()["code"]) == (404, "cut_run_not_found")
    assert (await web.post("/chats/c1/prompts", json={"text": ""})).status_code == 422
