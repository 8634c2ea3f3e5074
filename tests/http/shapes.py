"""Bodies whose shape is hostile: little text, of which much is made, or which takes long to go through."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Final

LARGEST: Final = 10 * 2**20 - 400
"""Bytes of a value; what is around it fits into the 10 MiB that a body may have."""


def _filled(unit: str) -> Callable[[int], str]:
    return lambda size: f"[{','.join([unit] * max(1, size // (len(unit) + 1)))}]"


def _times(unit: str, count: int) -> Callable[[int], str]:
    """A list of at most ``count`` units: just within the bounds of a value."""
    return lambda size: f"[{','.join([unit] * min(count, size // (len(unit) + 1) + 1))}]"


def _json(beginning: str, unit: str) -> Callable[[int], str]:
    """A text with JSON that has no end, as providers write the arguments of a tool call."""
    return lambda size: json.dumps(beginning)[:-1] + unit.replace('"', '\\"') * (size // (2 * len(unit))) + '"'


def _text(unit: str) -> Callable[[int], str]:
    return lambda size: f'"{unit * (size // len(unit.encode()))}"'


def _chain(levels: int) -> str:
    return "[" * levels + "]" * levels


def _names(name: str, value: str = "1") -> Callable[[int], str]:
    """Objects with so many names; ``#`` makes each another one."""

    def made(size: int) -> str:
        count = max(1, size // (len(name) + len(value) + (10 if "#" in name else 4)))
        return "{" + ",".join(f'"{name.replace("#", format(n, "07"))}":{value}' for n in range(count)) + "}"

    return made


VALUES: Final[dict[str, Callable[[int], str]]] = {
    "chains": _filled(_chain(95)),
    "chains of objects": _filled('{"a":' * 90 + "1" + "}" * 90),
    "lists of one": _filled("[1]"),
    "empty lists": _filled("[]"),
    "empty objects": _filled("{}"),
    "small numbers": _filled("1"),
    "words": _filled("true"),
    "empty strings": _filled('""'),
    "short strings": _filled('"é"'),
    "integers of 290 digits": _filled("7" * 290),
    "integers of 99 digits": _filled("7" * 99),
    "integers of 64 bits": _filled("9223372036854775807"),
    "one long integer": lambda size: "7" * size,
    "fractions of 290 digits": _filled("1." + "7" * 290),
    "fractions of 99 digits": _filled("0." + "7" * 99),
    "exponents": _filled("1e308"),
    "too large exponents": _filled("1e999"),
    "long exponents": _filled("1e" + "0" * 98 + "1"),
    "one name again and again": _names("a"),
    "many names": _names("k#"),
    "long names": _names("k#" + "x" * 10_000),
    "one long name": lambda size: f'{{"{"k" * size}":1}}',
    "objects under one name": _names("a", '{"a":{}}'),
    "runs of 299 digits in text": _text("1" * 299 + "a"),
    "commas in text": _text(","),
    "brackets in text": _text("["),
    "digits in text": _text("1"),
    "escaped quotes": _text('\\"'),
    "escaped backslashes": _text("\\\\"),
    "escaped letters": _text("\\u0041"),
    "escaped control characters": _text("\\u0001"),
    "escaped surrogate pairs": _text("\\ud83d\\ude00"),
    "lone surrogates": _text("\\ud800"),
    "wide text": _text("é"),
    "widest text": _text("😀"),
    "narrow text with one wide character": lambda size: f'"{"x" * size}😀"',
    "whitespace": lambda size: f"[{' ' * size}1]",
    "whitespace between": _filled(" \n\t 1 \r "),
    "deep lists": lambda size: _chain(size // 2),
    "deep objects": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "brackets without an end": lambda size: "[" * size,
    "objects without an end": lambda size: '{"a":[' * (size // 6),
    "quotes": lambda size: '"' * size,
    "text without an end": lambda size: '"' + '\\"' * (size // 2),
    "commas": lambda size: "," * size,
    "colons": lambda size: ":" * size,
    "braces without commas": lambda size: "{}" * (size // 2),
    "numbers without commas": lambda size: "1 " * (size // 2),
    "minus signs": lambda size: "-" * size,
    "parts of text": _filled('{"type":"text","text":"x"}'),
    "parts of many types": _filled('{"type":"tool_call","id":"x","name":"y","arguments":{}},{"type":"image"}'),
    "parts of no type": _filled('{"type":"video","text":"x"}'),
    "parts without a type": _filled("{}"),
    "parts with a wrong field": _filled('{"type":"text","text":0}'),
    "parts with too many fields": _filled('{"type":"text","text":"x","a":0,"b":0,"c":0}'),
    "files of a function": _filled('{"fileData":{"fileUri":""}}'),
    "24,000 empty objects": _times("{}", 24_000),
    "12,000 objects": _times('{"a":{}}', 12_000),
    "8,000 parts of text": _times('{"type":"text","text":"x"}', 8_000),
    "4,000 parts with unknown fields": _times('{"type":"text","text":"x","a":0,"b":0,"c":0}', 4_000),
    "1,990 parts of text": _times('{"type":"text","text":"x"}', 1990),
    "1,990 parts with unknown fields": _times('{"type":"text","text":"x","a":0,"b":0,"c":0}', 1990),
    "1,990 files of a function": _times('{"fileData":{"fileUri":""}}', 1990),
    "24,000 names": lambda size: "{" + ",".join(f'"k{n}":{n}' for n in range(min(size // 12 + 1, 24_000))) + "}",
    "JSON of empty strings": _json('{"a":[', '"",'),
    "JSON of long integers": _json('{"a":[', "7" * 4200 + ","),
    "JSON of commas": _json('{"a":"', ",[{"),
    "JSON of escapes": _json('{"b":"' + "," * 30_000 + '","a":"', "\\u0041"),
    "JSON of lists": _json('{"a":[', "[1],"),
}
"""How a value of about so many bytes is made."""

PLACES: Final[dict[str, tuple[str, str, str]]] = {
    "the body": ("POST", "/v1/threads/t/runs", "#"),
    "a prompt": ("POST", "/v1/threads/t/runs", '{"message": #}'),
    "a prompt's content": ("POST", "/v1/threads/t/runs", '{"message": {"content": #}}'),
    "a part": ("POST", "/v1/threads/t/runs", '{"message": {"content": [#]}}'),
    "a tool's arguments": (
        *("POST", "/v1/threads/t/messages"),
        '{"message": {"role": "assistant", "content": [{"type": "tool_call", "id": "c", "name": "n", "arguments": {"a": #}}]}}',
    ),
    "a tool's result": (
        *("POST", "/v1/threads/t/runs"),
        '{"message": {"role": "tool", "content": [{"type": "tool_result", "call_id": "c", "content": #}]}}',
    ),
    "a message's metadata": ("POST", "/v1/threads/t/messages", '{"message": {"content": "x", "metadata": {"a": #}}}'),
    "metadata": ("POST", "/v1/threads/t/runs", '{"message": "x", "metadata": #}'),
    "an unknown field": ("POST", "/v1/threads/t/runs", '{"message": "x", "other": #}'),
    "a policy": ("POST", "/v1/threads/t/runs", '{"message": "x", "retry": {"errors": #}}'),
    "a number": ("POST", "/v1/threads/t/runs", '{"message": "x", "max_attempts": #}'),
    "a moment": ("POST", "/v1/threads/t/runs", '{"message": "x", "run_at": #}'),
    "tags": ("POST", "/v1/threads", '{"thread_id": "u", "tags": #}'),
    "extra": ("POST", "/v1/threads", '{"thread_id": "u", "extra": {"a": #}}'),
    "config": ("POST", "/v1/threads", '{"thread_id": "u", "config": #}'),
    "more extra": ("PATCH", "/v1/threads/t", '{"extra": {"a": #}}'),
    "a title": ("PATCH", "/v1/threads/t", '{"title": #}'),
    "an answer": ("POST", "/v1/threads/t/respond", '{"answer": #}'),
    "an answer to nothing": ("POST", "/v1/requests/q/respond", '{"answer": #}'),
    "candidates": ("POST", "/v1/threads/t/fork_many?wait=0", '{"messages": #}'),
    "a probe": ("POST", "/v1/threads/t/fork_once?wait=0", '{"message": {"content": #}}'),
    "a fork's metadata": ("POST", "/v1/threads/t/fork", '{"at_seq": 0, "metadata": {"a": #}}'),
    "a fork of openhands": ("POST", "/api/conversations/t/fork", "#"),
    "an id of openhands": ("POST", "/api/conversations/t/fork", '{"id": #}'),
    "tags of openhands": ("POST", "/api/conversations/t/fork", '{"tags": #}'),
    "a blob": ("POST", "/v1/threads/t/messages", '{"format": "openai", "blob": #}'),
    "a native blob": ("POST", "/v1/threads/t/messages", '{"format": "native", "blob": {"role": "user", "content": #}}'),
    "content of a blob": ("POST", "/v1/threads/t/messages", '{"format": "openai", "blob": {"role": "user", "content": #}}'),
    "an unknown field of a blob": (
        *("POST", "/v1/threads/t/messages"),
        '{"format": "anthropic", "blob": {"role": "user", "content": "x", "a": #}}',
    ),
    "unknown fields of a block": (
        *("POST", "/v1/threads/t/messages"),
        '{"format": "gemini", "blob": {"parts": [{"text": "x", "fileData": #}]}}',
    ),
    "arguments in a text": (
        *("POST", "/v1/threads/t/messages"),
        '{"format": "openai_responses", "blob": {"type": "function_call", "call_id": "c", "name": "n", "arguments": #}}',
    ),
    "a result of Anthropic": (
        *("POST", "/v1/threads/t/messages"),
        '{"format": "anthropic", "blob": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": #}'
        "]}}",
    ),
    "files of Gemini": (
        *("POST", "/v1/threads/t/messages"),
        '{"format": "gemini", "blob": {"parts": [{"functionResponse": {"name": "n", "response": {}, "parts": #}}]}}',
    ),
    "an original": (
        *("POST", "/v1/threads/t/messages"),
        '{"message": {"content": "x", "source": {"format": "openai", "blob": #}}}',
    ),
    "a stream token": ("POST", "/v1/stream_tokens", '{"thread_id": #}'),
    "a part of Acontext": (
        "POST",
        "/api/v1/session/t/messages",
        '{"format": "acontext", "blob": {"role": "user", "parts": [#]}}',
    ),
    "a message of events": ("POST", "/commands/send-message", '{"thread_id": "t", "content": #}'),
    "a part of events": ("POST", "/commands/send-message", '{"thread_id": "t", "content": [#]}'),
    "an event number": ("POST", "/commands/fork-thread", '{"source_thread_id": "t", "event_number": #}'),
    "a session's configs": ("PATCH", "/api/v1/session/t/configs", '{"configs": {"a": #}}'),
    "a body that nobody wants": ("POST", "/v1/threads/t/runs/r/cancel", "#"),
}
"""Method, path, and the body in which a value stands for ``#``."""


def body(shape: str, place: str, size: int, cut: float = 1.0) -> bytes:
    """A body of about ``size`` bytes, of which only so much is sent."""
    text = PLACES[place][2].replace("#", VALUES[shape](size)).encode("utf-8", "surrogatepass")
    return text[: math.ceil(len(text) * cut)]


def drawn(count: int, seed: int) -> list[tuple[str, str, int, float]]:
    """Arguments for :func:`body`. Each shape in each place as large as may be comes first, then any of any size."""
    random_ = random.Random(seed)
    every = [(shape, place, LARGEST, 1.0) for shape in VALUES for place in PLACES]
    random_.shuffle(every)
    rest = (
        (
            random_.choice(list(VALUES)),
            random_.choice(list(PLACES)),
            int(10 ** random_.uniform(2, math.log10(LARGEST))),
            random_.choice((1.0, 1.0, 1.0, random_.random())),
        )
        for _ in range(count)
    )
    return [*every, *rest][:count]
