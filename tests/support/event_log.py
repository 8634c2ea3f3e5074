"""A client of threads as event logs (``runyard api --compat events``), whose agent is the one of ``agents/remembering.py``."""

from __future__ import annotations

from typing import Any, Final

import httpx

from tests.support.fleet import until

DEPTH: Final = 20
"""Forks of forks."""


async def create(http: httpx.AsyncClient, **fields: Any) -> str:
    """The id of a new thread."""
    reply = await http.post("/commands/create-thread", json=fields)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["thread_id"])


async def send(http: httpx.AsyncClient, thread: str, content: str) -> str:
    """The answer to a message: the text of the head, once the message's run has ended."""
    reply = await http.post("/commands/send-message", json={"thread_id": thread, "content": content})
    assert reply.status_code == 202, reply.text
    run = reply.json()

    async def ended() -> bool:
        return bool((await http.get(f"{reply.headers['location']}/wait?wait=5")).json()["run"]["status"] == "completed")

    await until(ended)
    head = (await http.get(f"/threads/{thread}/head")).json()
    assert head["message"]["run_id"] == run["run_id"] and head["message"]["role"] == "assistant"
    return str(head["message"]["content"])


async def fork(http: httpx.AsyncClient, source: str, number: int, **fields: Any) -> str:
    """The id of a new branch."""
    body = {"source_thread_id": source, "event_number": number, **fields}
    reply = await http.post("/commands/fork-thread", json=body)
    assert reply.status_code == 201, reply.text
    made = reply.json()
    assert (made["parent_thread_id"], made["from_event_number"]) == (source, number)
    return str(made["thread_id"])


async def items(http: httpx.AsyncClient, path: str, **params: Any) -> list[Any]:
    """The entries of all pages of a list."""
    found: list[Any] = []
    while True:
        reply = await http.get(path, params=params)
        assert reply.status_code == 200, reply.text
        found += reply.json()["items"]
        if reply.json()["next"] is None:
            return found
        params["cursor"] = reply.json()["next"]


async def history(http: httpx.AsyncClient, thread: str, **params: Any) -> list[tuple[int, str]]:
    return [(each["event_number"], each["content"]) for each in await items(http, f"/threads/{thread}/messages", **params)]


async def nested(http: httpx.AsyncClient, depth: int) -> list[str]:
    """A thread and ``depth + 1`` branches, each forked from the one before it, in the middle of what that one was told.

    Each branch shows the history of its parent up to its event. The last one knows the name that the first thread was told.
    """
    thread = await create(http)
    await send(http, thread, "I am devansh")
    path, expected = [thread], await history(http, thread)
    for level in range(1, depth + 1):
        branch = await fork(http, path[-1], expected[-1][0])
        assert await send(http, branch, f"level {level}") == f"You said {level + 1} things."
        await send(http, branch, "I am nobody")  # after the event of the next fork
        found = await history(http, branch)
        assert found[: len(expected)] == expected and len(found) == len(expected) + 4
        expected = found[:-2]
        path.append(branch)
    last = await fork(http, path[-1], expected[-1][0])
    assert await send(http, last, "what is my name") == "You are devansh."
    return [*path, last]
