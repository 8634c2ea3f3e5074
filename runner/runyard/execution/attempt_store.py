"""The attempt store: the reads and writes of one attempt.

An attempt writes to the run store under its fence. A probe writes to memory only. :mod:`runyard.execution.steps` decides which
steps are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..domain.messages import Message, Usage, by_run
from ..domain.runs import Run
from ..errors import BackendUnavailableError
from ..ports.graph_checkpoints import AttemptGraphs, GraphCheckpointStore
from ..ports.refs import AttemptToken
from ..ports.results import Ledger, Step
from ..ports.runs import RunStore
from ..ports.stores import Backend
from ..support.store_retries import patiently
from .children import Children
from .history_window import page_of


class StoreUnansweredError(BackendUnavailableError):
    """The attempt's own store did not answer. This is not an error of the agent.

    If a deployment that the agent itself calls does not answer, the agent gets a BackendUnavailableError of another class.
    That error counts as an error of the agent.
    """


class AttemptStore(Protocol):
    """The reads and writes of an attempt.

    ``durable``: False in a probe, which cannot ask a human. ``waits``: True if the store keeps waits. ``children``: the object
    that starts children, or None if the attempt cannot have children.

    ``graphs``: the checkpoints of graphs, or None if the attempt has none.

    ``recent``: see :class:`~runyard.ports.stores.RunStore`.

    ``thread_usage``: the usage of the thread's completed runs, and of its cancelled runs whose messages were kept.
    ``run_usage``: the usage in the run's record. The argument ``usage`` of ``append`` and ``finish_step`` is the usage of the
    run so far. This usage is stored in the run's record in the same commit as the messages or the step. If ``usage`` is None,
    the record stays unchanged.

    ``input`` of ``start_step``: the arguments of the step as text (:func:`~.step_inputs.step_input`).
    """

    durable: bool
    waits: bool
    children: Children | None
    graphs: AttemptGraphs | None

    async def context(self) -> list[Message]: ...
    async def recent(self, limit: int, before: Message | None = None) -> list[Message]: ...
    async def ledger(self) -> Ledger: ...
    async def thread_usage(self) -> Usage: ...
    async def run_usage(self) -> Usage: ...
    async def append(self, messages: Sequence[Message], *, first_event: int, usage: Usage | None = None) -> list[Message]: ...
    async def start_step(self, key: str, *, input: str | None = None) -> Step | None: ...
    async def finish_step(self, key: str, result: Any, *, usage: Usage | None = None) -> None: ...


class FencedAttemptStore:
    """The attempt store of a worker's attempt. Every write carries the attempt's fence (I2).

    If the run store does not answer a call, the call is repeated. The run store identifies messages by id and steps by key. If
    the first call has committed its write, the repetition therefore changes nothing.
    """

    durable = True
    waits = True

    def __init__(self, runs: RunStore, of_tenant: Backend, attempt: AttemptToken, thread_id: str) -> None:
        """``of_tenant``: the backend, bound to the tenant of the run."""
        self.graphs: AttemptGraphs | None = AttemptGraphs(of_tenant.graphs, attempt)
        self._runs = runs
        self._of_tenant = of_tenant
        self.children: Children | None = Children(of_tenant, attempt)
        self._attempt = attempt
        self._thread_id = thread_id

    async def context(self) -> list[Message]:
        return await patiently(lambda: self._runs.context(self._attempt))

    async def recent(self, limit: int, before: Message | None = None) -> list[Message]:
        return await patiently(lambda: self._runs.recent(self._attempt, limit, before))

    async def ledger(self) -> Ledger:
        return await patiently(lambda: self._runs.ledger(self._attempt))

    async def thread_usage(self) -> Usage:
        thread = await patiently(lambda: self._of_tenant.threads.thread(self._thread_id))
        return thread.usage if thread is not None else Usage()

    async def run_usage(self) -> Usage:
        run = await patiently(lambda: self._of_tenant.runs.run(self._thread_id, self._attempt.run_id))
        return run.usage if run is not None else Usage()

    async def append(self, messages: Sequence[Message], *, first_event: int, usage: Usage | None = None) -> list[Message]:
        return await patiently(lambda: self._runs.append(self._attempt, messages, first_event=first_event, usage=usage))

    async def start_step(self, key: str, *, input: str | None = None) -> Step | None:
        return await patiently(lambda: self._runs.start_step(self._attempt, key, input=input))

    async def finish_step(self, key: str, result: Any, *, usage: Usage | None = None) -> None:
        await patiently(lambda: self._runs.finish_step(self._attempt, key, result, usage=usage))


class ProbeAttemptStore:
    """The attempt store of a probe. A probe starts from a snapshot and writes to no thread (F9)."""

    durable = False
    waits = False
    children: Children | None = None

    def __init__(self, snapshot: Sequence[Message], run: Run, graphs: GraphCheckpointStore | None = None) -> None:
        """``graphs``: the store of the checkpoints of the tenant's graphs. The probe reads these checkpoints."""
        self.graphs = AttemptGraphs(graphs) if graphs is not None else None
        self._snapshot = snapshot
        self.written = [run.input.model_copy(update={"run_id": run.run_id})] if run.input is not None else []

    async def context(self) -> list[Message]:
        return [*by_run(self._snapshot), *self.written]

    async def recent(self, limit: int, before: Message | None = None) -> list[Message]:
        return page_of([*self._snapshot, *self.written], limit, before)

    async def ledger(self) -> Ledger:
        return Ledger()

    async def thread_usage(self) -> Usage:
        return Usage()

    async def run_usage(self) -> Usage:
        return Usage()

    async def append(self, messages: Sequence[Message], *, first_event: int, usage: Usage | None = None) -> list[Message]:
        self.written += messages
        return list(messages)

    async def start_step(self, key: str, *, input: str | None = None) -> Step | None:
        return None

    async def finish_step(self, key: str, result: Any, *, usage: Usage | None = None) -> None:
        return None
