"""Decode the new jobs of a look into requests. A look is one pass over a queue of arq.

:func:`decode_jobs` calls no server. To decode a job with many values takes milliseconds. The function therefore runs in a
thread, and the event loop of the worker is not blocked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from runyard.domain.quoting import brief
from runyard.domain.runs import MAX_EXPIRY_SECONDS
from runyard.errors import InvalidInputError, RunExpiredError
from runyard.ports.commands import AcceptRequest

from .arq_codec import UNKNOWN, ArqJob, decode_job
from .arq_queue import BODY_GONE, JOB_BYTES, MAX_SCORE_MS, ArqLook
from .arq_requests import JobTerms, Response, request_of
from .msgpack_bounds import MAX_JOB_VALUES

VALUES_PER_LOOK: Final = 2 * MAX_JOB_VALUES
"""Number of values after which decoding stops. The other jobs of the look wait for the next look."""


@dataclass(frozen=True, slots=True)
class DecodedJob:
    """A new job. ``request``: the decoded request, or the error if the job cannot be decoded."""

    look: ArqLook
    job: ArqJob
    request: AcceptRequest | Response | Exception

    @property
    def thread(self) -> str | bytes:
        """The id of the thread in the job, or the id of the job if it names no thread."""
        named = None if isinstance(self.request, Exception) else self.request.thread_id
        return named if isinstance(named, str) else self.look.id

    @property
    def takes_lane(self) -> bool:
        """True if the run waits in the lane of its thread. The number of runs in this lane can be limited."""
        request = self.request
        return isinstance(request, AcceptRequest) and request.kind == "prompt" and not request.options.parallel

    @property
    def aborted(self) -> bool:
        """True if ``Job.abort()`` was called for the job."""
        return self.look.aborted(self.job.enqueued_ms)


def decode_jobs(looks: Sequence[ArqLook]) -> tuple[list[DecodedJob], Sequence[ArqLook]]:
    """Decode the jobs of ``looks`` until they have VALUES_PER_LOOK values together. Return the decoded jobs, and the ``looks``
    whose jobs were not decoded."""
    jobs: list[DecodedJob] = []
    values = 0
    for n, look in enumerate(looks):
        if values > VALUES_PER_LOOK:
            return jobs, looks[n:]
        jobs.append(_decoded(look))
        # The number of values of a refused job is not known. Assume the maximum number for a body of this size.
        values += jobs[-1].job.values if jobs[-1].job is not UNKNOWN else min(len(look.body), MAX_JOB_VALUES)
    return jobs, ()


def decode_again(body: bytes) -> ArqJob:
    """Decode the job in ``body`` for the result of its run. Return UNKNOWN if a producer has replaced the body by an invalid
    one."""
    try:
        return decode_job(body)
    except InvalidInputError:
        return UNKNOWN


def expired(look: ArqLook) -> RunExpiredError:
    """Return the error for a job that was not accepted before its deadline (``_expires`` of arq)."""
    job_id = brief(look.id.decode(errors="replace"))
    return RunExpiredError(f"job {job_id} was not accepted before its deadline; enqueue it with a longer _expires")


def _decoded(look: ArqLook) -> DecodedJob:
    job = UNKNOWN
    try:
        terms = _terms(look)
        if look.expires_ms == BODY_GONE:
            raise RunExpiredError("the job expired before a worker looked at it")
        if look.size > JOB_BYTES:
            words = f"the job has {look.size} bytes, but {JOB_BYTES} are allowed"
            raise InvalidInputError(words, field="job", most=JOB_BYTES)
        job = decode_job(look.body)
        return DecodedJob(look, job, request_of(job, terms))
    except Exception as error:  # a defect in one job must not stop the other jobs
        return DecodedJob(look, job, error)


def _terms(look: ArqLook) -> JobTerms:
    """Return the id, the due time and the expiry of a job. Raises InvalidInputError."""
    try:
        run_id = look.id.decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"the id of a job must be UTF-8, got {brief(str(look.id)[2:-1])}", field="_job_id") from None
    due = _due(look)
    expires_in = None
    if look.expires_ms is not None:
        expires_in = min(max((look.expires_ms - look.score) / 1000, 0.001), MAX_EXPIRY_SECONDS)
    return JobTerms(run_id, due if look.score > look.now_ms else None, expires_in)


def _due(look: ArqLook) -> datetime:
    try:
        if abs(look.score) < MAX_SCORE_MS:
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=look.score)
    except OverflowError:
        pass
    raise InvalidInputError(
        "the due time of the job is not in the years 1 to 9999; change _defer_by or _defer_until", field="_defer_until"
    )
