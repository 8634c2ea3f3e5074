"""The three examples of OpenHands' page about forks, on runyard (F1, F7, F8). The fork requests are those of its own client.

``openhands-sdk`` needs Python 3.12 and its class ``RemoteConversation`` needs the websocket of the agent server. The tests
therefore execute the client's own methods ``fork`` and ``_send_request`` from the unmodified wheel, and replace the constructor
of the conversation that ``fork`` returns. A test also compares the bytes of each request with those that the client sent to the
agent server of OpenHands.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import uuid
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client, RunContext
from runyard.app import App
from runyard.models import Message, ToolCallPart, ToolResultPart, Usage
from runyard.worker.worker import Worker
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import BOUND, SECRET
from tests.support.api_server import serving
from tests.support.node import said

REQUIREMENTS: Final = Path(__file__).parent / "openhands_sdk" / "requirements.txt"
REMOTE: Final = "openhands/sdk/conversation/impl/remote_conversation.py"
SOURCE: Final = "0198c0de-0000-7000-8000-000000000001"
OTHER: Final = "0198c0de-0000-7000-8000-000000000002"

pytestmark = pytest.mark.xdist_group("openhands sdk")

app_of_agents = App()


@app_of_agents.agent("coder")
async def coder(ctx: RunContext) -> None:
    """Run the command between backticks, and say what it printed. Or say which command was run before, from the history."""
    assert ctx.input is not None
    history = await ctx.history()
    calls = [call for message in history for call in message.tool_calls]
    _, _, after = ctx.input.text.partition("`")
    if command := after.partition("`")[0]:
        call = ToolCallPart(id=f"c{len(calls)}", name="terminal", arguments={"command": command})
        await ctx.append(Message.assistant([call], usage=Usage(requests=1, input_tokens=100, output_tokens=10, cost=0.5)))
        await ctx.append(Message.tool(ToolResultPart(call_id=call.id, content=command.removeprefix("echo "))))
        text = f"It printed {command.removeprefix('echo ')}."
    else:
        text = f"I ran {', '.join(str(call.arguments['command']) for call in calls)}." if calls else "Nothing yet."
    await ctx.append(Message.assistant(text, stop_reason="stop", usage=Usage(requests=1, output_tokens=5, cost=0.25)))


@app_of_agents.agent("other")
async def other(ctx: RunContext) -> None:
    await ctx.append(Message.assistant(f"{len(await ctx.history())} messages, by another model", stop_reason="stop"))


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(_env_file=None, requests_per_second=1e6, burst=10**6, token_secret=SECRET, compat=["openhands"])


@pytest.fixture
async def coders(client: Client) -> AsyncIterator[None]:
    """A worker that serves the agents."""
    worker = Worker(app_of_agents, client.backend, grace=1)
    running = asyncio.create_task(worker.run())
    await worker.started.wait()
    yield
    worker.stop()
    await running


async def run(client: Client, thread_id: str, text: str, **options: Any) -> str:
    """``send_message`` and ``run`` of the examples. Return the answer."""
    handle = await client.enqueue(thread_id, text, **options)
    return (await handle.result(BOUND)).raise_for_status().text


async def events(client: Client, thread_id: str) -> list[str]:
    return [message.id for message in (await client.messages(thread_id)).items]


async def test_f7_f8_the_basic_usage(client: Client, coders: None) -> None:
    """The snippets of the page: a fork with a title, an unchanged source, another agent, tags, and metrics."""
    await run(client, SOURCE, "Run `echo report`.", agent="coder")
    before = await events(client, SOURCE)
    fork = await client.fork(SOURCE, title="Follow-up exploration")
    assert await events(client, fork.thread_id) == before
    assert "echo report" in await run(client, fork.thread_id, "Now focus on the EMEA region.")
    assert await events(client, SOURCE) == before

    compared = await client.fork(SOURCE, agent="other", title="GPT-4o experiment", tags={"variant": "B"})
    assert await run(client, compared.thread_id, "Go on.") == f"{len(before) + 1} messages, by another model"

    tagged = await client.fork(
        SOURCE, title="Debug investigation", tags={"purpose": "debugging", "triggered_by": "ci-pipeline"}
    )
    assert tagged.tags == {"title": "Debug investigation", "purpose": "debugging", "triggered_by": "ci-pipeline"}

    fresh, carried = await client.fork(SOURCE), await client.fork(SOURCE, reset_usage=False)
    assert (fresh.usage.cost, carried.usage.cost) == (0, 0.75)


async def test_f1_f7_the_ready_to_run_example(client: Client, coders: None) -> None:
    """A follow-up fork, and a fork with another agent that remembers the command."""
    await run(client, SOURCE, "Run `echo hello-from-source` in the terminal.", agent="coder")
    fork = await client.fork(SOURCE, title="Follow-up fork")
    count = len(await events(client, SOURCE))
    assert fork.tags.get("title") == "Follow-up fork" and fork.thread_id != SOURCE
    assert len(await events(client, fork.thread_id)) == count
    await run(client, fork.thread_id, "Now run `echo hello-from-fork` in the terminal.")
    assert len(await events(client, SOURCE)) == count < len(await events(client, fork.thread_id))

    alt = await client.fork(SOURCE, agent="coder", title="Tool-change experiment", tags={"purpose": "a/b-test"})
    assert dict(alt.tags) == {"title": "Tool-change experiment", "purpose": "a/b-test"}
    said_then = await run(client, alt.thread_id, "What command did you run earlier? Just tell me, no tools.")
    assert said_then == "I ran echo hello-from-source."


@pytest.fixture(scope="module")
def real_fork(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``RemoteConversation.fork`` of the unmodified wheel."""
    folder = tmp_path_factory.mktemp("openhands-sdk")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12")
    asyncio.run(said(*pip, "--require-hashes", "-r", str(REQUIREMENTS), "-d", str(folder), cwd=folder))
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        module = ast.parse(packed.read(REMOTE))
    [owner] = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "RemoteConversation"]
    defined = [
        *(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "_send_request"),
        *(node for node in module.body if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "CONVERSATIONS_PATH"),
        *(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "fork"),
    ]
    assert len(defined) == 3
    names: dict[str, Any] = {"httpx": httpx, "uuid": uuid, "RemoteConversation": SimpleNamespace, "DEBUG": False}
    names |= {"logger": SimpleNamespace(error=lambda *_, **__: None), "http_error_log_content": lambda response: response.text}
    exec(compile(ast.Module(list(defined), []), REMOTE, "exec"), names)
    fork = names["fork"]
    assert callable(fork)
    return fork


class Agent:
    """The configuration that a client has of the server's agent."""

    @classmethod
    def model_validate(cls, value: Any) -> Agent:
        return cls()

    def model_dump(self, **options: Any) -> dict[str, Any]:
        return {}


def conversation(http: httpx.Client, id: str) -> Any:
    """What ``fork`` reads of its conversation. ``http``: the client that ``Workspace(host, api_key)`` makes."""
    kept = {"workspace": None, "max_iteration_per_run": 500, "delete_on_close": False}
    return SimpleNamespace(_client=http, _id=uuid.UUID(id), agent=Agent(), **kept)


def ready(url: str) -> bool:
    """The check with which the example waits for its server, without a key."""
    return httpx.get(f"{url}/health", timeout=1.0).status_code == 200


async def test_f7_f8_the_agent_server_example(
    app: FastAPI, client: Client, coders: None, real_fork: Callable[..., Any]
) -> None:
    """A server that is healthy, a fork that continues alone, a fork with tags that remembers the command."""
    _, key = await client.create_key("sdk", scopes=("read", "write"))
    async with serving(app) as url:
        assert await asyncio.to_thread(ready, url)
        await run(client, SOURCE, "Run `echo hello-from-source` in the terminal.", agent="coder")
        count = len(await events(client, SOURCE))
        with httpx.Client(base_url=url, headers={"X-Session-API-Key": key}, timeout=BOUND) as http:
            source = conversation(http, SOURCE)

            fork = await asyncio.to_thread(real_fork, source, title="Follow-up fork")
            assert str(fork.conversation_id) != SOURCE and fork.tags == {"title": "Follow-up fork"}
            assert len(await events(client, str(fork.conversation_id))) == count
            await run(client, str(fork.conversation_id), "Now run `echo hello-from-fork` in the terminal.")
            assert len(await events(client, SOURCE)) == count < len(await events(client, str(fork.conversation_id)))

            tagged = await asyncio.to_thread(real_fork, source, title="Tagged experiment", tags={"purpose": "a/b-test"})
            assert tagged.tags == {"title": "Tagged experiment", "purpose": "a/b-test"}
            question = "What command did you run earlier? Just tell me, no tools."
            assert await run(client, str(tagged.conversation_id), question) == "I ran echo hello-from-source."

            chosen = await asyncio.to_thread(real_fork, source, conversation_id=uuid.UUID(OTHER))
            assert (str(chosen.conversation_id), chosen.tags) == (OTHER, None)
            with pytest.raises(httpx.HTTPStatusError) as taken:
                await asyncio.to_thread(real_fork, source, conversation_id=uuid.UUID(OTHER))
            assert taken.value.response.status_code == 409
            first = (await events(client, SOURCE))[0]
            part = await asyncio.to_thread(real_fork, source, from_event_id=first)
            assert await events(client, str(part.conversation_id)) == [first]
            with pytest.raises(NotImplementedError):
                await asyncio.to_thread(real_fork, source, agent=Agent())


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, b'{"reset_metrics":true}'),
        ({"title": "Follow-up fork"}, b'{"reset_metrics":true,"title":"Follow-up fork"}'),
        (
            {"title": "Tagged experiment", "tags": {"purpose": "a/b-test"}},
            b'{"reset_metrics":true,"title":"Tagged experiment","tags":{"purpose":"a/b-test"}}',
        ),
        ({"reset_metrics": False}, b'{"reset_metrics":false}'),
        ({"conversation_id": uuid.UUID(OTHER)}, b'{"reset_metrics":true,"id":"0198c0de-0000-7000-8000-000000000002"}'),
    ],
)
def test_the_requests_of_the_client(real_fork: Callable[..., Any], options: dict[str, Any], body: bytes) -> None:
    sent: list[httpx.Request] = []

    def created(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(201, json={"id": OTHER, "tags": {}})

    with httpx.Client(base_url="http://server", transport=httpx.MockTransport(created)) as http:
        real_fork(conversation(http, SOURCE), **options)
    [request] = sent
    assert (request.method, request.url.path, request.content) == ("POST", f"/api/conversations/{SOURCE}/fork", body)
