"""Load runyard's contestants from ``benchmarks.runyard_side``, if that module exists.

A checkout with the peers alone still runs. An error in ``runyard_side`` is raised.
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


def side() -> RunyardSide | None:
    """Return the module that drives runyard through its public client, or None if it does not exist."""
    if importlib.util.find_spec(SIDE) is None:
        return None
    return cast(RunyardSide, importlib.import_module(SIDE))


def queues() -> list[QueueContestant]:
    """Return runyard as a queue contestant, in a list of one or none."""
    module = side()
    if module is None:
        return []

    def start(lab: Lab, board: Board) -> AbstractAsyncContextManager[Queue]:
        return module.queue(lab, board, slots=SLOTS)

    return [QueueContestant(NAME, start, poll=0.02, jobs=2000, ordered=True, main_connection=module.MAIN_CONNECTION)]
