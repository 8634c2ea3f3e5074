"""A model of the OpenAI Agents SDK for tests. A script makes its answer from the items of the request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agents import Model
from agents.items import ModelResponse
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

Items: TypeAlias = "list[dict[str, Any]]"
Output: TypeAlias = "ResponseOutputMessage | ResponseFunctionToolCall"
Script: TypeAlias = "Callable[[Items], str | Output | Sequence[Output] | Exception]"


def says(text: str, id: str = "msg_1") -> ResponseOutputMessage:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id=id, type="message", role="assistant", status="completed", content=[part])


def calls(name: str, call_id: str = "call_1", **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        id=f"fc_{call_id}",
        type="function_call",
        call_id=call_id,
        name=name,
        arguments=json.dumps(arguments),
        status="completed",
    )


def texts(items: Items) -> list[str]:
    """Return the texts of the messages in ``items``."""
    return [_joined(item["content"]) for item in items if "role" in item]


def results(items: Items) -> list[Any]:
    """Return the outputs of tools since the last message of the user."""
    last = max((n for n, item in enumerate(items) if item.get("role") == "user"), default=-1)
    return [item["output"] for item in items[last:] if item.get("type") == "function_call_output"]


def _joined(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@dataclass
class ItemModel(Model):
    """A model that answers with the result of ``script`` for the items of a request. ``requests``: all these items."""

    script: Script
    requests: list[Items] = field(default_factory=list)
    streams: bool = True

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        from agents.usage import Usage

        output = self._output(input)
        return ModelResponse(output=[*output], usage=Usage(requests=1, input_tokens=7, output_tokens=3), response_id="resp_1")

    async def stream_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        if not self.streams:
            raise NotImplementedError
        output = self._output(input)
        number = 0
        for index, item in enumerate(output):
            number += 1
            yield ResponseOutputItemAddedEvent(
                type="response.output_item.added", item=item, output_index=index, sequence_number=number
            )
            place = {"item_id": item.id or "", "output_index": index, "sequence_number": number}
            if isinstance(item, ResponseOutputMessage):
                for word in item.content[0].text.split(" "):  # type: ignore[union-attr]
                    piece = word if word == item.content[0].text.split(" ")[0] else f" {word}"  # type: ignore[union-attr]
                    yield ResponseTextDeltaEvent(
                        type="response.output_text.delta", delta=piece, content_index=0, logprobs=[], **place
                    )
            else:
                yield ResponseFunctionCallArgumentsDeltaEvent(
                    type="response.function_call_arguments.delta", delta=item.arguments, **place
                )
        details = {
            "input_tokens_details": InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            "output_tokens_details": OutputTokensDetails(reasoning_tokens=0),
        }
        usage = ResponseUsage(input_tokens=7, output_tokens=3, total_tokens=10, **details)
        response = Response(
            id="resp_1", created_at=0, model="fake", object="response", output=[*output], tool_choice="auto", tools=[],
            parallel_tool_calls=True, usage=usage,
        )  # fmt: skip
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=number + 1)

    def _output(self, input: Any) -> Sequence[Output]:
        items: Items = [{"role": "user", "content": input}] if isinstance(input, str) else [*input]
        self.requests.append(items)
        made = self.script(items)
        if isinstance(made, Exception):
            raise made
        if isinstance(made, str):
            return [says(made)]
        return [made] if isinstance(made, ResponseOutputMessage | ResponseFunctionToolCall) else made
