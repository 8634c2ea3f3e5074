"""Encode requests for runs and forks for the stored functions, and decode fork requests from rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from runyard.domain.runs import DEFAULT_OPTIONS
from runyard.domain.states import RunStatus
from runyard.models import Run, RunOptions
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest

from ...codec.damaged_rows import named
from ...codec.message_rows import new_message
from ...codec.values import Row, from_json, to_json
from .fan_out_rows import CandidateBatch, encoded_candidate


class RunRequest(NamedTuple):
    """The attributes of the Postgres type ``runyard.request``, in the order of the type.

    ``after_run_id`` is None here, because the stored functions set it.
    """

    thread_id: str
    run_id: str
    kind: str
    agent: str | None
    queue: str | None
    priority: str
    input: bytes | None
    input_id: str | None
    input_role: str | None
    input_calls: list[str] | None
    input_results: list[str] | None
    request_hash: str
    options: str
    metadata: str
    multitask_strategy: str
    parallel: bool
    parent_id: str | None
    after_run_id: str | None
    fork: str | None
    run_at: datetime | None
    delay: float | None
    app_version: str | None
    trace_context: str | None
    candidates: list[bytes] | None
    started_by_key: int | None
    started_by_run_id: str | None


def run_request(q: AcceptRequest, batch: CandidateBatch | None = None) -> RunRequest:
    """Encode a request for a run as a ``runyard.request``. ``batch``: the stored messages of a large fan-out. Raises
    InvalidInputError if the request is invalid."""
    message = new_message(q.input) if q.input is not None else None
    fan = q.fork.fan if q.fork is not None else None
    return RunRequest(
        thread_id=q.thread_id,
        run_id=q.run_id,
        kind=q.kind,
        agent=q.agent,
        queue=q.queue,
        priority=q.priority,
        input=message.payload if message else None,
        input_id=message.message_id if message else None,
        input_role=message.role if message else None,
        input_calls=message.calls if message else None,
        input_results=message.results if message else None,
        request_hash=to_json(q.request_hash),
        options=options_json(q.options),
        metadata=to_json(q.metadata),
        multitask_strategy=q.options.multitask_strategy,
        parallel=q.options.parallel,
        parent_id=q.parent_id,
        after_run_id=None,
        fork=to_json(fork_json(q.fork) | {"hash": q.fork.fork_hash} | _batch_json(batch)) if q.fork else None,
        run_at=q.run_at,
        delay=q.delay,
        app_version=q.app_version,
        trace_context=q.trace_context,
        candidates=None if fan is None or batch is not None else [encoded_candidate(message) for message in fan.messages],
        started_by_key=q.job.thread_key if q.job else None,
        started_by_run_id=q.job.run_id if q.job else None,
    )


def accepted_run(request: AcceptRequest, row: Row) -> Run:
    """Return the run that ``request`` made. ``row``: the ``runyard.accepted`` of the request."""
    return Run(
        thread_id=request.thread_id,
        run_id=request.run_id,
        kind=request.kind,
        status=RunStatus(row["status"]),
        agent=row["agent"],
        queue=row["queue"],
        priority=request.priority,
        lane=row["lane"],
        input=request.input,
        parent_id=request.parent_id,
        after_run_id=row["after_run_id"],
        options=request.options,
        run_at=row["run_at"],
        expires_at=row["expires_at"],
        accepted_at=row["accepted_at"],
        admitted_at=row["admitted_at"],
        metadata=request.metadata,
        app_version=request.app_version,
        trace_context=request.trace_context,
    )


def options_json(options: RunOptions) -> str:
    """Encode the options that do not have their default value. Most runs have none."""
    return "{}" if options is DEFAULT_OPTIONS else options.model_dump_json(exclude_defaults=True)


def _batch_json(batch: CandidateBatch | None) -> dict[str, Any]:
    return {} if batch is None else {"batch": {"id": batch.id, "total": batch.total}}


def cut_json(cut: Cut) -> dict[str, Any]:
    """Encode a cut for the stored functions."""
    return {
        "after_run_id": cut.after_run_id,
        "at_message_id": cut.at_message_id,
        "at_seq": cut.at_seq,
        "repair": cut.repair,
    }


def fork_json(fork: ForkRequest) -> dict[str, Any]:
    """Encode a fork request for the stored functions."""
    return {
        "src": fork.src,
        "new": fork.new,
        "cut": cut_json(fork.cut),
        "metadata": fork.metadata,
        "title": fork.title,
        "tags": dict(fork.tags),
        "agent": fork.agent,
        "reset_usage": fork.reset_usage,
        "fan": _fan_json(fork.fan) if fork.fan else None,
        # A worker of an older release does not know this field and fails the fork job. Without the field, it would drop the
        # prompt.
        **({"prompt_run_id": fork.prompt_run_id} if fork.prompt_run_id is not None else {}),
    }


def _fan_json(fan: FanOut) -> dict[str, Any]:
    return {"max_parallel": fan.max_parallel, "stop": fan.stop, "judge": fan.judge, "threads": fan.threads}


@named("fork request")
def fork_request(row: Row) -> ForkRequest | None:
    """Decode the request of a fork job from the row of its run. Return None for a run of another kind. The request of a fan-out
    has the number of its candidates, without their messages."""
    if row["fork"] is None:
        return None
    fields = from_json(row["fork"])
    del fields["hash"]
    batch, fan = fields.pop("batch", None), None
    if fields["fan"] is not None:
        fan = FanOut(total=len(row["candidates"]) if batch is None else batch["total"], **fields["fan"])
    return ForkRequest(**fields | {"cut": Cut(**fields["cut"]), "fan": fan})
