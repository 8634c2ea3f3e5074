"""A probe in this process: one prompt on a snapshot.

The probe is executed in the same way as in a worker, and is not stored (F9).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..domain.messages import Message
from ..domain.runs import ForkOnceResult
from ..errors import AgentCancelledError, HitlNotAllowedError
from ..events.writer import EventEmitter
from ..execution import log_fields
from ..execution.attempt_store import ProbeAttemptStore
from ..execution.context import RunContext
from ..execution.control_signals import probe_error
from ..execution.steps import current_context
from ..ports.refs import AttemptToken
from .local_attempt import Listeners, external_run
from .local_thread import RESERVED, capability

if TYPE_CHECKING:
    from ..ports.stores import Checkpointer
    from .agent import Agent


async def probe(
    agent: Agent, checkpointer: Checkpointer, src_thread_id: str, after_run_id: str, message: Message
) -> ForkOnceResult:
    """Execute ``message`` on the snapshot after a run. Raises the errors of :meth:`runyard.Agent.fork_once`."""
    from ..execution.fork_runs import probe_outcome  # this module imports the metrics

    if agent.asks_humans:
        raise HitlNotAllowedError(
            f"agent {agent.name!r} asks humans, and a probe cannot; build an agent without HITL tools, middleware and channel",
            agent=agent.name,
        )
    snapshot = await capability(checkpointer, "snapshot")(src_thread_id, after_run_id=after_run_id)
    data = await checkpointer.load(src_thread_id)
    extra = {key: value for key, value in data.extra.items() if key != RESERVED} if data is not None else {}
    assert message.run_id is not None
    run = external_run(src_thread_id, message.run_id, message, kind="fork_once")
    attempt_store = ProbeAttemptStore(snapshot, run)
    stream = EventEmitter(Listeners(), AttemptToken(0, run.run_id, 0), src_thread_id)
    context = RunContext(run, attempt_store, stream, extra=extra, config=data.config if data is not None else {})

    async def work() -> None:
        current_context.set(context)
        with log_fields.of_attempt(run, run.fence or 1):
            await agent(context)

    task = asyncio.create_task(work(), name=f"probe of thread {src_thread_id}")
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        raise
    left = await context.remainder()
    cancelled = AgentCancelledError("the agent cancelled its own task", run_id=run.run_id)
    error = cancelled if task.cancelled() else task.exception()
    return probe_outcome([*attempt_store.written, *left.messages], probe_error(left.signal, error))
