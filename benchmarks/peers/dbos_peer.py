"""DBOS queued workflows on Postgres.

The workflow ``noop`` has no steps. DBOS stores its enqueue and its end. The workflow ``turn`` also stores a user and an
assistant message, each as the recorded result of a step. The workflow ``tools`` stores six results: these
two messages, and for each of two tools the message with the call and the result of the tool.

The executor listens to one queue. With ``ordered`` the queue is partitioned, and one workflow per partition runs at a time. In
that case DBOS dequeues in batches over the partitions.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import asyncpg
from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions

from benchmarks.board import READY, Board, stamp
from benchmarks.lab import Lab
from benchmarks.ports import Facts
from benchmarks.process import exit_with_parent, worker_process

POOL = 20
FINISHED = "SELECT count(*) FROM dbos.workflow_status WHERE queue_name = $1 AND status = 'SUCCESS'"


class DbosQueue:
    def __init__(self, client: DBOSClient, url: str, queue: str, workflow: str, ordered: bool) -> None:
        self._client = client
        self._url = url
        self._queue = queue
        self._workflow = workflow
        self._ordered = ordered
        self._enqueued = 0

    async def enqueue(self, slot: int, key: str) -> None:
        options: EnqueueOptions = {"workflow_name": self._workflow, "queue_name": self._queue}
        if self._ordered:
            options["queue_partition_key"] = key
        self._enqueued += 1
        await self._client.enqueue_async(options, slot)

    async def settle(self, keys: Mapping[str, int]) -> Facts:
        connection = await asyncpg.connect(self._url)
        try:
            while await connection.fetchval(FINISHED, self._queue) < self._enqueued:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        finally:
            await connection.close()
        return {}


@asynccontextmanager
async def start(lab: Lab, board: Board, *, poll: float, workflow: str, ordered: bool, slots: int) -> AsyncIterator[DbosQueue]:
    """Start one executor that reads the queue every ``poll`` seconds and runs ``workflow`` for each job."""
    url = await lab.database("dbos")
    queue = f"bench-{board.path.stem}"
    command = [__name__, url, queue, str(poll), str(slots), "ordered" if ordered else "any"]
    async with worker_process(command, board):
        await board.wait(range(READY, READY + 1))
        client = DBOSClient(system_database_url=url, system_database_pool_size=POOL)
        try:
            yield DbosQueue(client, url, queue, workflow, ordered)
        finally:
            client.destroy()


def main(url: str, queue: str, poll: str, slots: str, order: str) -> None:
    exit_with_parent()
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url,
        "application_version": "bench",
        "sys_db_pool_size": POOL,
        "log_level": "WARNING",
    }
    DBOS(config=config)

    @DBOS.workflow(name="noop")
    def noop(slot: int) -> None:
        stamp(slot)

    @DBOS.step(name="message")
    def message(role: str, text: str) -> dict[str, str]:
        return {"role": role, "text": text}

    @DBOS.workflow(name="turn")
    def turn(slot: int) -> None:
        message("user", "go")
        stamp(slot)
        message("assistant", "done")

    @DBOS.step(name="look")
    def look(number: int) -> str:
        return f"found {number}"

    @DBOS.workflow(name="tools")
    def tools(slot: int) -> None:
        message("user", "go")
        stamp(slot)
        for number in range(2):
            message("assistant", f"look at {number}")
            look(number)
        message("assistant", "done")

    DBOS.listen_queues([queue])
    DBOS.launch()
    DBOS.register_queue(
        queue,
        polling_interval_sec=float(poll),
        worker_concurrency=int(slots),
        partition_concurrency=1 if order == "ordered" else None,
    )
    stamp(READY)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
