"""Model requests of an OpenAI Agents SDK agent. The answers are streamed as events of the run."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agents import Model, ModelBehaviorError, ModelSettings
from agents.items import ModelResponse
from agents.usage import Usage as ModelUsage

from ..domain.messages import Usage
from ..execution.provider_outages import passes

if TYPE_CHECKING:
    from ..execution.context import RunContext

TEXT: Final = ("response.output_text.delta", "response.refusal.delta")
THINKING: Final = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
BAD_ENDS: Final = ("response.failed", "response.incomplete", "response.error", "error")

Calls = dict[int, tuple[str, str]]
"""Ids and names of the function calls of an answer, by the index of the call in the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer. ``model``: the model's name, or None if the provider did not return it."""

    response: ModelResponse
    model: str | None = None

    def usage(self) -> Usage:
        """Return the tokens of the answer and their cost. The cost is 0 if the price is unknown."""
        used = self.response.usage
        tokens = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens}
        return Usage(requests=used.requests, cost=_cost(self.model, used), **tokens)


async def requested(ctx: RunContext, model: Model, args: tuple[Any, ...], options: dict[str, Any], *, stream: bool) -> Answer:
    """Send a request and stream its answer to the run. Return the answer.

    If ``stream`` is False or the model cannot stream, request the answer in one piece. Raises the errors of the provider.
    Raises ModelBehaviorError if the answer failed or is incomplete, or if its stream breaks. The attribute ``temporary`` of a
    ModelBehaviorError is True if the cause is a temporary fault of the provider, and not the request.
    """
    if not stream:
        return await _whole(ctx, model, args, options)
    calls: Calls = {}
    done: list[Any] = []
    named = dict(zip(options, _with_usage([*options.values()]), strict=True))
    events: Any = None
    try:
        events = model.stream_response(*_with_usage(args), **named)
        if inspect.iscoroutine(events):
            events = await events  # without streams, this method may be a coroutine
        async for event in events:
            kind = event.type
            if kind == "response.completed":
                return _answer(event.response, done)
            if kind in BAD_ENDS:
                raise _bad_end(event)
            if kind == "response.output_item.done":
                done.append(event.item)
            else:
                _relay(ctx, event, kind, calls)
    except NotImplementedError:
        return await _whole(ctx, model, args, options)
    finally:
        if (close := getattr(events, "aclose", None)) is not None:
            await close()
    cut = ModelBehaviorError("the stream of the model ended without a response")
    cut.temporary = True  # type: ignore[attr-defined]
    raise cut


async def _whole(ctx: RunContext, model: Model, args: tuple[Any, ...], options: dict[str, Any]) -> Answer:
    response = await model.get_response(*args, **options)
    for item in response.output:
        _begin(ctx, item)
    name = getattr(model, "model", None)
    return Answer(response, name if isinstance(name, str) else None)


def _with_usage(values: Sequence[Any]) -> list[Any]:
    """Add ``include_usage`` to the arguments of a request. Without this argument, a stream of chat completions has no usage."""
    return [
        replace(value, include_usage=True) if isinstance(value, ModelSettings) and value.include_usage is None else value
        for value in values
    ]


def _relay(ctx: RunContext, event: Any, kind: str, calls: Calls) -> None:
    if kind in TEXT:
        ctx.stream_part(event.delta)
    elif kind in THINKING:
        ctx.stream_part(event.delta, "thinking")
    elif kind == "response.output_item.added" and event.item.type == "function_call":
        calls[event.output_index] = (event.item.call_id, event.item.name)
        ctx.stream_part("", "arguments", calls[event.output_index])
    elif kind == "response.function_call_arguments.delta":
        ctx.stream_part(event.delta, "arguments", calls.get(event.output_index, ("", "")))


def _begin(ctx: RunContext, item: Any) -> None:
    """Stream an item in one piece."""
    if item.type == "message":
        for part in item.content:
            ctx.stream_part(part.text if part.type == "output_text" else part.refusal)
    elif item.type == "function_call":
        ctx.stream_part(item.arguments, "arguments", (item.call_id, item.name))


def _answer(response: Any, done: list[Any]) -> Answer:
    """Return the answer of a completed response.

    If a provider left the items out of the response, take the items from the earlier ``done`` events.
    """
    used = response.usage
    usage = ModelUsage(requests=1)
    if used is not None:
        usage = ModelUsage(
            requests=1,
            input_tokens=used.input_tokens or 0,
            output_tokens=used.output_tokens or 0,
            total_tokens=used.total_tokens or 0,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    made = ModelResponse(output=[*(response.output or done)], usage=usage, response_id=response.id)
    return Answer(made, response.model if isinstance(response.model, str) else None)


def _bad_end(event: Any) -> ModelBehaviorError:
    """Return the error for an answer that failed or is incomplete.

    The provider's code shows whether the error is temporary.
    """
    response = getattr(event, "response", None)
    details = getattr(response, "error", None) or getattr(response, "incomplete_details", None)
    reason = getattr(details, "message", None) or getattr(details, "reason", None) or getattr(event, "message", None)
    error = ModelBehaviorError(f"the model's answer ended with {event.type}" + (f": {reason}" if reason else ""))
    error.temporary = passes(None, getattr(details or event, "code", None))  # type: ignore[attr-defined]
    return error


def _cost(model: str | None, used: ModelUsage) -> float:
    """Return the price of a request in US dollars, according to the price list of pydantic-ai."""
    if model is None:
        return 0.0
    try:
        from genai_prices import Usage as Priced
        from genai_prices import calc_price

        cached = getattr(used.input_tokens_details, "cached_tokens", 0) or 0
        tokens = Priced(input_tokens=used.input_tokens, cache_read_tokens=cached, output_tokens=used.output_tokens)
        return float(calc_price(tokens, model_ref=model).total_price)
    except (ImportError, LookupError, ValueError):
        return 0.0
