"""One queue of arq, and the records of its jobs in Redis. Producers enqueue the jobs with arq's own client.

A job stays in arq's queue until its result is written. Postgres stores the run much earlier. The hash ``arq_jobs`` has every
job that a worker has looked at. The hash ``arq_runs`` has the jobs with an accepted run. The sorted set ``arq_looks`` has the
time of each job's next look. The hash ``arq_aborts`` has the aborts that a look has returned. Each script is atomic. If a
worker dies between two scripts, the next look at the job is due at the end of the lease.

arq's client sends scores in whole milliseconds. A look replaces the score of a job by QUEUED_SCORE or DEFERRED_SCORE, which
have a fraction. A job with any other score is new.

Producers and workers need one Redis server. A cluster cannot be used, because the keys of arq's client have no hash tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Final

from arq.constants import (
    abort_job_max_age,
    abort_jobs_ss,
    health_check_key_suffix,
    in_progress_key_prefix,
    job_key_prefix,
    result_key_prefix,
    retry_key_prefix,
)

from runyard.domain.quoting import brief
from runyard.domain.size_limits import MESSAGE_BYTES
from runyard.errors import BackendUnavailableError, InvalidInputError, RunyardError

from .connection import RedisServer
from .job_codec import packb, unpackb
from .scripts import Call, script

JOBS_PER_LOOK: Final = 100
"""Maximum number of jobs that one look returns. Between two looks, the worker serves its other queues."""
JOB_BYTES: Final = MESSAGE_BYTES + 2**21
"""Maximum bytes of the body of a job. The body has a message, and at most 2 MiB of other data."""
BYTES_PER_LOOK: Final = 2 * JOB_BYTES
"""Maximum bytes of all bodies that one look returns."""
LEASE_SECONDS: Final = 5.0
"""Seconds after which a look returns a job again if no worker has called ``keep`` or ``answer`` for it."""
IN_PROGRESS_SECONDS: Final = 600.0
"""Seconds for which arq shows the status ``in_progress`` of a started job. With each look at the job, this time begins anew."""
BODY_GONE: Final = -2
"""Value of the expiry of a job if its body had expired before the first look."""
MAX_SCORE_MS: Final = 10**15
"""The largest due time of a job, in ms before or after 1970. A score beyond this bound is read as the bound."""
QUEUED_SCORE: Final = -1_000_000_000_000_000.5
"""Score of a due job after a look. arq shows the job as queued."""
DEFERRED_SCORE: Final = 1_000_000_000_000_000.5
"""Score after a look of a job that is not due. arq shows the job as deferred."""
ABORT_MS: Final = abort_job_max_age * 1000
"""Milliseconds by which an abort can be older than the enqueue of its job, because the two times may come from different
clocks. An older abort was for an earlier job with the same id. After its last write, the hash ``arq_aborts`` is kept for the
same time."""
ABORTS_PER_LOOK: Final = 100
"""Maximum number of aborts in arq's set that one look checks. A checked abort makes its job due at once. There is one
exception: while a worker may be accepting the job's run, the job does not become due."""

_ARQ_PREFIXES: Final = (job_key_prefix, in_progress_key_prefix, result_key_prefix, retry_key_prefix)


@dataclass(frozen=True, slots=True)
class AcceptedRun:
    """The run of a job: its thread, and the times of its acceptance and of the job's enqueue in ms since 1970. The run id is
    the job's id."""

    thread_id: str
    accepted_ms: int
    enqueued_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArqLook:
    """A job of the queue at the time ``now_ms``. Times are in ms since 1970.

    ``others``: the number of other jobs of the queue that have no run and no result. ``score``: the due time that the producer
    has given. ``expires_ms``: the time by which the job must start, None for any time, or BODY_GONE. ``record``: the record of
    the run, as :meth:`ArqQueue.keep` wrote it, or empty. ``abort_ms``: the time of ``Job.abort()``, or None. ``aborting``:
    True if the client has sent only the first of the two commands of ``Job.abort()``. ``body``: the job in arq's format, if no
    run was accepted. The ``body`` is empty if the job has more than JOB_BYTES. ``size``: the number of bytes of the body.
    """

    id: bytes
    token: bytes
    now_ms: int
    others: int
    score: int
    expires_ms: int | None
    record: bytes
    abort_ms: int | None
    aborting: bool
    body: bytes
    size: int

    @property
    def run(self) -> AcceptedRun | None:
        """The run that was accepted for the job, or None."""
        return AcceptedRun(*unpackb(self.record)) if self.record else None

    @property
    def expired(self) -> bool:
        """True if the deadline of the job (``_expires`` of arq) has passed."""
        return self.expires_ms is not None and self.expires_ms <= max(self.now_ms, self.score)

    @property
    def age(self) -> float:
        """Seconds since the due time of the job, negative before the due time."""
        return (self.now_ms - self.score) / 1000

    def aborted(self, enqueued_ms: int) -> bool:
        """Return True if ``Job.abort()`` was called for the job that was enqueued at ``enqueued_ms``.

        The time of the abort is not compared with the present time, because an abort may wait longer than ABORT_MS for a look.
        """
        return self.abort_ms is not None and self.abort_ms >= enqueued_ms - ABORT_MS


@dataclass(frozen=True, slots=True)
class Keep:
    """A job that has no result yet. ``delay``: seconds until the next look at the job. ``run``: the run, if this look has
    accepted it. ``started``: True if the run is running or suspended."""

    look: ArqLook
    delay: float
    run: AcceptedRun | None = None
    started: bool = False


class ArqQueue:
    """The queue ``name`` of arq. ``keep_result``: seconds for which results are kept.

    Raises InvalidInputError if ``name`` could equal the name of another key of runyard or arq.
    """

    def __init__(self, server: RedisServer, name: str, keep_result: float) -> None:
        _check_name(name, server.keys.namespace)
        self.name = name
        self._server = server
        self._prefix = server.keys.prefix(0)
        self._keep_result_ms = max(1, int(keep_result * 1000))

    async def look(self) -> list[ArqLook]:
        """Return up to JOBS_PER_LOOK jobs that are new or whose next look is due."""
        args = (
            *(self.name, JOBS_PER_LOOK, JOB_BYTES, BYTES_PER_LOOK, int(LEASE_SECONDS * 1000)),
            *(ABORTS_PER_LOOK, QUEUED_SCORE, DEFERRED_SCORE, MAX_SCORE_MS, ABORT_MS),
        )
        [reply] = await self._server.call(Call(script("arq_look"), self._prefix, args))
        now, unaccepted = int(reply[0]), reply[1]
        rows = [reply[i : i + 6] for i in range(2, len(reply), 6)]
        others = unaccepted - sum(not record for _, _, record, *_ in rows)
        return [_look(now, others, *row) for row in rows]

    async def body(self, look: ArqLook) -> bytes:
        """Return the body of a job whose run was accepted. At most JOB_BYTES + 1 bytes are read.

        The body is empty if it has expired, or if a producer has replaced it by a key of another type.
        """
        try:
            found: bytes = await self._server.command("GETRANGE", job_key_prefix.encode() + look.id, 0, JOB_BYTES)
        except BackendUnavailableError:
            raise
        except RunyardError:
            return b""
        return found

    async def keep(self, kept: Iterable[Keep]) -> None:
        """Record the runs and the next looks of jobs."""
        args: list[Any] = []
        for one in kept:
            record = packb(list(astuple(one.run))) if one.run is not None else b""
            args += [one.look.id, one.look.token, record, max(1, int(one.delay * 1000)), int(one.started)]
        if args:
            head = (self.name, int(IN_PROGRESS_SECONDS * 1000))
            await self._server.call(Call(script("arq_keep"), self._prefix, (*head, *args)))

    async def answer(self, look: ArqLook, result: bytes) -> bool:
        """Write the result of a job, in arq's format. Return False if another worker has already written a result or accepted a
        run."""
        args = (self.name, self._keep_result_ms, look.id, look.token, look.record, result)
        [answered] = await self._server.call(Call(script("arq_answer"), self._prefix, args))
        return bool(answered)


def _check_name(name: str, namespace: str) -> None:
    """Raise InvalidInputError if a queue with the name ``name`` could have the same key as other data of arq or of runyard."""
    of_arq = name.startswith(_ARQ_PREFIXES) or name == abort_jobs_ss or name.endswith(health_check_key_suffix)
    if of_arq or name == namespace or name.startswith(namespace + ":") or re.search(r":\{\d+\}:", name):
        words = f"a queue of arq cannot be called {brief(name)}, because keys of arq or runyard have such names"
        raise InvalidInputError(f"{words}; choose another name", field="arq_queues")


def _look(now: int, others: int, id_: bytes, token: bytes, record: bytes, abort: bytes, body: bytes, size: int) -> ArqLook:
    score, _, expiry = token.partition(b"|")
    return ArqLook(
        id=id_,
        token=token,
        now_ms=now,
        others=others,
        score=int(score),
        expires_ms=None if expiry == b"-1" else int(expiry),
        record=record,
        abort_ms=int(abort) if abort not in (b"", b"begun") else None,
        aborting=abort == b"begun",
        body=body,
        size=size,
    )
