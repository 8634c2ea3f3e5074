"""Requests in the four protocols: those that providers refuse, with the reason, and those that they accept."""

from __future__ import annotations

from typing import Any

from tests.support.providers.conversation import Body, sign

Request = tuple[str, Body]
"""A path and a body."""


def chat(*messages: Body, **fields: Any) -> Request:
    return "/openai/v1/chat/completions", {"model": "gpt-4.1", "messages": list(messages), **fields}


def responses(*items: Body, **fields: Any) -> Request:
    return "/openai/v1/responses", {"model": "gpt-5.1", "input": list(items), "store": False, **fields}


def claude(*messages: Body, **fields: Any) -> Request:
    fields = {"model": "claude-haiku-4-5", "max_tokens": 100, **fields}
    fields = {name: value for name, value in fields.items() if value is not None}
    return "/anthropic/v1/messages", {"messages": list(messages), **fields}


def gemini(*contents: Body, verb: str = "generateContent", **fields: Any) -> Request:
    return f"/gemini/v1beta/models/gemini-3-pro-preview:{verb}", {"contents": list(contents), **fields}


def says(text: str = "hi", role: str = "user") -> Body:
    return {"role": role, "content": text}


def calls(*ids: str, **fields: Any) -> Body:
    """Return an assistant's message of OpenAI chat with calls."""
    made = [{"id": name, "type": "function", "function": {"name": "add", "arguments": "{}"}} for name in ids]
    return {"role": "assistant", "content": None, "tool_calls": made, **fields}


def tool(name: str, **fields: Any) -> Body:
    return {"role": "tool", "tool_call_id": name, "content": "3", **fields}


def fc(name: str, **fields: Any) -> Body:
    return {"type": "function_call", "call_id": name, "name": "add", "arguments": "{}", **fields}


def fco(name: str) -> Body:
    return {"type": "function_call_output", "call_id": name, "output": "3"}


def reasoning(name: str = "rs_1", content: str | None = None) -> Body:
    return {"type": "reasoning", "id": name, "summary": [], "encrypted_content": content or sign(name)}


def uses(*ids: str, before: tuple[Body, ...] = ()) -> Body:
    """Return an assistant's message of Anthropic with calls."""
    made = [{"type": "tool_use", "id": name, "name": "add", "input": {}} for name in ids]
    return {"role": "assistant", "content": [*before, *made]}


def result(name: str) -> Body:
    return {"type": "tool_result", "tool_use_id": name, "content": "3"}


def text(words: str) -> Body:
    return {"type": "text", "text": words}


def blocks(*content: Body, role: str = "user") -> Body:
    return {"role": role, "content": list(content)}


def thought(words: str = "hm", signature: str | None = None) -> Body:
    return {"type": "thinking", "thinking": words, "signature": signature or sign(words)}


THINKING = {"type": "enabled", "budget_tokens": 1024}


def content(*parts: Body, role: str = "user") -> Body:
    return {"role": role, "parts": list(parts)}


def call(name: str = "add", signature: str | None = "skip", **fields: Any) -> Body:
    """Return a call as a part of Gemini. ``signature``: "skip" for the documented placeholder, None for no signature."""
    part: Body = {"functionCall": {"name": name, "args": {}, **fields}}
    if signature is not None:
        part["thoughtSignature"] = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=" if signature == "skip" else signature
    return part


def response(name: str = "add", **fields: Any) -> Body:
    return {"functionResponse": {"name": name, "response": {"result": 3}, **fields}}


HI, YES = content({"text": "hi"}), content({"text": "yes"}, role="model")
A = says("a", "assistant")

REFUSED: dict[str, tuple[Request, str]] = {
    # OpenAI chat completions
    "chat: a result without a call": (chat(says(), tool("c1")), "must be a response to a preceeding message with 'tool_calls'"),
    "chat: a result after something else": (chat(says(), calls("c1"), tool("c1"), A, tool("c1")), "must be a response to"),
    "chat: a result of another call": (chat(says(), calls("c1"), tool("c2")), "'c2' not found in 'tool_calls' of previous"),
    "chat: a call without its result": (chat(says(), calls("c1")), "did not have response messages: c1"),
    "chat: one of two calls without": (
        chat(says(), calls("c1", "c2"), tool("c2"), says()),
        "did not have response messages: c1",
    ),
    "chat: the user between call and result": (
        chat(says(), calls("c1"), says(), tool("c1")),
        "must be followed by tool messages",
    ),
    "chat: the same result twice": (chat(says(), calls("c1"), tool("c1"), tool("c1")), "Duplicate value for 'tool_call_id'"),
    "chat: the same call id twice": (chat(says(), calls("c1", "c1"), tool("c1")), "Duplicate value for 'tool_call_id'"),
    "chat: no calls in tool_calls": (chat(says(), calls(content="a"), says()), "empty array"),
    "chat: an assistant that says nothing": (chat(says(), {"role": "assistant", "content": None}, says()), "expected a string"),
    "chat: an unknown role": (chat(says("hi", "model")), "Invalid value: 'model'"),
    "chat: an unknown field of a message": (chat({**says(), "seq": 1}), "Unknown parameter: 'messages[0].seq'"),
    "chat: an unknown field": (chat(says(), thread="t"), "Unknown parameter: 'thread'"),
    "chat: arguments that are no text": (
        chat(
            says(), {**calls("c"), "tool_calls": [{"id": "c", "type": "function", "function": {"name": "a", "arguments": {}}}]}
        ),
        "Invalid type for 'messages[1].tool_calls[0].function.arguments'",
    ),
    "chat: an id that is too long": (chat(says(), calls("c" * 41), tool("c" * 41)), "string too long"),
    "chat: a name with a dot": (
        chat(
            says(),
            {**calls("c"), "tool_calls": [{"id": "c", "type": "function", "function": {"name": "a.b", "arguments": ""}}]},
        ),
        "does not match pattern",
    ),
    "chat: no messages": (chat(), "empty array"),
    # OpenAI responses
    "responses: an output without its call": (responses(says(), fco("c1")), "No tool call found for function call output"),
    "responses: a call without its output": (responses(says(), fc("c1"), says()), "No tool output found for function call c1"),
    "responses: the output before its call": (responses(says(), fco("c1"), fc("c1")), "No tool call found for function call"),
    "responses: one of two calls without": (responses(says(), fc("c1"), fc("c2"), fco("c1")), "found for function call c2"),
    "responses: the same output twice": (responses(says(), fc("c1"), fco("c1"), fco("c1")), "Duplicate function call output"),
    "responses: reasoning that leads nowhere": (responses(says(), reasoning(), says()), "without its required following item"),
    "responses: a call without its reasoning": (
        responses(says(), fc("c1", id="fc_1_of_0"), fco("c1")),
        "without its required 'reasoning' item: 'rs_1'",
    ),
    "responses: reasoning of somebody else": (responses(says(), reasoning(content="x"), A), "could not be verified"),
    "responses: the same item twice": (responses(says(), reasoning(), A, reasoning(), A), "Duplicate item found with id rs_1"),
    "responses: an id of another kind": (
        responses(says(), fc("c1", id="msg_1"), fco("c1")),
        "Expected an ID that begins with 'fc'",
    ),
    "responses: an unknown field": (responses({**says(), "run_id": "r"}), "Unknown parameter: 'input[0].run_id'"),
    # Anthropic messages
    "claude: the assistant first": (claude(A, says()), 'first message must use the "user" role'),
    "claude: no max_tokens": (claude(says(), max_tokens=None), "max_tokens: Field required"),
    "claude: a result without a call": (
        claude(says(), A, blocks(result("t1"))),
        "unexpected `tool_use_id` found in `tool_result`",
    ),
    "claude: a call without its result": (
        claude(says(), uses("t1"), says()),
        "`tool_use` ids were found without `tool_result`",
    ),
    "claude: a call at the end": (claude(says(), uses("t1")), "`tool_use` ids were found without `tool_result`"),
    "claude: one of two calls without": (claude(says(), uses("t1", "t2"), blocks(result("t1"))), "immediately after: t2"),
    "claude: results in two messages": (
        claude(says(), uses("t1", "t2"), blocks(result("t1")), blocks(result("t2"))),
        "immediately after: t2",
    ),
    "claude: text before results": (claude(says(), uses("t1"), blocks(text("wait"), result("t1"))), "immediately after: t1"),
    "claude: the same result twice": (claude(says(), uses("t1"), blocks(result("t1"), result("t1"))), "multiple `tool_result`"),
    "claude: the same call id twice": (
        claude(says(), uses("t1"), blocks(result("t1")), uses("t1"), blocks(result("t1"))),
        "`tool_use` ids must be unique",
    ),
    "claude: an id with a dot": (claude(says(), uses("t.1"), blocks(result("t.1"))), "String should match pattern"),
    "claude: an empty text": (claude(blocks(text(""))), "text content blocks must be non-empty"),
    "claude: an empty message in between": (claude(says(), blocks(role="assistant"), says()), "must have non-empty content"),
    "claude: white space at the end": (claude(says(), says("so: ", "assistant")), "cannot end with trailing whitespace"),
    "claude: the assistant last": (
        claude(says(), A, model="claude-sonnet-5-5"),
        "does not support assistant message prefill",
    ),
    "claude: thinking of somebody else": (
        claude(says(), blocks(thought(signature="x"), text("a"), role="assistant"), says()),
        "Invalid `signature` in `thinking` block",
    ),
    "claude: thinking that was left out": (
        claude(says(), uses("t1"), blocks(result("t1")), thinking=THINKING, max_tokens=2000),
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`",
    ),
    "claude: a role of OpenAI's": (claude(says(), tool("c1")), "messages.1.tool_call_id: Extra inputs are not permitted"),
    "claude: an unknown field": (claude({**says(), "id": "m1"}), "messages.0.id: Extra inputs are not permitted"),
    # Gemini
    "gemini: the model first": (gemini(YES, HI), "start with a user turn"),
    "gemini: the model last": (gemini(HI, YES), "ends with a user role or a function response"),
    "gemini: a role of OpenAI's": (
        gemini(HI, content({"text": "a"}, role="assistant"), HI),
        "Please use a valid role: user, model",
    ),
    "gemini: the user twice": (gemini(HI, HI), "alternate between user and model"),
    "gemini: the model twice": (gemini(HI, YES, YES, HI), "alternate between user and model"),
    "gemini: no parts": (gemini(content()), "contents.parts must not be empty"),
    "gemini: an empty text": (gemini(content({"text": ""})), "required oneof field 'data'"),
    "gemini: a response without a call": (gemini(HI, YES, content(response())), "comes immediately after a function call turn"),
    "gemini: a call without its response": (
        gemini(HI, content(call(), role="model"), HI),
        "equal to the number of function call",
    ),
    "gemini: two calls, one response": (
        gemini(HI, content(call(), call("mul"), role="model"), content(response())),
        "equal to the number of function call parts",
    ),
    "gemini: the response of another": (gemini(HI, content(call(), role="model"), content(response("mul"))), "do not answer"),
    "gemini: a call that is not signed": (
        gemini(HI, content(call(signature=None), role="model"), content(response())),
        "missing a thought_signature",
    ),
    "gemini: a signature of somebody else": (
        gemini(HI, content(call(signature="eHh4"), role="model"), content(response())),
        "Thought signature is not valid",
    ),
    "gemini: an unknown field": (gemini(content({"text": "hi", "seq": 1})), "Unknown name \"seq\" at 'contents[0].parts[0]'"),
}

ACCEPTED: dict[str, Request] = {
    "chat: results in any order": chat(says("be", "system"), says(), calls("c1", "c2"), tool("c2"), tool("c1"), A, says()),
    "chat: an empty assistant's text": chat(says(), says("", "assistant"), says()),
    "chat: two prompts": chat(says(), says()),
    "responses: results in any order": responses(says(), reasoning(), fc("c1", id="fc_1_of_0"), fc("c2"), fco("c2"), fco("c1")),
    "responses: a text": ("/openai/v1/responses", {"model": "gpt-5.1", "input": "hi"}),
    "claude: results, then text": claude(says(), uses("t1", "t2"), blocks(result("t2"), result("t1"), text("so?"))),
    "claude: two prompts": claude(says(), says()),
    "claude: thinking that is kept": claude(
        says(), uses("t1", before=(thought(),)), blocks(result("t1")), thinking=THINKING, max_tokens=2000
    ),
    "claude: no thinking in an older turn": claude(
        says(), uses("t1"), blocks(result("t1")), A, says(), thinking=THINKING, max_tokens=2000
    ),
    "gemini: parallel calls, one signature": gemini(
        HI, content(call(), call("mul", None), role="model"), content(response("mul"), response())
    ),
    "gemini: an older turn is not signed": gemini(
        HI, content(call(signature=None), role="model"), content(response()), YES, HI
    ),
    "gemini: the user after the responses": gemini(HI, content(call(), role="model"), content(response()), HI),
}
