"""Load runyard's contestants from ``benchmarks.runyard_side``, if that module exists.

Without the module, only the peers are measured. An error inside ``runyard_side`` is raised.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import AbstractAsyncContextManager
from typing import cast

from benchmarks.board import Board
from benchmarks.lab import Lab
from benchmarks.peers import SLOTS, QueueContestant
from benchmarks.ports import Queue, RunyardSide

NAME = "runyard"
SIDE = "benchmarks.runyard_side"
JOBS = {"noop": 4000, "tools": 1000}
"""Agent → number of its runs that a throughput turn enqueues."""


def side() -> RunyardSide | None:
    """Return the module ``benchmarks.runyard_side``, or None if it does not exist."""
    if importlib.util.find_spec(SIDE) is None:
        return None
    return cast(RunyardSide, importlib.import_module(SIDE))


def queues(agent: str = "noop") -> list[QueueContestant]:
    """Return a list with runyard as a queue contestant whose jobs are runs of ``agent``, or an empty list if runyard is not
    available."""
    module = side()
    if module is None:
        return []

    def start(lab: Lab, board: Board) -> AbstractAsyncContextManager[Queue]:
        return module.queue(lab, board, slots=SLOTS, agent=agent)

    jobs = JOBS.get(agent, 600)
    return [QueueContestant(NAME, start, poll=0.02, jobs=jobs, ordered=True, main_connection=module.MAIN_CONNECTION)]
