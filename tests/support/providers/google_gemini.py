"""Gemini generateContent and streamGenerateContent: the checks of requests, and the form of answers."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Required

from google.genai import types
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from tests.support.providers.conversation import (
    Ask,
    Body,
    Call,
    Conversation,
    Event,
    Refused,
    Reply,
    Result,
    Turn,
    fresh,
    refuse,
    sign,
    signed,
    tokens,
    weigh,
)
from tests.support.providers.schemas import Malformed, Schema

DATA = (
    *("text", "functionCall", "functionResponse", "inlineData", "fileData"),
    *("executableCode", "codeExecutionResult", "toolCall", "toolResponse"),
)
DUMMIES = (b"skip_thought_signature_validator", b"context_engineering_is_the_way_to_go")
"""The placeholders that Google's documentation gives for a missing signature."""
STATES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class GenerateContentRequest(TypedDict, total=False):
    """The body of a request, of the SDK's own models."""

    contents: Required[list[types.Content]]
    systemInstruction: types.Content
    tools: list[types.Tool]
    toolConfig: types.ToolConfig
    generationConfig: types.GenerationConfig
    safetySettings: list[types.SafetySetting]
    cachedContent: str
    serviceTier: str


SCHEMA = Schema(GenerateContentRequest)


def authorised(headers: dict[str, str], key: str) -> None:
    given = headers.get("x-goog-api-key")
    if given is None:
        raise Refused("Method doesn't allow unregistered callers (callers without established identity).", 403)
    if given != key:
        raise Refused("API key not valid. Please pass a valid API key.", 401)


def error(refused: Refused) -> Body:
    status = STATES.get(refused.status, "INTERNAL")
    return {"error": {"code": refused.status, "message": refused.message, "status": status}}


def place(path: tuple[str | int, ...]) -> str:
    """Return a path in Google's notation: ``contents[0].parts[1]``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def read(raw: bytes, body: Body, model: str = "", stream: bool = False) -> Ask:
    """Return the request if Gemini would accept it. Raises Refused."""
    try:
        SCHEMA.check(raw, body)
    except Malformed as fault:
        if fault.kind == "extra_forbidden":
            name, where = fault.path[-1], place(fault.path[:-1])
            raise Refused(f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field.") from None
        raise Refused(f"Invalid value at '{place(fault.path)}': {fault.message}") from None
    contents = body["contents"]
    check_contents(contents)
    check_order(contents)
    check_signatures(model, contents)
    tools = tuple(f["name"] for tool in body.get("tools", ()) for f in tool.get("functionDeclarations", ()))
    system = "".join(part.get("text", "") for part in (body.get("systemInstruction") or {}).get("parts", ()))
    turns = tuple(read_turn(content) for content in contents)
    return Ask(Conversation("gemini", model, turns, system, tools), stream, body)


def check_contents(contents: list[Body]) -> None:
    """Check each content by itself."""
    if not contents:
        refuse("* GenerateContentRequest.contents: contents is not specified\n")
    for n, content in enumerate(contents):
        where = f"GenerateContentRequest.contents[{n}].parts"
        if content.get("role") not in ("user", "model"):
            refuse("Please use a valid role: user, model.")
        if not content.get("parts"):
            refuse(f"* {where}: contents.parts must not be empty.\n")
        for m, part in enumerate(content["parts"]):
            if sum(name in part for name in DATA) != 1 or (part.get("text") == "" and "thoughtSignature" not in part):
                refuse(f"* {where}[{m}].data: required oneof field 'data' must have one initialized field\n")
            if "functionCall" in part and content["role"] != "model":
                refuse("Please ensure that function call turns have the role model.")
            if "functionResponse" in part and content["role"] != "user":
                refuse("Please ensure that function response turns have the role user.")


def named(content: Body, kind: str) -> list[str]:
    return [part[kind].get("name", "") for part in content["parts"] if kind in part]


def check_order(contents: list[Body]) -> None:
    """Check the order: user and model take turns, and the user is first and last. The content after calls has one response per
    call. After the responses, the user may add text before the model's turn."""
    if contents[0]["role"] != "user":
        refuse("Please ensure that multiturn requests start with a user turn.")
    if contents[-1]["role"] != "user":
        refuse("Please ensure that multiturn requests ends with a user role or a function response.")
    for before, content in zip([{"role": None, "parts": []}, *contents], contents, strict=False):
        calls, responses = named(before, "functionCall"), named(content, "functionResponse")
        if before["role"] == content["role"] and not named(before, "functionResponse"):
            refuse("Please ensure that multiturn requests alternate between user and model.")
        if responses and not calls:
            refuse("Please ensure that function response turn comes immediately after a function call turn.")
        if len(calls) != len(responses):
            refuse(
                "Please ensure that the number of function response parts is equal to the number of function call parts of the "
                "function call turn."
            )
        if Counter(calls) != Counter(responses):
            refuse(f"Function responses {sorted(responses)} do not answer the function calls {sorted(calls)}.")
        check_ids(before, content)


def check_ids(before: Body, content: Body) -> None:
    """Check that a call and its response have the same id if both have one."""
    calls = [part["functionCall"].get("id") for part in before["parts"] if "functionCall" in part]
    responses = [part["functionResponse"].get("id") for part in content["parts"] if "functionResponse" in part]
    if all(calls) and all(responses) and Counter(calls) != Counter(responses):
        refuse("Please ensure that the ids of function responses are the ids of the function calls that they answer.")


def check_signatures(model: str, contents: list[Body]) -> None:
    """Check that the server made every signature, and that the first call of each step of the current turn has one."""
    for content in contents:
        for part in content["parts"]:
            given = part.get("thoughtSignature")
            if given is not None and not genuine(part, base64.b64decode(given)):
                refuse("Thought signature is not valid.")
    start = max(n for n, content in enumerate(contents) if content["role"] == "user" and not named(content, "functionResponse"))
    generation = re.match(r"gemini-(\d+)", model)
    if generation is None or int(generation[1]) < 3:
        return
    for n, content in enumerate(contents[start:], start):
        first = next((part for part in content["parts"] if "functionCall" in part), None)
        if first is not None and "thoughtSignature" not in first:
            refuse(
                "Function call is missing a thought_signature in functionCall parts. This is required for tools to work "
                f"correctly. Additional data, function call `default_api:{first['functionCall']['name']}` , position {n + 1}."
            )


def genuine(part: Body, signature: bytes) -> bool:
    return signature in DUMMIES or signed(substance(part), signature.decode(errors="replace"))


def substance(part: Body) -> str:
    """Return the part of a content for which its signature is made."""
    call = part.get("functionCall")
    return json.dumps([call["name"], call.get("args") or {}], sort_keys=True) if call else part.get("text", "")


def read_turn(content: Body) -> Turn:
    parts = content["parts"]
    texts = tuple(part["text"] for part in parts if "text" in part and not part.get("thought"))
    if content["role"] == "model":
        thinking = "".join(part["text"] for part in parts if "text" in part and part.get("thought"))
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return Turn("model", texts, thinking, tuple(Call(c["name"], c.get("args") or {}, c.get("id", "")) for c in calls))
    responses = [part["functionResponse"] for part in parts if "functionResponse" in part]
    return Turn("user", texts, results=tuple(Result(r["name"], answer(r["response"]), r.get("id", "")) for r in responses))


def answer(response: Body) -> str:
    """Return the result of a function. SDKs wrap a result that is no object."""
    for name in ("return_value", "result", "output", "error", "call_error"):
        if set(response) == {name}:
            return str(response[name])
    return json.dumps(response)


def parts(ask: Ask, reply: Reply) -> Iterator[Body]:
    """Return the parts of a reply, with its text as it is streamed. The first function call is signed."""
    if reply.thinking and ((ask.body.get("generationConfig") or {}).get("thinkingConfig") or {}).get("includeThoughts"):
        yield from ({"text": token, "thought": True} for token in tokens(reply.thinking))
    yield from ({"text": token} for token in tokens(reply.text))
    for n, call in enumerate(reply.calls):
        part: Body = {"functionCall": {"id": call.id or fresh("", 4), "name": call.name, "args": call.arguments}}
        if not n:
            part["thoughtSignature"] = base64.b64encode(sign(substance(part)).encode()).decode()
        yield part


def response(ask: Ask, name: str, content: list[Body], reply: Reply, *, last: bool) -> Body:
    candidate: Body = {"content": {"role": "model", "parts": content}, "index": 0}
    if last:
        candidate["finishReason"] = "STOP"
    asked, said = weigh(ask.body), reply.tokens
    usage = {"promptTokenCount": asked, "candidatesTokenCount": said, "totalTokenCount": asked + said}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": ask.conversation.model, "responseId": name}


def whole(ask: Ask, reply: Reply) -> Body:
    """Return the answer in one piece."""
    merged: list[Body] = []
    for part in parts(ask, reply):
        if merged and "text" in part and "text" in merged[-1] and part.get("thought") == merged[-1].get("thought"):
            merged[-1]["text"] += part["text"]
        else:
            merged.append(part)
    return response(ask, fresh(""), merged, reply, last=True)


def events(ask: Ask, reply: Reply) -> Iterator[Event]:
    """Yield the answer as a stream of responses."""
    said, name = list(parts(ask, reply)), fresh("")
    for n, part in enumerate(said):
        data = response(ask, name, [part], reply, last=n == len(said) - 1)
        yield Event(f"data: {json.dumps(data)}\r\n\r\n".encode(), token=True)
