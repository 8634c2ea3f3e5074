"""OpenAI chat completions: the checks of requests, and the form of answers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

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
    parsed,
    pieces,
    refuse,
    tokens,
    weigh,
)
from tests.support.providers.schemas import Malformed, Schema

WHOLE, STREAMED = Schema(CompletionCreateParamsNonStreaming), Schema(CompletionCreateParamsStreaming)
LONGEST_ID = 40


def authorised(headers: dict[str, str], key: str) -> None:
    if headers.get("authorization") != f"Bearer {key}":
        raise Refused("Incorrect API key provided.", 401, code="invalid_api_key")


def error(refused: Refused) -> Body:
    kind = {401: "invalid_request_error", 400: "invalid_request_error", 429: "rate_limit_error"}.get(
        refused.status, "server_error"
    )
    code = refused.code or ("rate_limit_exceeded" if refused.status == 429 else None)
    return {"error": {"message": refused.message, "type": kind, "param": refused.path, "code": code}}


def place(path: tuple[str | int, ...]) -> str:
    """Return a path in OpenAI's notation: ``messages[0].content``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def malformed(fault: Malformed) -> Refused:
    """Return the refusal of a body that does not have its type."""
    where = place(fault.path)
    match fault.kind:
        case "extra_forbidden":
            return Refused(f"Unknown parameter: '{where}'.", path=where, code="unknown_parameter")
        case "missing":
            return Refused(f"Missing required parameter: '{where}'.", path=where, code="missing_required_parameter")
        case "literal_error":
            return Refused(f"Invalid value: '{fault.given}'. {fault.message}.", path=where, code="invalid_value")
    return Refused(f"Invalid type for '{where}': {fault.message}.", path=where, code="invalid_type")


def read(raw: bytes, body: Body, model: str | None = None, stream: bool | None = None) -> Ask:
    """Return the request if OpenAI would accept it. Raises Refused."""
    streamed = body.get("stream") is True
    try:
        (STREAMED if streamed else WHOLE).check(raw, body)
    except Malformed as fault:
        raise malformed(fault) from None
    if not body["messages"]:
        refuse("Invalid 'messages': empty array. Expected an array with minimum length 1.", path="messages", code="empty_array")
    if "stream_options" in body and not streamed:
        refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", path="stream_options")
    for n, message in enumerate(body["messages"]):
        check_message(n, message)
    check_order(body["messages"])
    tools = tuple(tool["function"]["name"] for tool in body.get("tools", ()) if tool["type"] == "function")
    turns = tuple(read_turns(body["messages"]))
    system = "\n".join(plain(m["content"]) for m in body["messages"] if m["role"] in ("system", "developer"))
    return Ask(Conversation("openai-chat", body["model"], turns, system, tools), streamed, body)


def check_message(n: int, message: Body) -> None:
    """Check one message by itself."""
    where = f"messages[{n}]"
    if message["role"] != "assistant":
        return
    calls = message.get("tool_calls")
    if calls is not None and not calls:
        refuse(f"Invalid '{where}.tool_calls': empty array.", path=f"{where}.tool_calls", code="empty_array")
    if not calls and not message.get("content") and message.get("content") != "" and not message.get("refusal"):
        refuse("Invalid value for 'content': expected a string, got null.", path=f"messages.[{n}].content")
    ids = [call["id"] for call in calls or ()]
    for m, call in enumerate(calls or ()):
        if len(call["id"]) > LONGEST_ID:
            path = f"{where}.tool_calls[{m}].id"
            refuse(
                f"Invalid '{path}': string too long. Expected at most {LONGEST_ID}.", path=path, code="string_above_max_length"
            )
        if ids.count(call["id"]) > 1:
            refuse(f"Duplicate value for 'tool_call_id' of '{call['id']}' in message[{n}].", path=f"{where}.tool_calls[{m}].id")
        check_name(call["function"]["name"], f"{where}.tool_calls[{m}].function.name")


def check_name(name: str, path: str) -> None:
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
        refuse(f"Invalid '{path}': string does not match pattern '^[a-zA-Z0-9_-]+$'.", path=path, code="invalid_value")


def check_order(messages: list[Body]) -> None:
    """Check that each call has exactly one result before any other message, and that each result has a call."""
    wanted: list[str] = []
    given: list[str] = []
    for n, message in enumerate(messages):
        if message["role"] == "tool":
            answered = message["tool_call_id"]
            if not wanted:
                text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                refuse(f"Invalid parameter: {text}", path=f"messages.[{n}].role")
            if answered not in wanted:
                text = f"'tool_call_id' of '{answered}' not found in 'tool_calls' of previous message."
                refuse(f"Invalid parameter: {text}", path=f"messages.[{n}].tool_call_id")
            if answered in given:
                text = f"Duplicate value for 'tool_call_id' of '{answered}' in message[{n}]."
                refuse(text, path=f"messages.[{n}].tool_call_id")
            given.append(answered)
            continue
        check_answered(n, wanted, given)
        wanted, given = [call["id"] for call in message.get("tool_calls") or ()], []
    check_answered(len(messages), wanted, given)


def check_answered(n: int, wanted: list[str], given: list[str]) -> None:
    if missing := [call for call in wanted if call not in given]:
        refuse(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
            f"The following tool_call_ids did not have response messages: {', '.join(missing)}",
            path=f"messages.[{n}].role",
        )


def texts(content: Any) -> tuple[str, ...]:
    """Return the texts of a content, which is a text or a list of parts."""
    return (content,) if isinstance(content, str) else tuple(part["text"] for part in content or () if "text" in part)


def plain(content: Any) -> str:
    return "".join(texts(content))


def read_turns(messages: list[Body]) -> Iterator[Turn]:
    names: dict[str, str] = {}
    for message in messages:
        match message["role"]:
            case "user":
                yield Turn("user", texts(message["content"]))
            case "assistant":
                calls = tuple(
                    Call(call["function"]["name"], parsed(call["function"]["arguments"]), call["id"])
                    for call in message.get("tool_calls") or ()
                )
                names.update({call.id: call.name for call in calls})
                yield Turn("model", texts(message.get("content")), calls=calls)
            case "tool":
                called = message["tool_call_id"]
                yield Turn("user", results=(Result(names[called], plain(message["content"]), called),))


def usage(ask: Ask, reply: Reply) -> Body:
    asked, said = weigh(ask.body), reply.tokens
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def called(call: Call) -> Body:
    return {
        "id": call.id or fresh("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.written},
    }


def whole(ask: Ask, reply: Reply) -> Body:
    """Return the answer in one piece."""
    message: Body = {"role": "assistant", "content": reply.text or None, "refusal": None, "annotations": []}
    if reply.calls:
        message["tool_calls"] = [called(call) for call in reply.calls]
    finish = "tool_calls" if reply.calls else "stop"
    return {
        **head(ask, "chat.completion"),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": usage(ask, reply),
    }


def head(ask: Ask, kind: str) -> Body:
    created = int(time.time())
    model = ask.conversation.model
    return {"id": fresh("chatcmpl-"), "object": kind, "created": created, "model": model, "service_tier": "default"}


def events(ask: Ask, reply: Reply) -> Iterator[Event]:
    """Yield the answer as a stream of chunks."""
    top = head(ask, "chat.completion.chunk")

    def chunk(delta: Body, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return line({**top, "choices": [choice]})

    yield Event(chunk({"role": "assistant", "content": None if reply.calls and not reply.text else "", "refusal": None}))
    for token in tokens(reply.text):
        yield Event(chunk({"content": token}), token=True)
    for n, call in enumerate(reply.calls):
        first = called(call)
        arguments = first["function"]["arguments"]
        first["function"]["arguments"] = ""
        yield Event(chunk({"tool_calls": [{"index": n, **first}]}), token=True)
        for piece in pieces(arguments):
            yield Event(chunk({"tool_calls": [{"index": n, "function": {"arguments": piece}}]}), token=True)
    yield Event(chunk({}, "tool_calls" if reply.calls else "stop"))
    if (ask.body.get("stream_options") or {}).get("include_usage"):
        yield Event(line({**top, "choices": [], "usage": usage(ask, reply)}))
    yield Event(b"data: [DONE]\n\n")


def line(data: Body) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
