"""A process that writes to a checkpointer until it is killed, and prints the acknowledged writes.

Usage: ``python -m tests.support.checkpoint_writer URL THREAD appends COUNT`` or ``… URL THREAD turns 0``
"""

from __future__ import annotations

import asyncio
import sys

from runyard.models import HitlRequest, Message
from runyard.ports.commands import Cut, ForkRequest
from runyard.ports.stores import Backend
from runyard_backends.sql.backend import connect_mysql, connect_sqlite


async def connect(url: str) -> Backend:
    return await (connect_sqlite(url) if url.startswith("sqlite:") else connect_mysql(url))


def told(*words: object) -> None:
    print(*words, flush=True)


async def appends(backend: Backend, thread: str, count: int) -> None:
    """Append ``count`` messages, each in a separate call."""
    for n in range(count):
        await backend.checkpointer.append(thread, [Message.user(f"{thread} {n}")])
    told("done")


async def turns(backend: Backend, thread: str) -> None:
    """Make runs and forks, and delete the forks, without an end. Run ``n`` has three messages and the extra ``n``."""
    n = 0
    while True:
        run_id = f"r{n}"
        await backend.checkpointer.claim_run(thread, run_id)
        told("claimed", n)
        texts = [f"{n} {part}" for part in range(3)]
        await backend.checkpointer.append(thread, [Message.user(text, run_id=run_id) for text in texts])
        told("appended", n)
        request = HitlRequest(request_id=f"{thread}-{n}")
        await backend.checkpointer.save_pending_request(thread, request, run_id=run_id)
        await backend.runs.respond(n, thread_id=thread)
        await backend.checkpointer.save_extra(thread, {"n": n})
        await backend.checkpointer.mark_run_complete(thread, run_id)
        told("completed", n)
        await backend.threads.fork(ForkRequest(src=thread, new=f"{thread}-{n}", cut=Cut(after_run_id=run_id)))
        told("forked", n)
        if n:
            await backend.threads.delete_thread(f"{thread}-{n - 1}")
            told("deleted", n - 1)
        n += 1


async def main(url: str, thread: str, what: str, count: str) -> None:
    backend = await connect(url)
    told("ready")
    await (appends(backend, thread, int(count)) if what == "appends" else turns(backend, thread))
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
