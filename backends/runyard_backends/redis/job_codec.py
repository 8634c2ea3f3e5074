"""Encode and decode jobs in the format in which arq stores a job, with msgpack as the serializer. A job has only ids. The
content of its run is in Postgres."""

from __future__ import annotations

import time
from typing import Any, Final, cast

import msgpack
from arq.jobs import deserialize_job_raw, serialize_job

from runyard.models import RunKind
from runyard.ports.scheduling import Job

VERSION: Final = 1
"""Version of the keyword arguments in a job. ``scheduler.py`` puts a job of another version back into the queue."""


def packb(value: Any) -> bytes:
    """Encode ``value`` with msgpack. Strings can contain lone surrogates."""
    return cast(bytes, msgpack.packb(value, unicode_errors="surrogatepass"))


def unpackb(data: bytes) -> Any:
    """Decode the output of :func:`packb`."""
    return msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=False)


class UnknownEnvelopeError(Exception):
    """The payload was written by another version, or is not a job."""


def encode(job: Job) -> bytes:
    """Encode ``job`` in arq's format, as a call of the function ``kind(thread_key=…, run_id=…, lane=…, queue=…, priority=…,
    tenant=…, ready_at=…, v=1)``."""
    kwargs = {
        "thread_key": job.thread_key,
        "run_id": job.run_id,
        "lane": job.lane,
        "queue": job.queue,
        "priority": job.priority,
        "tenant": job.tenant,
        "ready_at": job.ready_at,
        "v": VERSION,
    }
    return serialize_job(job.kind, (), kwargs, None, int(time.time() * 1000), serializer=packb)


def decode(payload: bytes) -> Job:
    """Decode the job in ``payload``. Raises :class:`UnknownEnvelopeError` if :func:`encode` of this version did not write
    it."""
    try:
        kind, _args, kwargs, _try, _enqueued_ms = deserialize_job_raw(payload, deserializer=unpackb)
        version = kwargs.pop("v")
        if version != VERSION:
            raise UnknownEnvelopeError(f"the job has version {version}, and this worker reads version {VERSION}")
        return Job(kind=cast(RunKind, kind), **kwargs)
    except UnknownEnvelopeError:
        raise
    except Exception as error:  # another version may have written any bytes
        raise UnknownEnvelopeError(f"not a job: {payload[:80]!r}") from error
