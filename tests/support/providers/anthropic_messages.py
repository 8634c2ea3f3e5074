"""Anthropic messages: the checks of requests, and the form of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from anthropic.types.beta.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
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
    pieces,
    refuse,
    sign,
    signed,
    tokens,
    weigh,
)
from tests.support.providers.schemas import Malformed, Schema

WHOLE, STREAMED = Schema(MessageCreateParamsNonStreaming), Schema(MessageCreateParamsStreaming)
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


def authorised(headers: dict[str, str], key: str) -> None:
    if headers.get("x-api-key") != key and headers.get("authorization") != f"Bearer {key}":
        raise Refused("invalid x-api-key", 401)
    if "anthropic-version" not in headers:
        raise Refused("anthropic-version: header is required")


def error(refused: Refused) -> Body:
    kind = KINDS.get(refused.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refused.message}, "request_id": fresh("req_")}


def read(raw: bytes, body: Body, model: str | None = None, stream: bool | None = None) -> Ask:
    """Return the request if Anthropic would accept it. Raises Refused."""
    streamed = body.get("stream") is True
    try:
        (STREAMED if streamed else WHOLE).check(raw, body)
    except Malformed as fault:
        text = {"missing": "Field required", "extra_forbidden": "Extra inputs are not permitted"}.get(fault.kind, fault.message)
        raise Refused(f"{'.'.join(map(str, fault.path))}: {text}") from None
    messages = [{**message, "content": blocks(message["content"])} for message in body["messages"]]
    check_settings(body)
    check_contents(messages)
    if messages[-1]["role"] == "assistant" and not prefills(body["model"]):
        refuse("This model does not support assistant message prefill. The conversation must end with a user message.")
    check_order(messages)
    if thinks(body):
        check_thinking(messages)
    turns = tuple(read_turns(messages))
    tools = tuple(tool["name"] for tool in body.get("tools", ()) if "name" in tool)
    system = "".join(block["text"] for block in blocks(body.get("system", [])))
    return Ask(Conversation("anthropic", body["model"], turns, system, tools), streamed, body)


def blocks(content: Any) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def thinks(body: Body) -> bool:
    return bool((body.get("thinking") or {}).get("type") == "enabled")


def prefills(model: str) -> bool:
    """Return whether a conversation may end with the start of the model's answer. Models from 4.6 on refuse this."""
    version = re.match(r"claude-[a-z]+-(\d+)-(\d{1,2})(?!\d)", model)
    return version is not None and (int(version[1]), int(version[2])) < (4, 6)


def check_settings(body: Body) -> None:
    if body["max_tokens"] < 1:
        refuse("max_tokens: Input should be greater than or equal to 1")
    if thinks(body) and body["max_tokens"] <= body["thinking"]["budget_tokens"]:
        refuse("`max_tokens` must be greater than `thinking.budget_tokens`")
    names = [tool["name"] for tool in body.get("tools", ()) if "name" in tool]
    if len(names) != len(set(names)):
        refuse("tools: Tool names must be unique.")


def check_contents(messages: list[Body]) -> None:
    """Check each message by itself."""
    if not messages:
        refuse("messages: at least one message is required")
    if messages[0]["role"] != "user":
        refuse('messages: first message must use the "user" role')
    for n, message in enumerate(messages):
        last = n == len(messages) - 1
        if not message["content"] and not (last and message["role"] == "assistant"):
            refuse(f"messages.{n}: all messages must have non-empty content except for the optional final assistant message")
        for m, block in enumerate(message["content"]):
            check_block(f"messages.{n}.content.{m}", message["role"], block)
    closing = messages[-1]
    if closing["role"] == "assistant" and closing["content"]:
        end = closing["content"][-1]
        if end["type"] == "text" and end["text"] != end["text"].rstrip():
            refuse("messages: final assistant content cannot end with trailing whitespace")


def check_block(where: str, role: str, block: Body) -> None:
    kind = block["type"]
    if kind == "text" and not block["text"]:
        refuse("messages: text content blocks must be non-empty")
    if kind == "text" and not block["text"].strip():
        refuse("messages: text content blocks must contain non-whitespace text")
    if kind in ("tool_use", "thinking", "redacted_thinking") and role != "assistant":
        refuse(f"{where}: `{kind}` blocks can only be in `assistant` messages")
    if kind == "tool_result" and role != "user":
        refuse(f"{where}: `tool_result` blocks can only be in `user` messages")
    if kind == "thinking" and not signed(block["thinking"], block["signature"]):
        refuse(f"{where}: Invalid `signature` in `thinking` block")
    if kind == "tool_use" and not re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]):
        refuse(f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if kind == "tool_result":
        for part in blocks(block.get("content") or []):
            if part["type"] == "text" and not part["text"] and not isinstance(block.get("content"), str):
                refuse("messages: text content blocks must be non-empty")


def ids(message: Body, kind: str, field: str) -> list[str]:
    return [block[field] for block in message["content"] if block["type"] == kind]


def check_order(messages: list[Body]) -> None:
    """Check that the message after calls starts with exactly their results, and that no other message has results."""
    used: set[str] = set()
    for n, message in enumerate(messages):
        before = messages[n - 1] if n else {"content": []}
        wanted, given = ids(before, "tool_use", "id"), ids(message, "tool_result", "tool_use_id")
        for m, block in enumerate(message["content"]):
            if block["type"] == "tool_result" and block["tool_use_id"] not in wanted:
                stray = block["tool_use_id"]
                refuse(
                    f"messages.{n}.content.{m}: unexpected `tool_use_id` found in `tool_result` blocks: {stray}. "
                    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                )
        if doubled := next((call for call in given if given.count(call) > 1), None):
            refuse(
                f"messages.{n}.content: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {doubled}"
            )
        leading = [block["tool_use_id"] for block in message["content"][: len(wanted)] if block["type"] == "tool_result"]
        check_answered(n - 1, wanted, leading)
        for call in ids(message, "tool_use", "id"):
            if call in used:
                refuse(f"messages.{n}: `tool_use` ids must be unique")
            used.add(call)
    check_answered(len(messages) - 1, ids(messages[-1], "tool_use", "id"), [])


def check_answered(n: int, wanted: list[str], given: list[str]) -> None:
    if missing := [call for call in wanted if call not in given]:
        refuse(
            f"messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. "
            "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
        )


def check_thinking(messages: list[Body]) -> None:
    """Check that a turn that continues with tool results starts with its thinking."""
    start = max(
        (n for n, m in enumerate(messages) if m["role"] == "user" and any(b["type"] != "tool_result" for b in m["content"])),
        default=0,
    )
    for n, message in enumerate(messages[start:], start):
        if message["role"] == "assistant" and message["content"]:
            kind = message["content"][0]["type"]
            if kind not in ("thinking", "redacted_thinking"):
                refuse(
                    f"messages.{n}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. When "
                    "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
                    "lastmost set of `tool_use` and `tool_result` blocks)."
                )
            return


def read_turns(messages: list[Body]) -> Iterator[Turn]:
    names: dict[str, str] = {}
    for message in messages:
        content = message["content"]
        texts = tuple(block["text"] for block in content if block["type"] == "text")
        if message["role"] == "assistant":
            calls = tuple(Call(block["name"], block["input"], block["id"]) for block in content if block["type"] == "tool_use")
            names.update({call.id: call.name for call in calls})
            thinking = "".join(block["thinking"] for block in content if block["type"] == "thinking")
            yield Turn("model", texts, thinking, calls)
        else:
            results = tuple(
                Result(
                    names[block["tool_use_id"]],
                    "".join(part.get("text", "") for part in blocks(block.get("content") or [])),
                    block["tool_use_id"],
                    block.get("is_error", False),
                )
                for block in content
                if block["type"] == "tool_result"
            )
            yield Turn("user", texts, results=results)


def said(ask: Ask, reply: Reply) -> list[Body]:
    """Return the blocks of a reply. It has thinking if the request demands it, or allows it and the scenario gives it."""
    content: list[Body] = []
    adaptive = (ask.body.get("thinking") or {}).get("type") == "adaptive"
    if thinks(ask.body) or (adaptive and reply.thinking):
        thought = reply.thinking or "Let me see."
        content.append({"type": "thinking", "thinking": thought, "signature": sign(thought)})
    if reply.text:
        content.append({"type": "text", "text": reply.text, "citations": None})
    content += [
        {"type": "tool_use", "id": call.id or fresh("toolu_"), "name": call.name, "input": call.arguments}
        for call in reply.calls
    ]
    return content


def usage(ask: Ask, output: int) -> Body:
    return {"input_tokens": weigh(ask.body), "output_tokens": output}


def head(ask: Ask) -> Body:
    return {"id": fresh("msg_"), "type": "message", "role": "assistant", "model": ask.conversation.model}


def whole(ask: Ask, reply: Reply) -> Body:
    """Return the answer in one piece."""
    stop = "tool_use" if reply.calls else "end_turn"
    content = said(ask, reply)
    return {**head(ask), "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage(ask, reply.tokens)}


def events(ask: Ask, reply: Reply) -> Iterator[Event]:
    """Yield the answer as a stream of events."""
    empty = {**head(ask), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage(ask, 1)}
    yield event("message_start", message=empty)
    yield event("ping")
    for n, block in enumerate(said(ask, reply)):
        yield event("content_block_start", index=n, content_block=opened(block))
        for delta in deltas(block):
            yield event("content_block_delta", token=delta["type"] != "signature_delta", index=n, delta=delta)
        yield event("content_block_stop", index=n)
    stop = "tool_use" if reply.calls else "end_turn"
    output = {"output_tokens": reply.tokens}
    yield event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=output)
    yield event("message_stop")


def opened(block: Body) -> Body:
    """Return a block as its start event shows it: fields that follow as deltas are empty."""
    return {**block, **{name: "" for name in ("text", "thinking", "signature") if name in block}, **emptied(block)}


def emptied(block: Body) -> Body:
    return {"input": {}} if block["type"] == "tool_use" else {}


def deltas(block: Body) -> Iterator[Body]:
    match block["type"]:
        case "text":
            for token in tokens(block["text"]):
                yield {"type": "text_delta", "text": token}
        case "thinking":
            for token in tokens(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": token}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            for piece in pieces(json.dumps(block["input"])):
                yield {"type": "input_json_delta", "partial_json": piece}


def event(kind: str, *, token: bool = False, **data: Any) -> Event:
    return Event(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode(), token)
