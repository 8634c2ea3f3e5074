"""The Scheduler port on Redis: what may start now, and who holds which lane.

Order lives in Postgres, which submits a lane's next head; Redis keeps due jobs, one lock per lane, and wakes workers. A job is
in a queue, or in a worker's hands, or nowhere; ``nowhere`` is the reconciler's. A lock only saves work: what proves the right
to write is the fence, so that a lost lock is no reason to stop an attempt.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import structlog

from runner.batching import Batcher
from runner.errors import InvalidInputError
from runner.exchange import Delivery, Job, RunRef

from .connection import Call, RedisServer, script
from .events import RedisEventLog
from .jobs import UnknownEnvelopeError, decode, encode, packb, unpackb

CHUNK: Final = 1000
"""Jobs per script call, so that none holds the server for long."""
LOOK_EVERY: Final = 2.0
"""Seconds after which a worker looks for jobs even though nobody woke it."""
ROUSED_MS: Final = 5000
"""For how long a worker is roused that was not waiting."""
UNKNOWN_ENVELOPE_DELAY_MS: Final = 10_000

T = TypeVar("T")
log = structlog.get_logger(__name__)


class RedisScheduler:
    """Implements :class:`runner.ports.Scheduler`. ``lock``: seconds that a lane stays locked without renewal.

    Every call is safe to repeat. A claim whose answer was lost leaves jobs in nobody's hands; their locks run out and the
    reconciler submits them again. That goes for one that is cancelled while it waits, too: :meth:`rouse` ends the wait and
    loses nothing. Raises BackendUnavailableError when Redis does not answer.
    """

    def __init__(self, server: RedisServer, events: RedisEventLog, *, lock: float = 3.0) -> None:
        self._server = server
        self._events = events
        self._keys = server.keys
        self._lock_ms = int(lock * 1000)
        self._next_due: dict[tuple[str, ...], float] = {}
        self._turn = 0
        self._submits: Batcher[Job, None] = Batcher(self._submit, limit=CHUNK, in_flight=2)

    async def submit(self, jobs: Sequence[Job]) -> None:
        """Offer ``jobs`` to the workers, once their streams say so. A job that is offered already keeps the earlier due time.
        Calls that meet travel together."""
        await asyncio.gather(*map(self._submits, jobs))

    async def _submit(self, jobs: Sequence[Job]) -> list[None]:
        await self._server.call(*self._submissions(jobs))
        return [None] * len(jobs)

    async def claim(self, worker_id: str, queues: Sequence[str], limit: int, wait: float = 0.0) -> list[Delivery]:
        """Take up to ``limit`` due jobs of ``queues`` with their lanes' locks, tenants by turns and queues too.

        ``wait``: seconds to wait first, until a submission wakes this worker, the next job that its last claim saw is due, or
        :meth:`rouse`; never longer than two. The server claims in the moment in which the wait ends, without a round trip.
        A job of a version that this code does not know is put back for a while, so that a newer worker may have it.
        """
        if "|" in worker_id:
            raise InvalidInputError(f"a worker id must not contain '|', got {worker_id!r}")
        deliveries: list[Delivery] = []
        next_due = -1
        if limit > 0:
            self._turn += 1
            pause = self._pause(queues, wait)
            first = self._turn // self._keys.shards % max(len(queues), 1)
            looked_at = (*queues[first:], *queues[:first])  # else who fills the first one would hold up the others
            for n in range(self._keys.shards):
                shard = (self._turn + n) % self._keys.shards
                args = (worker_id, limit - len(deliveries), self._lock_ms, *looked_at)
                call = Call(script("claim"), self._keys.prefix(shard), args)
                if n == 0 and pause > 0:
                    reply = await self._server.pop_and_call(self._wake_keys(worker_id, queues), pause, call)
                else:
                    [reply] = await self._server.call(call)
                if reply[0] >= 0:
                    next_due = reply[0] if next_due < 0 else min(next_due, reply[0])
                deliveries += await self._deliveries(shard, worker_id, reply)
                if len(deliveries) >= limit:
                    break
        if next_due >= 0:
            self._next_due[tuple(queues)] = asyncio.get_running_loop().time() + next_due / 1000
        else:
            self._next_due.pop(tuple(queues), None)
        return deliveries

    async def rouse(self, worker_id: str) -> None:
        """End the wait of this worker's claim; if it is not waiting, that of its next one, for some seconds."""
        await self._server.call(Call(script("rouse"), self._keys.rouse(worker_id), (ROUSED_MS,)))

    def _pause(self, queues: Sequence[str], wait: float) -> float:
        """Seconds until the queues are worth a look."""
        due = self._next_due.pop(tuple(queues), None)
        left = LOOK_EVERY if due is None else due - asyncio.get_running_loop().time()
        return min(wait, left, LOOK_EVERY)

    async def renew(self, worker_id: str, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Extend the locks of ``deliveries``; return those whose lock is lost."""
        lost: list[Delivery] = []
        for chunk, replies in await self._by_shard("renew", deliveries, _lane_of, lambda d: _held(worker_id, d), self._lock_ms):
            lost += [chunk[position - 1] for position in replies]
        return lost

    async def release(self, worker_id: str, deliveries: Sequence[Delivery], submit: Sequence[Job] = ()) -> None:
        """Give ``deliveries`` back, whatever became of their runs, and submit what may start instead, in one round trip."""
        calls = self._calls("release", deliveries, _lane_of, lambda d: _held(worker_id, d))
        await self._server.call(*(call for _, call in calls), *self._submissions(submit))

    async def unknown(self, jobs: Sequence[Job]) -> list[Job]:
        """Those of ``jobs`` that are neither offered nor locked by their own run.

        A run under a dead worker may be locked: a worker that is cut off from Postgres alone still renews. Submit such a run
        anyway.
        """
        unknown: list[Job] = []
        for chunk, replies in await self._by_shard(
            "unknown", jobs, lambda job: job.lane_key, lambda job: (job.id, job.queue, job.tenant)
        ):
            unknown += [chunk[position - 1] for position in replies]
        return unknown

    async def ping(self) -> None:
        """Return if Redis answers."""
        await self._server.command("PING")

    async def hint_cancel(self, refs: Sequence[RunRef]) -> None:
        """Tell every worker that these runs were asked to cancel. Only a hint: their next write tells them too."""
        if refs:
            message = packb([(ref.thread_key, ref.run_id) for ref in refs])
            await self._server.command("PUBLISH", self._keys.cancel_channel, message)

    async def cancel_hints(self) -> AsyncIterator[RunRef]:
        """The hints from now on, without end. Raises BackendUnavailableError when the connection is lost: call again."""
        async with self._server.subscribe(self._keys.cancel_channel, limit=10_000) as channel:
            while True:
                message = await channel.get()
                for thread_key, run_id in unpackb(message.data) if message is not None else ():
                    yield RunRef(thread_key, run_id)

    async def _deliveries(self, shard: int, worker_id: str, reply: list[Any]) -> list[Delivery]:
        deliveries = []
        for i in range(1, len(reply), 4):
            id_, payload, token, queue = reply[i : i + 4]
            try:
                deliveries.append(Delivery(decode(payload), int(token)))
            except UnknownEnvelopeError as error:
                log.warning("job put back", job_id=id_, reason=str(error), delay_ms=UNKNOWN_ENVELOPE_DELAY_MS)
                await self._put_back(shard, worker_id, id_, payload, int(token), queue)
        return deliveries

    async def _put_back(self, shard: int, worker_id: str, id_: bytes, payload: bytes, token: int, queue: bytes) -> None:
        prefix = self._keys.prefix(shard)
        lane, _, run = id_.partition(b":")
        value = b"%b|%b|%d" % (worker_id.encode(), run, token)
        await self._server.call(
            Call(script("release"), prefix, (lane, value)),
            Call(script("submit"), prefix, (id_, payload, queue, "", UNKNOWN_ENVELOPE_DELAY_MS, "")),
        )

    def _wake_keys(self, worker_id: str, queues: Sequence[str]) -> list[str]:
        wake = [self._keys.wake(shard, queue) for queue in queues for shard in range(self._keys.shards)]
        return [self._keys.rouse(worker_id), *wake]

    def _submissions(self, jobs: Sequence[Job]) -> list[Call]:
        def args(job: Job) -> tuple[Any, ...]:
            delay = -1 if job.over else max(0, int(job.delay * 1000))
            return job.id, encode(job), job.queue, job.priority, delay, job.tenant

        queued = self._events.appends([(job.ref, [job.queued]) for job in jobs if job.queued is not None])
        return [*queued, *(call for _, call in self._calls("submit", jobs, lambda job: job.lane_key, args))]

    async def _by_shard(
        self,
        name: str,
        items: Sequence[T],
        lane_key: Callable[[T], str],
        args: Callable[[T], tuple[Any, ...]],
        *leading: Any,
    ) -> Iterator[tuple[list[T], list[int]]]:
        """Run script ``name`` over ``items``; the chunks and the positions that each call answered."""
        calls = self._calls(name, items, lane_key, args, *leading)
        return zip([chunk for chunk, _ in calls], await self._server.call(*(call for _, call in calls)), strict=True)

    def _calls(
        self,
        name: str,
        items: Sequence[T],
        lane_key: Callable[[T], str],
        args: Callable[[T], tuple[Any, ...]],
        *leading: Any,
    ) -> list[tuple[list[T], Call]]:
        """The calls of script ``name`` over ``items``, by shard and in chunks. ``args``: what one item adds to the
        arguments."""
        shards: defaultdict[int, list[T]] = defaultdict(list)
        for item in items:
            shards[self._keys.shard(lane_key(item))].append(item)
        calls = []
        for shard, members in shards.items():
            for start in range(0, len(members), CHUNK):
                chunk = members[start : start + CHUNK]
                flat = [value for item in chunk for value in args(item)]
                calls.append((chunk, Call(script(name), self._keys.prefix(shard), (*leading, *flat))))
        return calls


def _lane_of(delivery: Delivery) -> str:
    return delivery.job.lane_key


def _held(worker_id: str, delivery: Delivery) -> tuple[str, str]:
    return delivery.job.lane_key, f"{worker_id}|{delivery.job.run_id}|{delivery.token}"
