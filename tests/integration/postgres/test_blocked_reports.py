"""Reports of blocked main loops that another program wrote into the register of workers."""

from __future__ import annotations

import asyncpg

from runyard.domain.size_limits import MAX_TRACEBACK_BYTES, MAX_TRACEBACK_LINES
from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.workers import MAX_PLACE_CHARACTERS, WorkerInfo
from runyard_backends.postgres.backend import connect


async def test_a_report_is_bounded_wherever_it_is_read(module_postgres_url: str) -> None:
    """W1, R12: in the list of workers, in ``explain``, and in the attempt that the block has cost."""
    backend = await connect(module_postgres_url)
    connection = await asyncpg.connect(module_postgres_url)
    try:
        for worker_id in ("w", "v"):
            await backend.workers.register(WorkerInfo(worker_id=worker_id, queues=["default"]))
        accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hi")))
        ref = accepted.effects.jobs[0].ref
        await backend.runs.claim("w", [ref])
        await connection.execute(
            "UPDATE runyard.workers SET blocked_since = now(), blocked_at = repeat('p', 1000000) || ':7',"
            " blocked_stack = repeat(E'ä\\n', 1000000) || 'last' WHERE worker_id = 'w'"
        )
        listed = next(worker for worker in await backend.workers.workers() if worker.worker_id == "w")
        assert listed.blocked is not None and listed.blocked.stack is not None and listed.heartbeat_at is not None
        assert len(listed.blocked.place) == MAX_PLACE_CHARACTERS and listed.blocked.place.endswith("p:7")
        assert listed.blocked.stack.endswith("\nlast") and listed.blocked.stack.count("\n") < MAX_TRACEBACK_LINES
        sentence = await backend.runs.explain("t", "r")
        assert sentence.endswith("p:7") and len(sentence) < 2 * MAX_PLACE_CHARACTERS
        assert await backend.workers.mark_dead("w", listed.heartbeat_at)
        [claim] = await backend.runs.claim("v", [ref])
        assert claim.takeover
        lost = (await backend.runs.attempts("t", "r")).items[0].error
        assert lost is not None and lost.message.endswith("p:7") and len(lost.message) < 2 * MAX_PLACE_CHARACTERS
        assert lost.traceback is not None and lost.traceback.endswith("\nlast")
        assert len(lost.traceback.encode()) <= MAX_TRACEBACK_BYTES
    finally:
        await connection.close()
        await backend.close()
