"""The names of all keys and channels of runyard in Redis.

========================================  ======  =============================================================================
key                                       type    contents
========================================  ======  =============================================================================
``<ns>:{0}:job:<job id>``                 string  the job in arq's format (``job_codec.py``) while it is offered; expires
``<ns>:{0}:later:<queue>``                zset    id of an offered job that is not due → due time, in ms of the server's clock
``<ns>:{0}:due:<m>:<queue>:<tenant>``     zset    job id → position among the tenant's due jobs, high priority first
``<ns>:{0}:turns:<queue>``                zset    tenant with due jobs → number of its next turn (``lua/turns.lua``)
``<ns>:{0}:offered:<queue>``              zset    requirement of offered delayed jobs → time of its expiry, in ms; expires
``<ns>:{0}:offers:<queue>``               hash    id of an offered delayed job → its requirement; expires
``<ns>:{0}:lock:<lane key>``              string  ``worker|run|token``: the holder of the lane's lock; expires
``<ns>:{0}:wait:<lane key>``              hash    id of a job that waits for the lane's lock → its queue; expires
``<ns>:{0}:wake:<queue>``                 list    tokens that wake idle workers
``<ns>:{0}:end_wait:<worker>``            list    tokens that end the wait of one worker; expires
``<ns>:{0}:token``                        int     the last lock token
``<ns>:{n}:ping``                         none    a key that never exists; a write on it checks the server
``<ns>:{n}:events:<thread>:<run>``        stream  the run's events; also the name of their channel; expires
``<ns>:{n}:running_streams``              zset    ``<thread>:<run>`` of a run that has not stopped → expiry of its stream, in ms
``<ns>:{n}:stopped_streams``              zset    the same for runs that ended or wait for a human
``<ns>:{n}:emptied_streams``              zset    the same for running runs whose events were dropped
``<ns>:{n}:sizes:<thread>``               hash    run → bytes of its events; the field ``""``: the thread was deleted; expires
``<ns>:{n}:stream_bytes``                 int     the bytes that all streams take
``<ns>:{n}:stream_limit``                 int     the most bytes that all streams may take; no expiry
``<ns>:{n}:streams_dropped``              int     the number of streams that were dropped before they expired
``<ns>:{0}:arq_jobs:<arq queue>``          hash    id of a producer's job without a result → its ``score|expiry``
``<ns>:{0}:arq_runs:<arq queue>``          hash    id of such a job → its run's thread, times of accept and enqueue
``<ns>:{0}:arq_looks:<arq queue>``         zset    id of such a job → time of the next look at it, in ms of the server's clock
``<ns>:{0}:arq_aborts:<arq queue>``        hash    id of such a job → time of the abort that a worker has looked at
``<ns>:{n}:events:<thread>``              channel signals that a run of the thread has its first event
``<ns>:{0}:cancel``                       channel hints that the cancel of a run was requested
========================================  ======  =============================================================================

A worker that fulfils the requirement of a delayed job may take the job before its delay ends (``lua/submit.lua``). Such a job
is therefore also in keys ``due``, ``turns`` and ``wake`` with ``<queue>\\n<requirement>`` in place of the queue's name. These
keys expire.

The leader looks up the jobs of waiting runs repeatedly. When it looks up no more jobs of a queue, the keys of this queue
expire within a day (``lua/turns.lua``). The keys of ended runs are removed.

``ns`` is the namespace: ``runyard``, or another name if several deployments share one Redis. ``n`` is the shard of the thread.
Outside a cluster, the shard is always 0. ``m`` is the length of the queue's name in bytes. ``thread`` is the thread key, and
``run`` the run id. All keys and channels of one script have the same hash tag ``{n}``, which puts them into one hash slot of a
cluster. arq's own key ``arq:job:<id>`` has no hash tag and is therefore not used for runs. The scripts for jobs of arq's client
(``arq_queue.py``) use arq's keys. These scripts do not work on a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from runyard.ports.refs import RunRef


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one deployment. ``shards``: the number of shards of the event streams. The number must be the same in every
    process of the deployment. The schedule is in shard 0."""

    namespace: str = "runyard"
    shards: int = 1

    def prefix(self, shard: int) -> str:
        return f"{self.namespace}:{{{shard}}}:"

    def shard_of(self, key: str) -> int:
        """Return the shard that the name of a key or channel contains."""
        return int(key[len(self.namespace) + 2 : key.index("}")])

    def shard(self, thread_key: int) -> int:
        """Return the shard of the streams of a thread."""
        return crc32(str(thread_key).encode()) % self.shards if self.shards > 1 else 0

    def events(self, ref: RunRef) -> str:
        return f"{self.prefix(self.shard(ref.thread_key))}events:{events_suffix(ref)}"

    def begins(self, thread_key: int) -> str:
        return f"{self.prefix(self.shard(thread_key))}events:{thread_key}"

    def wake(self, queue: str) -> str:
        return f"{self.prefix(0)}wake:{queue}"

    def wake_offer(self, queue: str, requirement: str) -> str:
        """Return the key of the tokens for delayed jobs of ``queue``. These jobs are offered to workers that fulfil
        ``requirement``. ``offers`` in ``lua/turns.lua`` makes the same name."""
        return self.wake(f"{queue}\n{requirement}")

    def end_wait(self, worker_id: str) -> str:
        return f"{self.prefix(0)}end_wait:{worker_id}"

    def ping(self, shard: int) -> str:
        return f"{self.prefix(shard)}ping"

    @property
    def cancel_channel(self) -> str:
        return f"{self.prefix(0)}cancel"


def events_suffix(ref: RunRef) -> str:
    return f"{ref.thread_key}:{ref.run_id}"
