"""A probe in this process: one prompt on a snapshot, by the same path as a worker's, and nothing kept (semantics: F9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import AgentCancelledError, HitlNotAllowedError
from ..eventwriter import EventStream
from ..exchange import Attempt
from ..models import ForkOnceResult, Message
from .context import RunContext
from .journal import ProbeJournal
from .keeper import RESERVED, capability
from .signals import unwrap
from .solo import Listeners, external_run
from .steps import current_context

if TYPE_CHECKING:
    from ..agent import Agent
    from ..ports import Checkpointer


async def probe(
    agent: Agent, checkpointer: Checkpointer, src_thread_id: str, after_run_id: str, message: Message
) -> ForkOnceResult:
    """Ask the snapshot after a run one question. Raises as :meth:`runner.Agent.fork_once`."""
    from ..forkjobs import probe_outcome  # brings the metrics along

    if agent.asks_humans:
        raise HitlNotAllowedError(
            f"agent {agent.name!r} asks humans and nobody can answer a probe; build one without its HITL tools, middleware "
            "and channel",
            agent=agent.name,
        )
    snapshot = await capability(checkpointer, "snapshot")(src_thread_id, after_run_id=after_run_id)
    data = await checkpointer.load(src_thread_id)
    extra = {key: value for key, value in data.extra.items() if key != RESERVED} if data is not None else {}
    assert message.run_id is not None
    run = external_run(src_thread_id, message.run_id, message, kind="fork_once")
    journal = ProbeJournal(snapshot, run)
    context = RunContext(run, journal, EventStream(Listeners(), Attempt(0, run.run_id, 0), src_thread_id), extra=extra)

    async def work() -> None:
        current_context.set(context)
        await agent(context)

    task = asyncio.create_task(work(), name=f"probe of thread {src_thread_id}")
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
    left = await context.remainder()
    cancelled = AgentCancelledError("the agent was cancelled from inside", run_id=run.run_id)
    error = cancelled if task.cancelled() else task.exception()
    return probe_outcome([*journal.written, *left.messages], unwrap(error) if error else None)
