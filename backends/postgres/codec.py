"""Rows to models and back.

A message's payload is msgpack of what is not a column; one that starts with ``{`` is JSON from SQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg
import msgpack

from runner.bounds import check_content, check_value
from runner.errors import DataCorruptedError, InvalidInputError
from runner.exchange import (
    AcceptRequest,
    Attempt,
    Cut,
    Effects,
    Ended,
    FanOut,
    ForkRequest,
    Job,
    OutsideEvent,
    RunRef,
    Step,
    Write,
    queued_event,
)
from runner.legible import brief
from runner.models import (
    MESSAGES,
    AttemptInfo,
    ErrorInfo,
    HitlRequest,
    Message,
    Run,
    RunOptions,
    Thread,
    Usage,
    check_fields,
    check_id,
    check_message,
    check_name,
    check_requests,
    check_usage,
)
from runner.states import RunStatus

Row = asyncpg.Record
Decoded = TypeVar("Decoded")
Entry = TypeVar("Entry", Run, Thread, HitlRequest, AttemptInfo)

_UNDECODABLE: Final = (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgpack.UnpackException)
"""What decoding a row raises that holds something else than we store; pydantic's errors are ValueErrors."""
_NAMES: Final = ("thread_id", "run_id", "request_id", "step_key")
"""Columns by which a row is found again."""
_MADE_OF: Final = {"body": ("payload", "answer_schema", "on_deadline")}
"""Fields that are made of a column of another name."""


def pack(value: Any) -> bytes:
    """A value as msgpack; lone surrogates survive."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"value cannot be stored: {error}") from error
    return packed


def unpack(data: bytes) -> Any:
    """The value that :func:`pack` stored, or the JSON object that SQL stored; alone, the byte ``{`` is msgpack for 123."""
    if data[:1] == b"{" and len(data) > 1:
        return json.loads(data)
    return msgpack.unpackb(data, raw=False, strict_map_key=False, unicode_errors="surrogatepass")


def to_json(value: Any) -> str:
    """JSON for a jsonb column, which holds no NUL characters, lone surrogates, NaN or infinity."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"value cannot be stored as JSON: {error}") from error
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):  # a backslash that is text is written as two
        raise InvalidInputError("JSON values must not contain NUL characters")
    return text


def from_json(text: str | None) -> Any:
    """The value of a jsonb column."""
    return None if text is None else json.loads(text, parse_int=_integer)


def _integer(digits: str) -> int | float:
    """A number without a fraction. Integers have 64 bits, so that a longer one was a float: jsonb writes 1e20 out."""
    return int(digits) if len(digits) < 20 or -(2**63) <= int(digits) < 2**64 else float(digits)


def check_uuid(value: str, name: str = "message id") -> str:
    """Return ``value`` if it is a UUID, else raise InvalidInputError (semantics: B1)."""
    try:
        UUID(value)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidInputError(f"{name} must be a UUID, got {brief(value)}", field=name) from error
    return value


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


NewMessage = tuple[str, str, bytes, list[str] | None, list[str] | None]


def new_message(message: Message, *, by_agent: bool = False) -> NewMessage:
    """A ``runyard.new_message``. ``by_agent``: an attempt or a checkpointer appends it; of a caller's, what only an agent may
    say is left out (semantics: M5). Raises InvalidInputError for what no message is, or cannot be stored; its bytes are counted
    there."""
    check_fields(check_message(message))
    check_content(message)
    body: dict[str, Any] = {"content": [_without_none(part.__dict__) for part in message.content]}
    if message.stop_reason is not None:
        body["stop_reason"] = message.stop_reason
    if message.usage is not None:
        body["usage"] = check_usage(message.usage).__dict__
    if message.metadata:
        body["metadata"] = message.metadata
    if by_agent and message.provider_details is not None:
        body["provider_details"] = message.provider_details
    calls = [part.id for part in message.tool_calls] or None
    results = [part.call_id for part in message.tool_results] or None
    return check_uuid(message.id), message.role, pack(body), calls, results


def _noted(note: str, calls: Sequence[str] | None, results: Sequence[str] | None) -> dict[str, Any]:
    """The content of a message that the store wrote itself: results that close open calls, or what is left after erasing."""
    content: list[dict[str, Any]] = [
        {"type": "tool_result", "call_id": call, "content": note, "is_error": True} for call in results or ()
    ]
    content += [{"type": "tool_call", "id": call, "name": "erased", "arguments": {}} for call in calls or ()]
    return {"content": content or [{"type": "text", "text": note}]}


def messages(rows: Sequence[Row], **thread: str | int) -> list[Message]:
    """Messages from few rows, which begin with the columns of a message in the order of sql/queries.sql; :mod:`.history`
    is for many.

    ``thread``: its ``thread_id``, or else its ``thread_key``. Raises DataCorruptedError, which names it and the message.
    """
    try:
        return MESSAGES.validate_python(_fields(rows))
    except _UNDECODABLE as error:
        raise _corrupted(rows, thread) from error


def _corrupted(rows: Sequence[Row], thread: Mapping[str, str | int]) -> DataCorruptedError:
    """What is wrong with the first of ``rows`` that is no message."""
    for row in rows:
        try:
            MESSAGES.validate_python(_fields([row]))
        except _UNDECODABLE as error:
            where = " ".join(f"{name} {value}" for name, value in thread.items())
            return DataCorruptedError(
                f"message {row[1]} of {where} cannot be decoded ({type(error).__name__}); did something else write the row?",
                message_id=row[1],
                seq=row[0],
                **thread,
            )
    raise AssertionError("each of the messages can be decoded")


def _fields(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    for seq, id_, parent_id, run_id, role, payload, note, calls, results, created_at, *_ in rows:
        fields = _noted(note, calls, results) if payload is None else unpack(payload)
        fields["id"] = id_
        fields["role"] = role
        fields["run_id"] = run_id
        fields["parent_id"] = parent_id
        fields["seq"] = seq
        fields["created_at"] = created_at
        yield fields


def _named(what: str) -> Callable[[Callable[[Row], Decoded]], Callable[[Row], Decoded]]:
    """Have a decoder of rows raise DataCorruptedError, which names the row, where it cannot decode one."""

    def decorate(decode: Callable[[Row], Decoded]) -> Callable[[Row], Decoded]:
        @wraps(decode)
        def decoder(row: Row) -> Decoded:
            try:
                return decode(row)
            except _UNDECODABLE as error:
                names = {name: row[name] for name in _NAMES if row.get(name) is not None}
                where = ", ".join(f"{name} {value}" for name, value in names.items())
                message = (
                    f"the {what} with {where} cannot be decoded ({type(error).__name__}); did something else write the row?"
                )
                raise DataCorruptedError(message, **names) from error

        return decoder

    return decorate


def _entry(decode: Callable[[Any], Entry], **empty: Any) -> Callable[[Row], Entry]:
    """The decoder for entries of lists: fields that cannot be decoded are left empty, and named in ``damaged``.

    ``empty``: the columns that hold something encoded, each with an empty value. Raises DataCorruptedError only where the
    other columns cannot be read.
    """

    def readable(row: Mapping[str, Any]) -> bool:
        try:
            decode(row)
        except DataCorruptedError:
            return False
        return True

    def decoder(row: Row) -> Entry:
        try:
            return decode(row)
        except DataCorruptedError:
            stored = dict(row)
        damaged = [name for name in empty if not readable(stored | empty | {name: stored[name]})]
        entry = decode(stored | {name: empty[name] for name in damaged})
        entry.damaged = sorted(field for name in damaged for field in _MADE_OF.get(name, (name,)))
        return entry

    return decoder


@_named("run")
def run(row: Row) -> Run:
    """A run from its row."""
    return Run(
        thread_id=row["thread_id"],
        run_id=row["run_id"],
        kind=row["kind"],
        status=RunStatus(row["status"]),
        agent=row["agent"],
        queue=row["queue"],
        priority=row["priority"],
        lane=row["lane"],
        attempt=row["attempt"],
        error_count=row["error_count"],
        crash_count=row["crash_count"],
        input=_input(row),
        parent_id=str(row["parent_id"]) if row["parent_id"] else None,
        after_run_id=row["after_run_id"],
        options=_options(row["options"]),
        run_at=row["run_at"],
        expires_at=row["expires_at"],
        accepted_at=row["accepted_at"],
        admitted_at=row["admitted_at"],
        started_at=row["started_at"],
        suspended_at=row["suspended_at"],
        finished_at=row["finished_at"],
        cancel_requested_at=row["cancel_requested_at"],
        completion_seq=row["completion_seq"],
        fence=row["fence"],
        worker_id=row["worker_id"] if row["finished_at"] is None else None,
        app_version=row["app_version"],
        error=error_info(row["error"]),
        result=unpack(row["result"]) if row["result"] is not None else None,
        usage=Usage(**from_json(row["usage"])) if row["usage"] else Usage(),
        metadata=from_json(row["metadata"]),
        trace_context=row["trace_context"],
        event_id=row["event_id"],
        deleted_at=row["emptied_at"],
        omitted=row.get("omitted") or [],
    )


run_entry = _entry(run, input=None, options="{}", error=None, result=None, usage=None, metadata="{}")


@_named("attempt")
def _attempt(row: Row) -> AttemptInfo:
    return AttemptInfo(
        fence=row["fence"],
        worker_id=row["worker_id"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
        error=error_info(row["error"]),
    )


attempt_entry = _entry(_attempt, error=None)


def run_request(q: AcceptRequest) -> tuple[Any, ...]:
    """A ``runyard.request``."""
    check_id(q.thread_id, "thread_id")
    check_id(q.run_id, "run_id")
    check_name(q.agent, "agent")
    check_name(q.queue, "queue")
    if q.parent_id is not None:
        check_uuid(q.parent_id, "parent_id")
    message = new_message(q.input) if q.input is not None else None
    return (
        q.thread_id,
        q.run_id,
        q.kind,
        q.agent,
        q.queue,
        q.priority,
        message[2] if message else None,
        message[0] if message else None,
        message[1] if message else None,
        message[3] if message else None,
        message[4] if message else None,
        to_json(q.request_hash),
        options_json(q.options),
        to_json(q.metadata),
        q.options.multitask_strategy,
        q.options.parallel,
        q.parent_id,
        None,
        to_json(fork_json(q.fork) | {"hash": q.fork.fork_hash}) if q.fork else None,
        q.run_at,
        q.delay,
        q.app_version,
        q.trace_context,
        [_candidate(message) for message in q.fork.fan.messages] if q.fork and q.fork.fan else None,
        q.job.thread_key if q.job else None,
        q.job.run_id if q.job else None,
    )


def accepted_run(request: AcceptRequest, row: Row) -> Run:
    """The run that ``request`` made; ``row`` is its ``runyard.accepted``."""
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


_DEFAULT_OPTIONS = RunOptions()


def options_json(options: RunOptions) -> str:
    """Options without their defaults; most runs have nothing else."""
    return "{}" if options == _DEFAULT_OPTIONS else options.model_dump_json(exclude_defaults=True)


def _options(text: str) -> RunOptions:
    return _DEFAULT_OPTIONS if text == "{}" else RunOptions.model_validate_json(text)


def _input(row: Row) -> Message | None:
    if row["input_id"] is None or row["input"] is None:
        return None
    return Message.model_validate({**unpack(row["input"]), "id": str(row["input_id"]), "role": row["input_role"]})


def error_json(error: ErrorInfo) -> str:
    """Why a run failed, for its column."""
    check_value(error.__dict__, "error")
    return to_json(error.__dict__)


def error_info(text: str | None) -> ErrorInfo | None:
    """Why a run failed, from its column."""
    return None if text is None else ErrorInfo.model_validate_json(text)


@_named("extra")
def claimed_extra(row: Row) -> dict[str, Any]:
    """What a run that was claimed starts from: its thread's extra, and its own from earlier attempts."""
    extra: dict[str, Any] = from_json(row["thread_extra"]) | (from_json(row["extra"]) or {})
    return extra


@_named("step")
def step(row: Row) -> Step:
    """A step of the ledger from its row."""
    result = unpack(row["result"]) if row["result"] is not None else None
    return Step(row["step_key"], row["done"], result, row["fence"])


@_named("thread")
def thread(row: Row) -> Thread:
    """A thread from its row."""
    return Thread(
        thread_id=row["thread_id"],
        parent_thread_id=row["parent_thread_id"],
        forked_after_run_id=row["forked_after_run_id"],
        forked_at_seq=row["forked_at_seq"],
        agent=row["agent"],
        title=row["title"],
        tags=from_json(row["tags"]),
        extra=from_json(row["extra"]),
        config=from_json(row["config"]),
        usage=Usage(**from_json(row["usage"])),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        omitted=row.get("omitted") or [],
    )


thread_entry = _entry(thread, tags="{}", extra="{}", config="{}", usage="{}")


def cut_json(cut: Cut) -> dict[str, Any]:
    """A cut as the stored functions read it."""
    if cut.at_message_id is not None:
        check_uuid(cut.at_message_id, "at_message_id")
    return {
        "after_run_id": cut.after_run_id,
        "at_message_id": cut.at_message_id,
        "at_seq": cut.at_seq,
        "repair": cut.repair,
    }


def fork_json(fork: ForkRequest) -> dict[str, Any]:
    """A fork request as the stored functions read it."""
    check_name(fork.agent, "agent")
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
    }


def _fan_json(fan: FanOut) -> dict[str, Any]:
    return {"max_parallel": fan.max_parallel, "stop": fan.stop, "judge": fan.judge, "threads": fan.threads}


def _candidate(message: Message) -> bytes:
    check_uuid(message.id)
    check_content(message)
    return pack(message.model_dump(exclude={"run_id", "parent_id", "seq", "created_at", "provider_details"}))


@_named("fork request")
def fork_request(row: Row) -> ForkRequest | None:
    """The request of a fork job, as its run kept it; None for a run of another kind."""
    if row["fork"] is None:
        return None
    fields = from_json(row["fork"])
    del fields["hash"]
    fan = None
    if fields["fan"] is not None:
        fan = FanOut(messages=MESSAGES.validate_python([unpack(body) for body in row["candidates"]]), **fields["fan"])
    return ForkRequest(**fields | {"cut": Cut(**fields["cut"]), "fan": fan})


NewRequest = tuple[str, str, bytes, Any, float | None, bytes | None]


def new_request(request: HitlRequest) -> NewRequest:
    """A ``runyard.new_request``."""
    check_requests(request)
    body = {"payload": request.payload, "answer_schema": request.answer_schema, "on_deadline": request.on_deadline}
    choice = request.on_deadline or {}
    otherwise = pack(choice["answer"]) if "answer" in choice else None
    return request.request_id, request.kind, pack(_without_none(body)), request.deadline_at, request.timeout, otherwise


@_named("HITL request")
def request(row: Row) -> HitlRequest:
    """A HITL request from its row, joined with its thread's id and its run's agent."""
    return HitlRequest(
        request_id=row["request_id"],
        kind=row["kind"],
        **unpack(row["body"]),
        deadline_at=row["deadline_at"],
        thread_id=row["thread_id"],
        run_id=row["run_id"],
        agent=row["agent"],
        created_at=row["created_at"],
        answer=unpack(row["answer"]) if row["answer"] is not None else None,
        response_id=row["response_id"],
        answered_by=row["answered_by"],
        on_behalf_of=row["on_behalf_of"],
        answered_at=row["answered_at"],
    )


request_entry = _entry(request, kind="question", body=pack({}), answer=None)


def job(fields: dict[str, Any]) -> Job:
    """A job from the JSON of a ``runyard.job``."""
    queued = fields.pop("queued")
    return Job(**fields, queued=queued_event(run_id=fields["run_id"], **queued) if queued else None)


def effects(text: str | None) -> Effects:
    """Effects from the JSON that a verb returned."""
    if text is None:
        return Effects()
    found = json.loads(text)
    return Effects(
        jobs=[job(fields) for fields in found.get("jobs", ())],
        events=[
            OutsideEvent(
                *(RunRef(e["thread_key"], e["run_id"]), e["thread_id"], e["event_id"], e["type"], e["data"]),
                *(e["agent"], e["queue"]),
            )
            for e in found.get("events", ())
        ],
        cancels=[RunRef(c["thread_key"], c["run_id"]) for c in found.get("cancels", ())],
        withdrawn=[replace(job(fields), queued=None, over=True) for fields in found.get("withdrawn", ())],
    )


def attempt_write(write: Write) -> tuple[Any, ...]:
    """A ``runyard.attempt_write``."""
    check_value(write.extra, "extra")
    check_value(write.result, "result")
    attempt: Attempt = write.attempt
    return (
        attempt.thread_key,
        attempt.run_id,
        attempt.fence,
        many(write.messages),
        to_json(write.extra) if write.extra is not None else None,
        to_json(check_usage(write.usage).__dict__) if write.usage is not None else None,
        pack(write.result) if write.result is not None else None,
        write.first_event,
    )


def ended(row: Row) -> Ended:
    """How an attempt ended, from a ``runyard.ended``."""
    return Ended(
        status=RunStatus(row["status"]),
        event_id=row["event_id"],
        error=error_info(row["error"]),
        effects=effects(row["effects"]),
    )


def many(items: Sequence[Message]) -> list[NewMessage]:
    """Several ``runyard.new_message`` of an agent."""
    return [new_message(message, by_agent=True) for message in items]
