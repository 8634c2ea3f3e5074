"""Decodes the new jobs of a look, and makes the requests that they stand for.

:func:`decode_jobs` calls no server and runs in a thread. Decoding a job of many values takes milliseconds, in which the loop of
the worker can do other work.
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
"""Number of values after which the other jobs of a look are left for the next look."""


@dataclass(frozen=True, slots=True)
class DecodedJob:
    """A new job. ``request``: what it asks for, or why it could not be decoded."""

    look: ArqLook
    job: ArqJob
    request: AcceptRequest | Response | Exception

    @property
    def thread(self) -> str | bytes:
        """The id of the thread that the job names, or the id of a job that names none."""
        named = None if isinstance(self.request, Exception) else self.request.thread_id
        return named if isinstance(named, str) else self.look.id

    @property
    def takes_lane(self) -> bool:
        """Whether the run waits in the lane of its thread, whose length a limit bounds."""
        request = self.request
        return isinstance(request, AcceptRequest) and request.kind == "prompt" and not request.options.parallel

    @property
    def aborted(self) -> bool:
        """Whether ``Job.abort()`` was called for the job."""
        return self.look.aborted(self.job.enqueued_ms)


def decode_jobs(looks: Sequence[ArqLook]) -> tuple[list[DecodedJob], Sequence[ArqLook]]:
    """Return the jobs of ``looks``, and the looks whose jobs are left because the jobs before them have many values."""
    jobs: list[DecodedJob] = []
    values = 0
    for n, look in enumerate(looks):
        if values > VALUES_PER_LOOK:
            return jobs, looks[n:]
        jobs.append(_decoded(look))
        # The values of a refused job may have been counted up to the bound.
        values += jobs[-1].job.values if jobs[-1].job is not UNKNOWN else min(len(look.body), MAX_JOB_VALUES)
    return jobs, ()


def decode_again(body: bytes) -> ArqJob:
    """Return the job in ``body`` for the result of its run. A producer may have changed the body since the run was accepted."""
    try:
        return decode_job(body)
    except InvalidInputError:
        return UNKNOWN


def expired(look: ArqLook) -> RunExpiredError:
    """Return the error of a job that may not start any more."""
    job_id = brief(look.id.decode(errors="replace"))
    return RunExpiredError(
        f"the time to start job {job_id} passed before the job was accepted; enqueue it with a longer _expires"
    )


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
    except Exception as error:  # a defect must not stop the other jobs
        return DecodedJob(look, job, error)


def _terms(look: ArqLook) -> JobTerms:
    """Return the id, the due time and the expiry of a job. Raises InvalidInputError."""
    try:
        run_id = look.id.decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"the id of a job is UTF-8, got {brief(str(look.id)[2:-1])}", field="_job_id") from None
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
