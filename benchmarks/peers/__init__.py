"""The contestants from PyPI. Each module is imported only when its contestant starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.board import Board
from benchmarks.lab import Lab
from benchmarks.ports import Conversation, Queue, Store

SLOTS = 100
"""Number of jobs that a worker process may run at once, the same for every contestant."""


@dataclass(frozen=True)
class QueueContestant:
    """A queue with its settings.

    ``poll``: seconds over which the pick-up samples are spread, which covers all phases of the polling. ``jobs``: number of
    jobs that a throughput turn enqueues. ``ordered``: whether jobs of a key run one by one. ``main_connection``: the Redis
    client name of a worker's main connection, or None if it has no name.
    """

    name: str
    open: Callable[[Lab, Board], AbstractAsyncContextManager[Queue]]
    poll: float
    jobs: int
    ordered: bool = False
    main_connection: str | None = None


def _arq(poll: float) -> Callable[[Lab, Board], AbstractAsyncContextManager[Queue]]:
    def start(lab: Lab, board: Board) -> AbstractAsyncContextManager[Queue]:
        from benchmarks.peers import arq_peer

        return arq_peer.start(lab, board, poll=poll, slots=SLOTS)

    return start


def _saq(lab: Lab, board: Board) -> AbstractAsyncContextManager[Queue]:
    from benchmarks.peers import saq_peer

    return saq_peer.start(lab, board, slots=SLOTS)


def _glued(lab: Lab, board: Board) -> AbstractAsyncContextManager[Queue]:
    from benchmarks.peers import glued_peer

    return glued_peer.start(lab, board, slots=SLOTS)


def _dbos(
    poll: float, *, workflow: str = "noop", ordered: bool = False
) -> Callable[[Lab, Board], AbstractAsyncContextManager[Queue]]:
    def start(lab: Lab, board: Board) -> AbstractAsyncContextManager[Queue]:
        from benchmarks.peers import dbos_peer

        return dbos_peer.start(lab, board, poll=poll, workflow=workflow, ordered=ordered, slots=SLOTS)

    return start


def cubeloop_store(lab: Lab) -> AbstractAsyncContextManager[Store]:
    """Open cubeloop's Postgres checkpointer."""
    from benchmarks.peers import cubeloop_peer

    return cubeloop_peer.connect(lab)


def graph(lab: Lab) -> AbstractAsyncContextManager[Conversation]:
    """Open a LangGraph graph on LangGraph's own Postgres saver."""
    from benchmarks.peers import langgraph_peer

    return langgraph_peer.own_saver(lab)


def graph_on_runyard(lab: Lab) -> AbstractAsyncContextManager[Conversation]:
    """Open the same graph on runyard's saver."""
    from benchmarks.peers import langgraph_peer

    return langgraph_peer.runyard_saver(lab)


ARQ = QueueContestant("arq, 10 ms polling", _arq(0.01), poll=0.01, jobs=3000)
ARQ_DEFAULT = QueueContestant("arq, default polling", _arq(0.5), poll=0.5, jobs=2000)
SAQ = QueueContestant("SAQ", _saq, poll=0.02, jobs=3000)
GLUED = QueueContestant("SAQ glued to Postgres", _glued, poll=0.02, jobs=2000)
DBOS = QueueContestant("DBOS, 10 ms polling", _dbos(0.01), poll=0.01, jobs=600)
DBOS_DEFAULT = QueueContestant("DBOS, default polling", _dbos(1.0), poll=1.0, jobs=300)
DBOS_ORDERED = QueueContestant("DBOS, serial per key", _dbos(0.01, ordered=True), poll=0.01, jobs=600, ordered=True)
DBOS_STEPS = QueueContestant(
    "DBOS, a step per message", _dbos(0.01, workflow="turn", ordered=True), poll=0.01, jobs=600, ordered=True
)
DBOS_TOOLS = QueueContestant("DBOS steps", _dbos(0.01, workflow="tools"), poll=0.01, jobs=400)
DBOS_TOOLS_ORDERED = QueueContestant(
    "DBOS steps, serial per key", _dbos(0.01, workflow="tools", ordered=True), poll=0.01, jobs=400, ordered=True
)
