"""The Scheduler port on Redis: the jobs that may start now, and the locks of lanes.

Postgres determines which run of a lane is next. Redis has the jobs of due runs and one lock per lane. Redis also wakes waiting
workers. A job is in a queue, or held by a worker, or lost. The reconciler submits a lost job again. A lock only prevents
wasted work. An attempt that has lost its lock continues, because only the fence decides which attempt may write. A lock lasts
for LANE_LOCK_SECONDS of ``ports/scheduling.py``.

All keys of the schedule are in shard 0. One server of a cluster therefore has the whole schedule: a worker waits on one
connection, and tenants take turns in one order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from itertools import islice, starmap
from typing import Any, Final, TypeVar

import structlog

from runyard.errors import InvalidInputError
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import LANE_LOCK_SECONDS, Delivery, Job
from runyard.support.batching import Batcher

from .events import RedisEventLog
from .job_codec import UnknownEnvelopeError, decode, encode, packb, unpackb
from .scripts import Call, script
from .servers import RedisServers

JOBS_PER_CALL: Final = 1000
"""Maximum number of jobs per call of a script. A script with more jobs would block the server for too long."""
LANE_POLL_SECONDS: Final = 2.0
"""Seconds after which a waiting worker looks for jobs, even if no token wakes it."""
END_WAIT_MS: Final = 5000
"""Milliseconds for which a call of end_wait is remembered if the worker is not waiting. A claim within this time does not
wait."""
OFFERS_THAT_WAKE: Final = 1000
"""Maximum number of pairs of a queue and a requirement whose offered jobs wake a waiting worker. The worker finds offered jobs
of other pairs when it claims the next time."""
UNKNOWN_ENVELOPE_DELAY_MS: Final = 10_000
"""Milliseconds until a job that this version cannot decode is due again."""

T = TypeVar("T")
log = structlog.get_logger(__name__)


class RedisScheduler:
    """Implements :class:`runyard.ports.scheduling.Scheduler`. ``lock``: seconds that a lane stays locked without renewal.

    Every call may be repeated. If the reply to a claim is lost, no worker holds the claimed jobs. The locks of their lanes
    expire, and the reconciler submits the jobs again. A caller that cancels a waiting claim can lose jobs in the same way.
    :meth:`end_wait` ends the wait without losing a job. Every method raises BackendUnavailableError when Redis does not answer.
    """

    def __init__(self, server: RedisServers, events: RedisEventLog, *, lock: float = LANE_LOCK_SECONDS) -> None:
        self._server = server
        self._events = events
        self._keys = server.keys
        self._prefix = server.keys.prefix(0)
        self._lock_ms = int(lock * 1000)
        self._next_due: dict[tuple[str, ...], float] = {}
        self._turn = 0
        self._submits: Batcher[Job, None] = Batcher(self._submit, limit=JOBS_PER_CALL, in_flight=2)

    async def submit(self, jobs: Sequence[Job]) -> None:
        """Add the ``queued`` events of ``jobs`` to their streams, and offer the jobs to the workers. If a job is already
        offered, it keeps the earlier of the two due times. Concurrent calls share round trips to Redis."""
        if len(jobs) == 1:  # asyncio.gather would take one more turn of the event loop
            await self._submits(jobs[0])
        else:
            await asyncio.gather(*map(self._submits, jobs))

    async def _submit(self, jobs: Sequence[Job]) -> list[None]:
        await self._server.call_after(self._queued(jobs), self._submissions(jobs))
        return [None] * len(jobs)

    async def claim(
        self, worker_id: str, queues: Sequence[str], limit: int, wait: float = 0.0, *, has: Sequence[str] = ()
    ) -> list[Delivery]:
        """Take up to ``limit`` due jobs of ``queues``, and lock their lanes. Tenants and queues take turns. ``has``: the
        requirements that the worker fulfils. The worker may take a delayed job with one of these requirements before the delay
        ends.

        ``wait``: maximum seconds to wait before the claim. The claim never waits longer than LANE_POLL_SECONDS. The wait ends
        earlier if a submission wakes this worker, or if :meth:`end_wait` is called. If the worker's last claim found a delayed
        job, the wait ends at the due time of this job at the latest. Redis executes the claim as soon as the wait ends, without
        another round trip. If this version cannot decode a job, the job is put back with a delay. A worker of another version
        can then take it.
        """
        if "|" in worker_id:
            raise InvalidInputError(f"a worker id must not contain '|', got {worker_id!r}")
        if limit <= 0:
            self._next_due.pop(tuple(queues), None)
            return []
        self._turn += 1
        pause = self._pause(queues, wait)
        first = self._turn // 2 % max(len(queues), 1)  # every second claim withdraws offers, of another queue first
        looked_at = (len(queues), *queues[first:], *queues[:first])  # another queue comes first in each claim
        called_with = (worker_id, limit, self._lock_ms, self._turn, *looked_at, *has)
        call = Call(script("claim"), self._prefix, called_with)
        if pause > 0:
            offers = islice(((queue, each) for queue in queues for each in has), OFFERS_THAT_WAKE)
            wake = [self._keys.end_wait(worker_id), *map(self._keys.wake, queues), *starmap(self._keys.wake_offer, offers)]
            reply = await self._server.pop_and_call(wake, pause, call)
        else:
            [reply] = await self._server.call(call)
        if reply[0] >= 0:
            self._next_due[tuple(queues)] = asyncio.get_running_loop().time() + reply[0] / 1000
        return await self._deliveries(worker_id, reply)

    async def end_wait(self, worker_id: str) -> None:
        """End the wait of the worker's current claim. If no claim of the worker waits, and its next claim begins within
        END_WAIT_MS, this next claim does not wait."""
        await self._server.call(Call(script("end_wait"), self._keys.end_wait(worker_id), (END_WAIT_MS,)))

    def _pause(self, queues: Sequence[str], wait: float) -> float:
        """Return the seconds for which the next claim of ``queues`` waits. ``wait``: the maximum."""
        due = self._next_due.pop(tuple(queues), None)
        left = LANE_POLL_SECONDS if due is None else due - asyncio.get_running_loop().time()
        return min(wait, left, LANE_POLL_SECONDS)

    async def renew(self, worker_id: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Extend the locks of ``deliveries``. Return the deliveries whose locks are lost."""
        lost: list[Delivery] = []
        for chunk, replies in await self._in_chunks("renew", deliveries, lambda d: _held(worker_id, d), self._lock_ms):
            lost += [chunk[position - 1] for position in replies]
        return lost

    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None:
        """Release the locks of ``deliveries`` and submit the jobs ``submit``, in one round trip."""
        calls = self._calls("release", deliveries, lambda d: _held(worker_id, d))
        await self._server.call_after(self._queued(submit), [*(call for _, call in calls), *self._submissions(submit)])

    async def missing_jobs(self, jobs: Sequence[Job], dead: Collection[str] = ()) -> list[Job]:
        """Return the jobs of ``jobs`` that are missing from Redis. The runs of all ``jobs`` are due in Postgres. A job is
        present if its run holds the lane's lock, or if Redis makes the job due within a minute. Any other job is missing. A job
        with a later due time also counts as missing. This time comes from the clock of another Redis server.

        ``dead``: the ids of dead workers. Their locks do not count. A worker that reaches Redis but not Postgres renews its
        locks for some seconds after it was declared dead.
        """
        missing: list[Job] = []
        for chunk, replies in await self._in_chunks(
            "missing_jobs", jobs, lambda job: (job.id, job.queue, job.tenant), f"|{'|'.join(dead)}|"
        ):
            missing += [chunk[position - 1] for position in replies]
        return missing

    async def ping(self) -> None:
        """Check that Redis answers and takes writes. Raises BackendUnavailableError if not."""
        await self._server.ping()

    async def hint_cancel(self, refs: Sequence[RunRef]) -> None:
        """Publish to every worker that a cancel of these runs was requested. If a hint is lost, the cancel is only delayed,
        because the run's next write finds the cancel in Postgres."""
        if refs:
            message = packb([(ref.thread_key, ref.run_id) for ref in refs])
            await self._server.command("SPUBLISH", self._keys.cancel_channel, message)

    async def cancel_hints(self) -> AsyncIterator[RunRef]:
        """Yield the runs of all hints that are published after this call. The iterator does not end. Raises
        BackendUnavailableError when the connection is lost. After this error, call the method again."""
        async with self._server.subscribe(self._keys.cancel_channel, limit=10_000) as channel:
            while True:
                message = await channel.get()
                for thread_key, run_id in unpackb(message.data) if message is not None else ():
                    yield RunRef(thread_key, run_id)

    async def _deliveries(self, worker_id: str, reply: list[Any]) -> list[Delivery]:
        deliveries = []
        for i in range(1, len(reply), 4):
            id_, payload, token, queue = reply[i : i + 4]
            try:
                deliveries.append(Delivery(decode(payload), int(token)))
            except UnknownEnvelopeError as error:
                job_id, name = id_.decode(errors="replace"), queue.decode(errors="replace")
                fields = {"worker_id": worker_id, "job_id": job_id, "queue": name, "delay_ms": UNKNOWN_ENVELOPE_DELAY_MS}
                log.warning("job_put_back", **fields, error=str(error))
                await self._put_back(worker_id, id_, payload, int(token), queue)
        return deliveries

    async def _put_back(self, worker_id: str, id_: bytes, payload: bytes, token: int, queue: bytes) -> None:
        lane, _, run = id_.partition(b":")
        value = b"%b|%b|%d" % (worker_id.encode(), run, token)
        await self._server.call(
            Call(script("release"), self._prefix, (lane, value)),
            Call(script("submit"), self._prefix, (id_, payload, queue, "", UNKNOWN_ENVELOPE_DELAY_MS, "", "")),
        )

    def _queued(self, jobs: Sequence[Job]) -> list[Call]:
        """Return the calls that write the ``queued`` events of ``jobs``. A run starts even if its event is not written."""
        return self._events.appends([(job.ref, [job.queued]) for job in jobs if job.queued is not None])

    def _submissions(self, jobs: Sequence[Job]) -> list[Call]:
        def args(job: Job) -> tuple[Any, ...]:
            delay = -1 if job.over else max(0, int(job.delay * 1000))
            return job.id, encode(job), job.queue, job.priority, delay, job.tenant, job.requires or ""

        return [call for _, call in self._calls("submit", jobs, args)]

    async def _in_chunks(
        self, name: str, items: Sequence[T], args: Callable[[T], tuple[Any, ...]], *leading: Any
    ) -> Iterator[tuple[list[T], list[int]]]:
        """Call script ``name`` for ``items``, in chunks. For each chunk, yield the chunk and the positions that the script
        returned. Positions count from 1 in the chunk."""
        calls = self._calls(name, items, args, *leading)
        return zip([chunk for chunk, _ in calls], await self._server.call(*(call for _, call in calls)), strict=True)

    def _calls(
        self, name: str, items: Sequence[T], args: Callable[[T], tuple[Any, ...]], *leading: Any
    ) -> list[tuple[list[T], Call]]:
        """Return chunks of ``items``, each with its call of script ``name``. ``args``: a function that returns the arguments
        for an item. ``leading``: the arguments before those of the items."""
        calls = []
        for start in range(0, len(items), JOBS_PER_CALL):
            chunk = [*items[start : start + JOBS_PER_CALL]]
            flat = [value for item in chunk for value in args(item)]
            calls.append((chunk, Call(script(name), self._prefix, (*leading, *flat))))
        return calls


def _held(worker_id: str, delivery: Delivery) -> tuple[str, str]:
    return delivery.job.lane_key, f"{worker_id}|{delivery.job.run_id}|{delivery.token}"
