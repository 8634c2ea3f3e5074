"""The servers refuse what real providers refuse, in their words, and the providers' own SDKs work against them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic.types.beta import BetaRawMessageStreamEvent
from google import genai
from google.genai import errors as google_errors
from google.genai import types
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from tests.support.providers.conversation import Body, Call, Conversation, Reply
from tests.support.providers.histories import (
    ACCEPTED,
    HI,
    REFUSED,
    THINKING,
    Request,
    blocks,
    calls,
    chat,
    claude,
    fco,
    gemini,
    responses,
    result,
    says,
    tool,
)
from tests.support.providers.server import KEY, Fault, Providers

ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
SCRIPT = Reply("Let me add.", "Numbers, then.", (Call("add", {"a": 1, "b": 2}), Call("boom")))


def model(conversation: Conversation) -> Reply:
    """Calls two tools, then says what they answered."""
    if conversation.steps == 0 and conversation.tools:
        return SCRIPT
    return Reply("Got " + ", ".join(f"{result.name}={result.content}" for result in conversation.results), "Done, then.")


@pytest.fixture(scope="module")
def servers() -> Iterator[Providers]:
    with Providers(model).serving() as running:
        yield running


@pytest.fixture
def providers(servers: Providers) -> Iterator[Providers]:
    servers.requests.clear()
    yield servers
    servers.speed = servers.trouble = None


def headers(key: str = KEY) -> dict[str, str]:
    """Those of all protocols."""
    return {"authorization": f"Bearer {key}", "x-goog-api-key": key, "anthropic-version": "2023-06-01"}


def send(providers: Providers, request: Request, key: str = KEY, timeout: float = 30) -> httpx.Response:
    path, body = request
    return httpx.post(providers.url + path, json=body, headers=headers(key), timeout=timeout)


def message(answer: httpx.Response, path: str) -> str:
    """The error's text, from an error of the right format."""
    body = answer.json()
    kind = body["error"].get("type") or body["error"]["status"]
    assert kind == ("INVALID_ARGUMENT" if path.startswith("/gemini") else "invalid_request_error")
    if path.startswith("/anthropic"):
        assert body["type"] == "error"
    return str(body["error"]["message"])


@pytest.mark.parametrize("name", REFUSED)
def test_history_that_a_provider_refuses_is_refused(providers: Providers, name: str) -> None:
    request, reason = REFUSED[name]
    answer = send(providers, request)
    assert answer.status_code == 400
    assert reason in message(answer, request[0])
    assert reason in providers.refused[0]


@pytest.mark.parametrize("name", ACCEPTED)
def test_history_that_a_provider_takes_is_taken(providers: Providers, name: str) -> None:
    answer = send(providers, ACCEPTED[name])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("request_", [chat(says()), responses(says()), claude(says()), gemini(HI)], ids=lambda it: it[0][1:7])
def test_request_with_a_wrong_key_is_refused(providers: Providers, request_: Request) -> None:
    answer = send(providers, request_, key="another")
    assert answer.status_code == 401
    assert not providers.requests[0].body


TOOLS: dict[str, list[Body]] = {
    "chat": [{"type": "function", "function": {"name": name, "parameters": ADD}} for name in ("add", "boom")],
    "responses": [{"type": "function", "name": name, "parameters": ADD, "strict": False} for name in ("add", "boom")],
    "claude": [{"name": name, "input_schema": ADD} for name in ("add", "boom")],
    "gemini": [{"functionDeclarations": [{"name": name, "parametersJsonSchema": ADD} for name in ("add", "boom")]}],
}


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        (chat(says(), stream=True, stream_options={"include_usage": True}, tools=TOOLS["chat"]), ChatCompletionChunk),
        (responses(says(), stream=True, tools=TOOLS["responses"]), ResponseStreamEvent),
        (claude(says(), stream=True, thinking=THINKING, max_tokens=2000, tools=TOOLS["claude"]), BetaRawMessageStreamEvent),
        (gemini(HI, verb="streamGenerateContent", tools=TOOLS["gemini"]), types.GenerateContentResponse),
    ],
    ids=["chat", "responses", "claude", "gemini"],
)
def test_a_stream_is_what_the_sdk_declares(providers: Providers, request_: Request, shape: Any) -> None:
    """Each event of a stream is of the SDK's own type, without the leniency that SDKs have."""
    adapter = TypeAdapter(shape)
    lines = [line.removeprefix("data: ") for line in send(providers, request_).text.splitlines() if line.startswith("data: ")]
    told = [json.loads(line) for line in lines if line != "[DONE]"]
    assert len(told) >= 5
    for event in told:
        if event.get("type") != "ping":  # which Anthropic's SDK passes over
            adapter.validate_json(json.dumps(event), strict=True)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_sdk_of_openai_on_chat(providers: Providers, streamed: bool) -> None:
    client = openai.AsyncOpenAI(base_url=providers.environment["OPENAI_BASE_URL"], api_key=KEY, max_retries=0)
    asked: list[Any] = [says()]
    for expected in (SCRIPT.text, "Got add=3, boom=3"):
        arguments: Any = {"model": "gpt-4.1", "messages": asked, "tools": TOOLS["chat"]}
        if streamed:
            async with client.chat.completions.stream(**arguments, stream_options={"include_usage": True}) as stream:
                answer = await stream.get_final_completion()
        else:
            answer = await client.chat.completions.create(**arguments)
        said = answer.choices[0].message
        assert said.content == expected and answer.usage is not None
        asked.append(said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        for made in asked[-1].get("tool_calls", ()):
            made["function"].pop("parsed_arguments", None)
            made.pop("index", None)
            asked.append(tool(made["id"]))
    with pytest.raises(openai.BadRequestError, match="'c1' not found"):
        await client.chat.completions.create(model="gpt-4.1", messages=[says(), calls("c2"), tool("c1")])  # type: ignore[list-item]
    await client.close()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_sdk_of_openai_on_responses(providers: Providers, streamed: bool) -> None:
    client = openai.AsyncOpenAI(base_url=providers.environment["OPENAI_BASE_URL"], api_key=KEY, max_retries=0)
    asked: list[Any] = [says()]
    for expected in (SCRIPT.text, "Got add=3, boom=3"):
        arguments: Any = {"model": "gpt-5.1", "input": asked, "tools": TOOLS["responses"], "store": False}
        arguments["include"] = ["reasoning.encrypted_content"]
        if streamed:
            async with client.responses.stream(**arguments) as stream:
                answer: Any = await stream.get_final_response()
        else:
            answer = await client.responses.create(**arguments)
        assert answer.output_text == expected
        items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
        for item in items:
            for part in item.get("content", ()):
                part.pop("parsed", None)
        assert [item["type"] for item in items][:2] == ["reasoning", "message"]
        asked += items + [fco(item["call_id"]) for item in items if item["type"] == "function_call"]
    await client.close()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_sdk_of_anthropic(providers: Providers, streamed: bool) -> None:
    client = anthropic.AsyncAnthropic(base_url=providers.environment["ANTHROPIC_BASE_URL"], api_key=KEY, max_retries=0)
    asked: list[Any] = [says()]
    for expected in (SCRIPT.text, "Got add=3, boom=3"):
        arguments: Any = {"model": "claude-haiku-4-5", "max_tokens": 2000, "messages": asked, "thinking": THINKING}
        arguments["tools"] = TOOLS["claude"]
        if streamed:
            async with client.messages.stream(**arguments) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.create(**arguments)
        kinds = [block.type for block in answer.content]
        assert kinds == ["thinking", "text", *(["tool_use"] * 2 if answer.stop_reason == "tool_use" else [])]
        assert answer.content[1].text == expected
        asked.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]})
        asked.append(blocks(*(result(block.id) for block in answer.content if block.type == "tool_use")))
    with pytest.raises(anthropic.BadRequestError, match="non-empty"):
        await client.messages.create(model="claude-haiku-4-5", max_tokens=9, messages=[{"role": "user", "content": ""}])
    await client.close()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_the_sdk_of_google(providers: Providers, streamed: bool) -> None:
    address = types.HttpOptions(base_url=providers.environment["GOOGLE_GEMINI_BASE_URL"])
    client = genai.Client(api_key=KEY, http_options=address).aio
    asked: list[Any] = [types.Content.model_validate(HI)]
    config = types.GenerateContentConfig.model_validate({"tools": TOOLS["gemini"]})
    for expected in (SCRIPT.text, "Got add=3, boom=3"):
        arguments: Any = {"model": "gemini-3-pro-preview", "contents": asked, "config": config}
        if streamed:
            chunks = [chunk async for chunk in await client.models.generate_content_stream(**arguments)]
        else:
            chunks = [await client.models.generate_content(**arguments)]
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]  # type: ignore[index,union-attr]
        assert "".join(part.text or "" for part in parts) == expected
        asked.append(types.Content(role="model", parts=parts))
        made = [part.function_call for part in parts if part.function_call]
        given = [types.FunctionResponse(id=call.id, name=call.name, response={"result": 3}) for call in made]
        asked.append(types.Content(role="user", parts=[types.Part(function_response=answer) for answer in given]))
    with pytest.raises(google_errors.ClientError, match="alternate"):
        await client.models.generate_content(model="gemini-3-pro-preview", contents=[asked[0], asked[0]])
    await client.aclose()


FAULTY = {"chat": chat(says()), "responses": responses(says()), "claude": claude(says()), "gemini": gemini(HI)}


@pytest.mark.parametrize("protocol", FAULTY)
def test_fault_is_raised_and_then_over(providers: Providers, protocol: str) -> None:
    """Errors in the protocol's format, broken connections, silence; then all is well again."""
    request = FAULTY[protocol]
    providers.fail(Fault(status=429, retry_after=0.5), Fault(status=500), Fault(cut=1), Fault(hang=1))
    limited = send(providers, request)
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "0.5")
    assert limited.json()["error"]
    assert send(providers, request).status_code == 500
    with pytest.raises(httpx.RemoteProtocolError):
        send(providers, request)
    with pytest.raises(httpx.ReadTimeout):
        send(providers, request, timeout=0.3)
    assert send(providers, request).status_code == 200
    assert [received.status for received in providers.requests] == [429, 500, 200, 200, 200]


def test_tokens_come_at_the_servers_speed(providers: Providers) -> None:
    """Two words at ten a second; they come one by one."""
    providers.speed = 10
    path, body = chat(says(), stream=True)
    began = time.monotonic()
    with httpx.stream("POST", providers.url + path, json=body, headers=headers()) as answer:
        read = list(answer.iter_text())
    assert time.monotonic() - began >= 0.09
    assert len(read) > 1
