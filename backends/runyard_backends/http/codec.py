"""Conversion between models and the JSON of requests and replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from runyard.models import JsonObject, Message, RetryPolicy
from runyard.ports.commands import AcceptRequest, ForkRequest
from runyard.ports.queries import PageRequest
from runyard.ports.results import Page

from .unsupported import only_direct

M = TypeVar("M", bound=BaseModel)


def read(model: type[M], data: Mapping[str, Any]) -> M:
    """Decode ``data`` as ``model``. Fields that a newer server added are ignored at every level."""
    return model.model_validate(data, extra="ignore")


def read_page(model: type[M], data: Mapping[str, Any]) -> Page[M]:
    """Decode a page of a list."""
    return Page([read(model, item) for item in data["items"]], data["next"])


def paging(page: PageRequest) -> dict[str, Any]:
    """Return the query parameters of a request for ``page``."""
    return {"limit": page.limit, "cursor": page.cursor}


def given(**fields: Any) -> JsonObject:
    """Return the ``fields`` that are not None. A request has no field for None."""
    return {name: value for name, value in fields.items() if value is not None}


def message(stored: Message | None) -> JsonObject | None:
    """Encode a message for a request. Raises CapabilityMissingError for a message with usage."""
    if stored is None:
        return None
    if stored.usage is not None:
        raise only_direct("a message with usage")
    fields = {"id", "role", "content", "stop_reason", "metadata"} | ({"source"} if stored.source is not None else set())
    return stored.model_dump(mode="json", include=fields)


def prompt(request: AcceptRequest) -> JsonObject:
    """Encode the body of a prompt. A prompt without a message has ``message: null``."""
    options = request.options
    return {
        "message": message(request.input),
        **given(
            run_id=request.run_id,
            agent=request.agent,
            queue=request.queue,
            parent_id=request.parent_id,
            priority=request.priority,
            run_at=request.run_at.isoformat() if request.run_at is not None else None,
            delay=request.delay,
            timeout=options.timeout,
            expires_in=options.expires_in,
            max_attempts=options.max_attempts,
            retry=options.retry.model_dump(mode="json") if options.retry != RetryPolicy() else None,
            multitask_strategy=options.multitask_strategy,
            parallel=options.parallel,
            webhook=options.webhook,
            metadata=request.metadata,
        ),
    }


def fork(request: ForkRequest) -> JsonObject:
    """Encode the body of a fork."""
    cut = request.cut
    return given(
        new_thread_id=request.new,
        after_run_id=cut.after_run_id,
        at_message_id=cut.at_message_id,
        at_seq=cut.at_seq,
        repair=cut.repair,
        metadata=request.metadata,
        title=request.title,
        tags=dict(request.tags),
        agent=request.agent,
        reset_usage=request.reset_usage,
    )


def probe(request: AcceptRequest, cut: ForkRequest) -> JsonObject:
    """Encode the body of a probe."""
    return given(
        message=message(request.input),
        after_run_id=cut.cut.after_run_id,
        run_id=request.run_id,
        agent=request.agent,
        timeout=request.options.timeout,
    )


def fan_out(request: AcceptRequest, cut: ForkRequest) -> JsonObject:
    """Encode the body of a fan-out."""
    fan = cut.fan
    assert fan is not None
    return given(
        messages=[message(candidate) for candidate in fan.messages],
        after_run_id=cut.cut.after_run_id,
        run_id=request.run_id,
        agent=request.agent,
        timeout=request.options.timeout,
        threads=fan.threads,
        stop=fan.stop,
        judge=fan.judge,
        max_parallel=fan.max_parallel,
    )
