"""The loop that accepts runs for the jobs of arq's own client. Each worker that serves queues of arq has this loop.

A look is one pass over a queue of arq. A look returns the new jobs, and known jobs whose next look is due. Postgres accepts a
run for a new job. The id of the run is the id of the job. A repetition therefore finds the same run. The job stays in arq's
queue until the run has ended. Then the loop writes the result of the run as arq's result. Several workers may serve one queue.
Every step may be repeated. If a worker dies between two steps, a later look does the missing steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from runyard.client.accepting import accept_request
from runyard.client.client import Client
from runyard.domain.agent_names import wanted
from runyard.domain.states import ENDED, RunStatus
from runyard.domain.validation import MAX_ID_LENGTH
from runyard.errors import (
    BackendUnavailableError,
    DataCorruptedError,
    QueueFullError,
    RunConflictError,
    RunEndedError,
    RunExpiredError,
    RunNotCompletedError,
    RunNotFoundError,
    RunyardError,
    ThreadNotFoundError,
)
from runyard.models import HitlRequest
from runyard.ports.commands import AcceptRequest
from runyard.ports.stores import Backend
from runyard.ports.worker_defaults import DEFAULT_ARQ_RESULT_SECONDS
from runyard.support import metrics
from runyard.support.failure_log import FailureLog
from runyard.support.store_retries import jittered

from .arq_codec import MAX_FUNCTION, ArqJob, JobOutcome, encode_result, is_pickled
from .arq_decoding import DecodedJob, decode_again, decode_jobs, expired
from .arq_outcomes import cancelled, outcome_of
from .arq_queue import JOBS_PER_LOOK, LEASE_SECONDS, AcceptedRun, ArqLook, ArqQueue, Keep
from .arq_requests import Response
from .connection import RedisServer

POLL_SECONDS: Final = 0.2
"""Seconds between two looks at a queue. The workers poll, because arq's client does not wake them."""
LOOKS_PER_AGE: Final = 10
"""The pause between two looks at a job is about the age of the job or of its run, divided by this number."""
MAX_LOOK_SECONDS: Final = 5.0
"""Maximum seconds between two looks at a job whose run may end."""
MAX_ABORTED_LOOK_SECONDS: Final = 1.0
"""Maximum seconds between two looks at a job whose run is being cancelled."""
MAX_DEFERRED_LOOK_SECONDS: Final = 30.0
"""Maximum seconds between two looks at a deferred job."""
RETRY_SECONDS: Final = 5.0
"""Seconds after an error of a server until the next try of the job."""
FULL_SECONDS: Final = 1.0
MAX_FULL_SECONDS: Final = 10.0
"""Minimum and maximum seconds until the next try of a job that a limit on queued runs has refused."""
TAKE_SECONDS: Final = 1.0
MAX_TAKE_SECONDS: Final = 4.0
"""Minimum and maximum seconds for which a worker tries to accept one job. The time grows with the age of the job. The maximum
is shorter than LEASE_SECONDS."""
TAKES_AT_ONCE: Final = 10
"""Maximum number of jobs of a queue that one worker accepts at the same time."""
ORDER_SECONDS: Final = 2 * LEASE_SECONDS
"""Maximum seconds after its due time for which a job waits for a missing thread or run. A second job may still make the thread
or run. The time is longer than a lease: if the worker of the second job died, a further worker gets the second job at the end
of the lease."""
RESULTS_AT_ONCE: Final = 8
"""Maximum number of results that one worker makes at the same time for a queue. One result can take several MiB."""
ARGUMENT_BYTES: Final = 64 * 2**10
"""Maximum number of bytes of a refused job whose result contains the job's arguments. The result of a larger job has no
arguments."""

T = TypeVar("T")

log = structlog.get_logger("runyard.arq")


class ArqIntake:
    """Serves queues of arq, for agents of ``namespace``. ``queues``: the tenant of the runs, by the name of the queue.
    ``keep_result``: seconds for which results are kept."""

    def __init__(
        self,
        server: RedisServer,
        backend: Backend,
        queues: Mapping[str, str],
        *,
        keep_result: float = DEFAULT_ARQ_RESULT_SECONDS,
        namespace: str | None = None,
    ) -> None:
        self.queues = [
            QueueIntake(ArqQueue(server, name, keep_result), Client(backend.for_tenant(tenant), namespace=namespace))
            for name, tenant in queues.items()
        ]

    async def run(self) -> None:
        """Serve all queues until cancelled. An error of one queue does not delay the others."""
        async with asyncio.TaskGroup() as group:
            for queue in self.queues:
                group.create_task(queue.run(), name=f"QueueIntake.run {queue.name}")


@dataclass(slots=True)
class Takes:
    """The limits of one look at the queue. ``until``: the time of the event loop after which no further job is accepted.
    ``locked``: the threads on which an accept took too long. ``full``: the threads whose lanes accept no more runs. ``full``
    contains None if all threads refuse further runs."""

    until: float
    locked: set[object] = field(default_factory=set)
    full: set[object] = field(default_factory=set)

    def is_full(self, job: DecodedJob) -> bool:
        """Return True if a limit on queued runs would refuse the run of ``job``."""
        return (job.takes_lane and job.thread in self.full) or (isinstance(job.request, AcceptRequest) and None in self.full)


class QueueIntake:
    """Serves one queue of arq. ``client``: the client for the tenant of the queue's runs."""

    def __init__(self, queue: ArqQueue, client: Client) -> None:
        self.name = queue.name
        self._queue = queue
        self._client = client
        self._places = asyncio.Semaphore(RESULTS_AT_ONCE)
        self._takes = asyncio.Semaphore(TAKES_AT_ONCE)
        # The decoding has its own thread, because user code may keep all threads of the event loop busy.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runyard-arq")

    async def run(self) -> None:
        """Look at the queue until cancelled."""
        failures = 0
        failure_log = FailureLog(log, "arq_look_failed")
        while True:
            try:
                found = await self.step()
                failures = 0
                failure_log.worked(arq_queue=self.name)
            except Exception as error:
                failures += 1
                found = 0
                failure_log.failed(error, arq_queue=self.name)
            # If the queue may have more jobs, look again at once. During the sleep of 0 seconds, other tasks can run.
            full = found >= JOBS_PER_LOOK
            await asyncio.sleep(0 if full else jittered(min(POLL_SECONDS * 2**failures, RETRY_SECONDS)))

    async def step(self) -> int:
        """Look at the queue once. Return the number of jobs that the look found."""
        looks = await self._queue.look()
        known = [look for look in looks if look.run is not None]
        await _all([self._check(known), self._take_new([look for look in looks if look.run is None])])
        return len(looks)

    async def _take_new(self, looks: Sequence[ArqLook]) -> None:
        """Accept the new jobs of one look. The jobs of different threads do not wait for each other."""
        if not looks:
            return
        jobs, left = await self._in_thread(partial(decode_jobs, looks))
        threads: dict[str | bytes, list[DecodedJob]] = {}
        for job in jobs:
            threads.setdefault(job.thread, []).append(job)
        takes = Takes(asyncio.get_running_loop().time() + TAKE_SECONDS)
        kept = self._queue.keep(Keep(look, 0.0) for look in left)
        await _all([kept, *(self._take_in_order(thread, takes) for thread in threads.values())])

    async def _take_in_order(self, jobs: Sequence[DecodedJob], takes: Takes) -> None:
        """Accept the jobs of a thread one after the other, because a fork may follow the prompt that makes its thread.

        Jobs that were enqueued in the same millisecond may be accepted in another order."""
        kept = [await self._take(job, takes, n < len(jobs)) for n, job in enumerate(jobs, 1)]
        await self._queue.keep(one for one in kept if one is not None)

    async def _take(self, job: DecodedJob, takes: Takes, more: bool) -> Keep | None:
        """Accept a job within the limits of ``takes``. Return the job if it has no result yet. ``more``: True if the same look
        also read later jobs of the thread."""
        try:
            async with self._takes:
                if asyncio.get_running_loop().time() >= takes.until:
                    return Keep(job.look, 0.0)
                if job.thread in takes.locked:
                    return Keep(job.look, jittered(RETRY_SECONDS))
                if takes.is_full(job):
                    return Keep(job.look, _full_delay(job.look))
                async with asyncio.timeout(min(max(job.look.age / LOOKS_PER_AGE, TAKE_SECONDS), MAX_TAKE_SECONDS)):
                    return await self._take_once(job, more)
        except QueueFullError as error:  # the job waits in arq's queue until its expiry
            takes.full.add(job.thread if error.details.get("limit") == "queued_per_lane" else None)
            return Keep(job.look, _full_delay(job.look))
        except TimeoutError as error:
            takes.locked.add(job.thread)
            return self._later(job.look, error)

    async def _take_once(self, job: DecodedJob, more: bool) -> Keep | None:
        """Accept the run of a job, or write the job's result. Raises QueueFullError."""
        try:
            if isinstance(job.request, Exception):
                raise job.request
            if isinstance(job.request, Response):
                return await self._respond(job, job.request)
            return await self._accept(job, job.request)
        except QueueFullError:
            raise
        except Exception as error:
            if not isinstance(error, RunyardError) or not _is_answer(error):
                return self._later(job.look, error)
            if _is_early(job.look, error, more):
                return Keep(job.look, POLL_SECONDS)
            await self._refuse(job, error.to_dict())
            return None

    async def _accept(self, job: DecodedJob, request: AcceptRequest) -> Keep | None:
        look = job.look
        if (look.expired or job.aborted) and not await self._exists(request):
            if job.aborted:
                await self._refuse(job, cancelled(request.run_id))
                return None
            raise expired(look)
        await self._accept_once(replace(request, agent=wanted(self._client.namespace, request.agent)))
        metrics.ARQ_JOBS.labels(outcome="accepted").inc()
        run = AcceptedRun(request.thread_id, look.now_ms, job.job.enqueued_ms)
        if job.aborted:
            await self._cancel(run, request.run_id)
        return Keep(look, POLL_SECONDS, run)

    async def _exists(self, request: AcceptRequest) -> bool:
        """Return True if the run was accepted before. A worker may have died between the accept and its write to Redis."""
        return await self._client.backend.runs.run(request.thread_id, request.run_id) is not None

    async def _accept_once(self, request: AcceptRequest) -> None:
        """Accept the run, or find the accepted run. Jobs with the same id and content have one run, with the expiry of the
        first job."""
        try:
            await accept_request(self._client, request)
        except RunConflictError as error:
            if error.details.get("differs") != ["expires_in"]:
                raise
            run = await self._client.run(request.thread_id, request.run_id)
            options = request.options.model_copy(update={"expires_in": run.options.expires_in})
            await accept_request(self._client, replace(request, options=options))

    async def _respond(self, job: DecodedJob, response: Response) -> Keep | None:
        """Answer a pending request when the job is due. A repetition has the same response id and therefore no further
        effect."""
        look = job.look
        if job.aborted or look.expired:
            request = await self._answered(response)
            if request is None and job.aborted:
                await self._refuse(job, cancelled(look.id.decode()))
                return None
            if request is None:
                raise expired(look)
        elif look.score > look.now_ms:
            return Keep(look, POLL_SECONDS if look.aborting else min(-look.age, MAX_DEFERRED_LOOK_SECONDS))
        else:
            request = await self._client.respond(
                response.thread_id,
                response.answer,
                response.request_id,
                response.response_id,
                answered_by=response.answered_by,
                on_behalf_of=response.on_behalf_of,
            )
        value = {"thread_id": request.thread_id, "run_id": request.run_id, "request_id": request.request_id}
        await self._answer(look, job.job, JobOutcome(True, value, look.now_ms, look.now_ms))
        return None

    async def _answered(self, response: Response) -> HitlRequest | None:
        """Return the request that has this answer already, or None. A worker may have died between the answer and the job's
        result."""
        runs = self._client.backend.runs
        if response.request_id is None:
            assert response.thread_id is not None
            return await runs.answered(response.thread_id, response.response_id)
        request = await runs.request(response.request_id)
        return request if request is not None and request.response_id == response.response_id else None

    async def _check(self, looks: Sequence[ArqLook]) -> None:
        """Write the results of the jobs whose runs have ended, and keep the other jobs of ``looks``."""
        if not looks:
            return
        refs = [(look.run.thread_id, look.id.decode()) for look in looks if look.run is not None]
        try:
            statuses = await self._client.backend.runs.statuses(refs)
        except Exception as error:
            await self._queue.keep(self._later(look, error) for look in looks)
            return
        kept = await asyncio.gather(*map(self._check_one, looks, statuses))
        await self._queue.keep(one for one in kept if one is not None)

    async def _check_one(self, look: ArqLook, status: RunStatus | None) -> Keep | None:
        assert look.run is not None
        aborted = look.aborted(look.run.enqueued_ms)
        try:
            over = status is None or status in ENDED
            if not over and aborted:
                over = await self._cancel(look.run, look.id.decode())
            if over:
                async with self._places:
                    return await self._finish(look, look.run)
        except Exception as error:
            return self._later(look, error)
        age = (look.now_ms - look.run.accepted_ms) / 1000
        delay = min(max(age / LOOKS_PER_AGE, POLL_SECONDS), MAX_LOOK_SECONDS)
        if look.aborting:
            delay = POLL_SECONDS
        elif aborted:
            delay = min(delay, MAX_ABORTED_LOOK_SECONDS)
        elif look.score > look.now_ms:
            delay = min(-look.age, MAX_DEFERRED_LOOK_SECONDS)
        return Keep(look, delay, started=status in (RunStatus.RUNNING, RunStatus.SUSPENDED))

    async def _finish(self, look: ArqLook, accepted: AcceptedRun) -> Keep | None:
        """Write the result of a run that has ended or was deleted."""
        run_id = look.id.decode()
        try:
            run = await self._client.run(accepted.thread_id, run_id)
            if not run.ended:  # the run was redriven in the meantime
                return Keep(look, POLL_SECONDS)
            outcome = await outcome_of(self._client, run)
        except RunyardError as error:
            if not _is_answer(error):
                raise
            outcome = JobOutcome(False, error.to_dict(), accepted.accepted_ms, look.now_ms)
        job = await self._in_thread(partial(decode_again, await self._queue.body(look)))
        await self._answer(look, job, outcome)
        return None

    async def _cancel(self, run: AcceptedRun, run_id: str) -> bool:
        """Cancel the run of an aborted job. Return True if the run has ended. A run that a worker executes ends later."""
        try:
            return (await self._client.cancel(run.thread_id, run_id)).ended
        except (RunEndedError, RunNotFoundError):
            return True

    async def _refuse(self, job: DecodedJob, failure: dict[str, Any]) -> None:
        """Write the failure of a job that gets no run."""
        look = job.look
        fields = {"arq_queue": self.name, "job_id": _shown(look), "function": job.job.function[:MAX_FUNCTION]}
        # The log entry omits the text of the error, because the text can contain a user's data.
        log.warning("arq_job_refused", **fields, code=failure["code"], field=failure["details"].get("field"))
        shown = job.job if look.size <= ARGUMENT_BYTES else replace(job.job, args=[], kwargs={})
        await self._answer(look, shown, JobOutcome(False, failure, look.now_ms, look.now_ms), "refused")

    async def _answer(self, look: ArqLook, job: ArqJob, outcome: JobOutcome, name: str | None = None) -> None:
        encode = partial(encode_result, look.id, self.name, job, outcome, pickled=is_pickled(look.body))
        result = await self._in_thread(encode)
        if await self._queue.answer(look, result):
            metrics.ARQ_JOBS.labels(outcome=name or ("completed" if outcome.success else "failed")).inc()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _later(self, look: ArqLook, error: Exception) -> Keep:
        """Keep a job for a later look, after an error of a server or a defect of this program."""
        if isinstance(error, TimeoutError):
            log.warning(
                "arq_job_delayed", arq_queue=self.name, job_id=_shown(look), error="the job could not be accepted in time"
            )
        elif not isinstance(error, BackendUnavailableError):
            log.error("arq_job_delayed", arq_queue=self.name, job_id=_shown(look), error=str(error), exc_info=error)
        return Keep(look, jittered(RETRY_SECONDS))


def _is_answer(error: RunyardError) -> bool:
    """Return True if ``error`` is an error of the job or of its run. Any other error is a failure of a server or of this
    program."""
    return error.http_status < 500 or isinstance(error, RunExpiredError | DataCorruptedError)


def _is_early(look: ArqLook, error: RunyardError, more: bool) -> bool:
    """Return True if the missing thread or run that a job needs can still appear. A worker may be about to accept the prompt
    that makes the thread or run."""
    missing = isinstance(error, ThreadNotFoundError | RunNotCompletedError)
    return missing and (more or look.others > 0) and look.age < ORDER_SECONDS


def _full_delay(look: ArqLook) -> float:
    """Return the seconds until the next look at a job that a full queue refused. The time grows with the age of the job."""
    return jittered(min(max(look.age / LOOKS_PER_AGE, FULL_SECONDS), MAX_FULL_SECONDS))


def _shown(look: ArqLook) -> str:
    """Return the start of a job's id for a log."""
    return look.id[:MAX_ID_LENGTH].decode(errors="replace")


async def _all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait until all ``calls`` have ended. If any of them failed, raise the first error."""
    for error in await asyncio.gather(*calls, return_exceptions=True):
        if error is not None:
            raise error
