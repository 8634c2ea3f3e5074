"""OpenAI responses: the checks of requests, and the form of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)

from tests.support.providers.conversation import (
    Ask,
    Body,
    Call,
    Conversation,
    Event,
    Reply,
    Result,
    Turn,
    fresh,
    parsed,
    pieces,
    refuse,
    sign,
    signed,
    tokens,
    weigh,
)
from tests.support.providers.openai_chat import authorised, check_name, error, malformed, plain, texts
from tests.support.providers.schemas import Malformed, Schema

__all__ = ["authorised", "error", "events", "read", "whole"]

WHOLE, STREAMED = Schema(ResponseCreateParamsNonStreaming), Schema(ResponseCreateParamsStreaming)
LONGEST_ID = 64
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


def read(raw: bytes, body: Body, model: str | None = None, stream: bool | None = None) -> Ask:
    """Return the request if OpenAI would accept it. Raises Refused."""
    streamed = body.get("stream") is True
    try:
        (STREAMED if streamed else WHOLE).check(raw, body)
    except Malformed as fault:
        raise malformed(fault) from None
    given = body.get("input")
    if not given:
        refuse("Missing required parameter: 'input'.", path="input", code="missing_required_parameter")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for n, item in enumerate(items):
        check_item(n, item, stored=body.get("store") is not False)
    check_calls(items)
    check_reasoning(items)
    tools = tuple(tool["name"] for tool in body.get("tools", ()) if tool["type"] == "function")
    system = [body.get("instructions") or ""]
    system += [plain(item["content"]) for item in items if item.get("role") in ("system", "developer")]
    turns = tuple(read_turns(items))
    return Ask(Conversation("openai-responses", body["model"], turns, "\n".join(filter(None, system)), tools), streamed, body)


def kind(item: Body) -> str:
    return str(item.get("type", "message"))


def check_item(n: int, item: Body, *, stored: bool) -> None:
    """Check one item by itself."""
    prefix, name = PREFIXES.get(kind(item)), item.get("id")
    if prefix and name is not None and not name.startswith(prefix):
        text = f"Invalid 'input[{n}].id': '{name}'. Expected an ID that begins with '{prefix}'."
        refuse(text, path=f"input[{n}].id", code="invalid_value")
    if len(item.get("call_id") or "") > LONGEST_ID:
        text = f"Invalid 'input[{n}].call_id': string too long. Expected at most {LONGEST_ID}."
        refuse(text, path=f"input[{n}].call_id", code="string_above_max_length")
    if kind(item) == "function_call":
        check_name(item["name"], f"input[{n}].name")
    if kind(item) == "reasoning":
        content = item.get("encrypted_content")
        if content is not None and not signed(item["id"], content):
            text = f"The encrypted content for item {item['id']} could not be verified."
            refuse(text, code="invalid_encrypted_content")
        if content is None and not stored:
            refuse(
                f"Item with id '{item['id']}' not found. Items are not persisted when `store` is set to false.", path="input"
            )


def check_calls(items: list[Body]) -> None:
    """Check that each call has one later output, that each output has an earlier call, and that no id occurs twice."""
    calls: dict[str, bool] = {}
    ids: set[str] = set()
    for item in items:
        if (name := item.get("id")) is not None:
            if name in ids:
                refuse(
                    f"Duplicate item found with id {name}. Remove duplicate items from your input and try again.", path="input"
                )
            ids.add(name)
        called = item.get("call_id", "")
        match kind(item):
            case "function_call":
                if called in calls:
                    refuse(f"Duplicate function call found with call_id {called}.", path="input")
                calls[called] = False
            case "function_call_output":
                if called not in calls:
                    refuse(f"No tool call found for function call output with call_id {called}.", path="input")
                if calls[called]:
                    refuse(f"Duplicate function call output found with call_id {called}.", path="input")
                calls[called] = True
            case "message" if item.get("role") == "user":
                check_answered(calls)
    check_answered(calls)


def check_answered(calls: dict[str, bool]) -> None:
    if missing := next((called for called, answered in calls.items() if not answered), None):
        refuse(f"No tool output found for function call {missing}.", path="input")


def check_reasoning(items: list[Body]) -> None:
    """Check that reasoning and the item that follows from it are together. Their ids show which belong together."""
    reasoned = ""
    for before, item in zip([{}, *items], [*items, {}], strict=True):
        follows = kind(item) in ("function_call", "reasoning") or item.get("role") == "assistant"
        if kind(before) == "reasoning" and not follows:
            text = f"Item '{before['id']}' of type 'reasoning' was provided without its required following item."
            refuse(text, path="input")
        if kind(item) == "reasoning":
            reasoned = item["id"].removeprefix("rs_")
        _, _, rest = str(item.get("id") or "").partition("_")
        owner, made, _ = rest.partition("_of_")
        if made and kind(item) in ("function_call", "message") and owner != reasoned:
            text = (
                f"Item '{item['id']}' of type '{kind(item)}' was provided without its required 'reasoning' item: 'rs_{owner}'."
            )
            refuse(text, path="input")


def read_turns(items: list[Body]) -> Iterator[Turn]:
    """Return one turn for each sequence of items of one side."""
    names: dict[str, str] = {}
    said: list[Body] = []
    for item in items:
        if kind(item) in ("reasoning", "function_call") or item.get("role") == "assistant":
            said.append(item)
            continue
        if said:
            yield model_turn(said, names)
            said = []
        if kind(item) == "function_call_output":
            yield Turn("user", results=(Result(names[item["call_id"]], plain(item["output"]), item["call_id"]),))
        elif item.get("role") == "user":
            yield Turn("user", texts(item["content"]))
    if said:
        yield model_turn(said, names)


def model_turn(said: list[Body], names: dict[str, str]) -> Turn:
    calls = tuple(
        Call(item["name"], parsed(item["arguments"]), item["call_id"]) for item in said if kind(item) == "function_call"
    )
    names.update({call.id: call.name for call in calls})
    spoken = tuple(text for item in said if kind(item) == "message" for text in texts(item["content"]))
    thinking = "".join(part["text"] for item in said if kind(item) == "reasoning" for part in item["summary"])
    return Turn("model", spoken, thinking, calls)


def output(ask: Ask, reply: Reply) -> list[Body]:
    """Return the items of a reply. If it has reasoning, the ids of the other items name the reasoning."""
    items: list[Body] = []
    base = fresh("")
    owned = f"{base}_of_" if reply.thinking else base
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        item: Body = {"id": f"rs_{base}", "type": "reasoning", "summary": summary, "encrypted_content": None}
        if "reasoning.encrypted_content" in (ask.body.get("include") or ()):
            item["encrypted_content"] = sign(item["id"])
        items.append(item)
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        role: Body = {"role": "assistant", "status": "completed"}
        items.append({"id": f"msg_{owned}", "type": "message", **role, "content": content})
    for n, call in enumerate(reply.calls):
        named = {"call_id": call.id or fresh("call_"), "name": call.name, "arguments": call.written}
        items.append({"id": f"fc_{owned}{n}", "type": "function_call", "status": "completed", **named})
    return items


def answered(ask: Ask, reply: Reply, items: list[Body], status: str) -> Body:
    asked, said = weigh(ask.body), reply.tokens
    details: Body = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    usage = {"input_tokens": asked, "output_tokens": said, "total_tokens": asked + said, **details}
    return {
        "id": fresh("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": ask.body.get("instructions"),
        "metadata": {},
        "output": items,
        "model": ask.conversation.model,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": ask.body.get("tool_choice", "auto"),
        "tools": ask.body.get("tools", []),
        "usage": usage if status == "completed" else None,
    }


def whole(ask: Ask, reply: Reply) -> Body:
    """Return the answer in one piece."""
    return answered(ask, reply, output(ask, reply), "completed")


def events(ask: Ask, reply: Reply) -> Iterator[Event]:
    """Yield the answer as a stream of events."""
    numbers = count()
    items = output(ask, reply)
    started = answered(ask, reply, [], "in_progress")

    def event(kind: str, *, token: bool = False, **data: Any) -> Event:
        body = {"type": kind, "sequence_number": next(numbers), **data}
        return Event(f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode(), token)

    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    for n, item in enumerate(items):
        yield event("response.output_item.added", output_index=n, item=opened(item))
        at = {"output_index": n, "item_id": item["id"]}
        for name, token, data in steps(item):
            yield event(name, token=token, **at, **data)
        yield event("response.output_item.done", output_index=n, item=item)
    yield event("response.completed", response={**started, **answered(ask, reply, items, "completed"), "id": started["id"]})


def opened(item: Body) -> Body:
    """Return an item as its start event shows it."""
    empty: dict[str, Body] = {
        "reasoning": {"summary": []},
        "message": {"content": [], "status": "in_progress"},
        "function_call": {"arguments": "", "status": "in_progress"},
    }
    return {**item, **empty[item["type"]]}


def steps(item: Body) -> Iterator[tuple[str, bool, Body]]:
    """Yield the events between the start and the end of an item: name, whether the event is a token, data."""
    match item["type"]:
        case "reasoning":
            [part] = item["summary"]
            at = {"summary_index": 0}
            yield "response.reasoning_summary_part.added", False, {**at, "part": {**part, "text": ""}}
            for token in tokens(part["text"]):
                yield "response.reasoning_summary_text.delta", True, {**at, "delta": token}
            yield "response.reasoning_summary_text.done", False, {**at, "text": part["text"]}
            yield "response.reasoning_summary_part.done", False, {**at, "part": part}
        case "message":
            [part] = item["content"]
            at = {"content_index": 0}
            yield "response.content_part.added", False, {**at, "part": {**part, "text": ""}}
            for token in tokens(part["text"]):
                yield "response.output_text.delta", True, {**at, "delta": token, "logprobs": []}
            yield "response.output_text.done", False, {**at, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", False, {**at, "part": part}
        case "function_call":
            for piece in pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", True, {"delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", False, done
