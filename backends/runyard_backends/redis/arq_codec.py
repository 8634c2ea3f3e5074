"""Jobs and results in arq's format, for jobs that arq's own client enqueues.

Bodies and results are msgpack, a serializer that arq documents. A pickled body is never loaded, because loading it can execute
code of its sender. A pickled job is refused. Its result is also pickled, so that the producer can read the reason.

:func:`packb` and :func:`unpackb` are a serializer for producers. With :func:`unpackb`, ``Job.result()`` of a failed job raises
the error itself. With plain ``msgpack``, it raises arq's ``SerializationError`` with the error as a dict.
"""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgpack
from arq.jobs import SerializationError, serialize_result

from runyard.domain.quoting import brief
from runyard.errors import InvalidInputError, RunyardError, from_dict

from .msgpack_bounds import count_values

CANCELLED: Final = "run_cancelled"
"""The code of the failure of a job whose run was cancelled."""
MAX_FUNCTION: Final = 100
"""Maximum number of characters of a function's name in a result."""
SERIALIZER: Final = "create the pool with job_serializer=msgpack.packb and job_deserializer=msgpack.unpackb"

_PICKLE_PROTOCOLS: Final = range(2, 6)


def packb(value: Any) -> bytes:
    """Encode ``value`` with msgpack. Pass this function to arq as ``job_serializer``. A lone surrogate becomes a question
    mark."""
    return cast(bytes, msgpack.packb(value, unicode_errors="replace"))


def unpackb(data: bytes) -> Any:
    """Decode a job or a result. Pass this function to arq as ``job_deserializer``. A failure becomes an exception, which arq's
    client raises.

    The exception is the error of :mod:`runyard.errors`, or ``asyncio.CancelledError`` if the run was cancelled.
    """
    value = msgpack.unpackb(data)
    if isinstance(value, dict) and value.get("s") is False and isinstance(failure := value.get("r"), dict):
        text = str(failure.get("message"))
        value["r"] = asyncio.CancelledError(text) if failure.get("code") == CANCELLED else from_dict(failure)
    return value


@dataclass(frozen=True, slots=True)
class ArqJob:
    """A decoded job. ``job_try``: arq's ``_job_try``. ``enqueued_ms``: the producer's time of the enqueue, in ms since 1970.
    ``values``: the number of members of all arrays and maps in the job."""

    function: str = "<unknown>"
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    job_try: int | None = None
    enqueued_ms: int = 0
    values: int = field(default=0, compare=False)


UNKNOWN: Final = ArqJob()
"""The placeholder for a job that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of a job. ``value``: the result, or the failure as ``{"code", "message", "details"}``. Times are
    milliseconds since 1970."""

    success: bool
    value: Any
    started_ms: int
    finished_ms: int
    attempts: int = 1


def failure(error: RunyardError) -> dict[str, Any]:
    """Return ``error`` as the value of a failed job."""
    return error.to_dict()


def is_pickled(body: bytes) -> bool:
    """Return True if ``body`` begins like a pickle of arq's default serializer. A job in msgpack begins with other bytes."""
    return len(body) > 1 and body[0] == 0x80 and body[1] in _PICKLE_PROTOCOLS


def decode_job(body: bytes) -> ArqJob:
    """Decode the job in ``body``. The values are counted before they are built.

    Raises InvalidInputError if the body is not a job in msgpack, or exceeds a bound of :mod:`.msgpack_bounds`. The message
    names the serializer to use, or the bound.
    """
    if is_pickled(body):
        raise InvalidInputError(f"the job is pickled, but pickles are not loaded; {SERIALIZER}", field="job_serializer")
    values = count_values(body)
    try:
        value = msgpack.unpackb(body, unicode_errors="surrogatepass")
    except Exception as error:  # msgpack documents no common base of its errors
        why = f"{type(error).__name__}: {brief(str(error))}"
        raise InvalidInputError(f"the job is not msgpack ({why}); {SERIALIZER}", field="job_serializer") from None
    match value:
        case {"f": str(function), "a": list(args), "k": dict(kwargs), "t": None | int() as job_try, "et": int(enqueued_ms)}:
            if all(isinstance(name, str) for name in kwargs) and 0 <= enqueued_ms < 2**48:
                return ArqJob(function, args, kwargs, job_try, enqueued_ms, values)
    raise InvalidInputError("the job is msgpack, but not a job of arq 0.28", field="job")


def encode_result(job_id: bytes, queue: str, job: ArqJob, outcome: JobOutcome, *, pickled: bool = False) -> bytes:
    """Return the result of a job in arq's format. ``pickled``: True if the producer reads only pickles.

    Omit arguments that cannot be encoded. If the value cannot be encoded, the result is a failure.
    """
    for known in (job, ArqJob(job.function, enqueued_ms=job.enqueued_ms)):
        value = SerializationError(outcome.value["message"]) if pickled else outcome.value
        encoded = serialize_result(
            function=known.function[:MAX_FUNCTION],
            args=cast(tuple[Any, ...], known.args),
            kwargs=known.kwargs,
            job_try=max(outcome.attempts, known.job_try or 1),
            enqueue_time_ms=known.enqueued_ms,
            success=outcome.success,
            result=value,
            start_ms=outcome.started_ms,
            finished_ms=outcome.finished_ms,
            ref=brief(job_id),
            queue_name=queue,
            job_id=job_id.decode(errors="replace"),
            serializer=pickle.dumps if pickled else packb,
        )
        if encoded is not None:
            return encoded
    raise AssertionError("a result without arguments can be encoded")
