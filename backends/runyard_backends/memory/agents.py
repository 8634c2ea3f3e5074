"""Choose the agent of a run. A request can name the agent. Otherwise the run gets the agent of its thread. If the thread has
none, the run gets the default agent of a namespace."""

from __future__ import annotations

from runyard.domain.agent_names import is_agent, namespace_of
from runyard.models import Run
from runyard.ports.workers import WorkerInfo

from .state import Database, RunState, ThreadState


def agent_of(db: Database, wanted: str | None, of_thread: str | None) -> str | None:
    """Return the agent of a run. ``wanted``: the agent of the request. ``of_thread``: the agent of the thread.

    If no worker of the namespace was ever registered, its default agent is unknown. In this case, return the name that stands
    for the default agent of a namespace, or None for a program without a namespace.
    """
    if is_agent(wanted):
        return wanted
    if not is_agent(of_thread):
        name = of_thread if of_thread is not None else wanted
        return db.default_agents.get(namespace_of(name), name)
    return of_thread


def queue_of(db: Database, agent: str | None) -> str:
    """Return the queue of the runs of an agent."""
    return db.agents.get(agent or "") or namespace_of(agent) or "default"


def note_agent(thread: ThreadState, run: Run) -> None:
    """Record the agent of the first prompt of the thread as the agent of the thread."""
    if run.kind == "prompt" and not is_agent(thread.thread.agent) and run.agent is not None:
        thread.thread.agent = run.agent


def name_agent(thread: ThreadState, run: RunState, worker: WorkerInfo) -> None:
    """Choose the agent of a run that names no agent, when ``worker`` claims the run. Take the agent of the thread, or else the
    default agent of the worker. If the kind of the run is ``prompt``, the agent becomes the agent of the thread too. If the
    worker does not serve the run's namespace, change nothing."""
    if is_agent(run.run.agent) or run.run.kind == "fork":
        return
    if is_agent(thread.thread.agent):
        run.run.agent = thread.thread.agent
    elif worker.default_agent is not None and worker.serves(run.run.agent):
        run.run.agent = worker.default_agent
        note_agent(thread, run.run)


def choose_default(db: Database, changed: WorkerInfo) -> None:
    """Choose the default agent of a worker's namespace after the worker was registered, left or died.

    The namespace keeps its default agent while a live worker has the same default agent. If no live worker has this default
    agent, take the default agent of the live worker that was registered last. Without any live worker, change nothing.
    """
    namespace = namespace_of(changed.default_agent)
    live = [worker.default_agent for worker in db.workers.values() if worker.dead_at is None]
    found = [name for name in live if name is not None and namespace_of(name) == namespace]
    if found and db.default_agents.get(namespace) not in found:
        db.default_agents[namespace] = found[-1]
