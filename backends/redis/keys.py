"""The names of everything that runyard keeps in Redis.

========================================  ======  =============================================================================
key                                       type    holds
========================================  ======  =============================================================================
``<ns>:{n}:job:<job id>``                 string  the job in arq's format (``jobs.py``), without expiry, while it is offered
``<ns>:{n}:later:<queue>``                zset    job id → when it is due, in ms of the server's clock
``<ns>:{n}:due:<n>:<queue>:<tenant>``     zset    job id → its place among the tenant's due jobs, high priority first; n: length
``<ns>:{n}:turns:<queue>``                zset    tenant that has due jobs → its next turn (``lua/turns.lua``)
``<ns>:{n}:lock:<lane key>``              string  ``worker|run|token``: who may start something on that lane; expires
``<ns>:{n}:wait:<lane key>``              hash    job id → queue of jobs that wait for the lane's lock; expires
``<ns>:{n}:wake:<queue>``                 list    tokens that wake idle workers
``<ns>:{0}:rouse:<worker>``               list    a token that ends this worker's wait, put there when it is to stop; expires
``<ns>:{n}:token``                        int     the last lock token
``<ns>:{n}:events:<thread>:<run>``        stream  the run's events; also the name of the channel that announces them; expires
``<ns>:{n}:events:<thread>``              channel tells that a run of the thread has an event numbered 1
``<ns>:cancel``                           channel hints that a running run was asked to cancel
========================================  ======  =============================================================================

``ns`` is ``runyard`` unless a deployment shares its Redis with another one. ``n`` is the shard of the lane; everything that one
script touches carries the same hash tag ``{n}`` and so lies in one slot. That is why a job is not kept under arq's own
``arq:job:<id>``: our worker overrides the method of arq's that reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from runner.exchange import RunRef


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one deployment. ``shards`` must be the same in every process of it."""

    namespace: str = "runyard"
    shards: int = 1

    def prefix(self, shard: int) -> str:
        return f"{self.namespace}:{{{shard}}}:"

    def shard(self, lane_key: str) -> int:
        return crc32(lane_key.encode()) % self.shards if self.shards > 1 else 0

    def events_shard(self, ref: RunRef) -> int:
        return self.shard(str(ref.thread_key))

    def events(self, ref: RunRef) -> str:
        return f"{self.prefix(self.events_shard(ref))}events:{events_suffix(ref)}"

    def begins(self, thread_key: int) -> str:
        return f"{self.prefix(self.shard(str(thread_key)))}events:{thread_key}"

    def wake(self, shard: int, queue: str) -> str:
        return f"{self.prefix(shard)}wake:{queue}"

    def rouse(self, worker_id: str) -> str:
        return f"{self.prefix(0)}rouse:{worker_id}"

    @property
    def cancel_channel(self) -> str:
        return f"{self.namespace}:cancel"


def events_suffix(ref: RunRef) -> str:
    return f"{ref.thread_key}:{ref.run_id}"
