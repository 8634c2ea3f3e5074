"""Draw a tree of threads as a graph of turns. The oldest turn is on top. Each line of conversation has a column, which the code
calls a graph lane.

This module makes rows of text from :class:`Turn` objects, without I/O. A turn is a run with its messages, or a single message
without a run. A fork has its parent's turns before the cut. Therefore the turns of all threads form one tree. A column splits
at each fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

KEPT_AT_AN_END: Final = 3
"""Number of turns to show at each end of a long stretch without forks."""


@dataclass
class Turn:
    """A run with its messages, or one message without a run.

    ``key``: the id of the first message. ``parent``: the key of the previous turn. For the first turn of a child, this is the
    turn of the run that started the child. ``refs``: ids of the threads that end at this turn. ``started_by``: the thread id
    and the run id of the parent, if this run is a child.
    """

    key: str
    thread_id: str
    created_at: datetime
    parent: str | None = None
    run_id: str | None = None
    status: str = "stored"
    prompt: str = ""
    answer: str = ""
    refs: list[str] = field(default_factory=list)
    started_by: tuple[str, str] | None = None


@dataclass(frozen=True)
class Row:
    """One line of the graph: its columns (``lanes``), and its turn or None. ``hidden``: the number of turns that are not shown
    at this line."""

    lanes: str
    turn: Turn | None = None
    hidden: int = 0


NODE: Final = {
    "completed": "●",
    "running": "◐",
    "suspended": "◆",
    "failed": "✗",
    "dead": "✗",
    "cancelled": "○",
    "queued": "○",
    "stored": "•",
}


def draw(turns: Iterable[Turn], *, full: bool = False) -> list[Row]:
    """Return the rows, the oldest turn first. ``full``: do not shorten long stretches without forks."""
    known = {turn.key: turn for turn in turns}
    children: dict[str | None, list[Turn]] = {}
    for turn in _by_age(known.values()):
        children.setdefault(turn.parent if turn.parent in known else None, []).append(turn)
    hidden = {} if full else _stretches(known, children)
    skipped = {key for keys in hidden.values() for key in keys}
    rows: list[Row] = []
    lanes: list[str | None] = []
    waiting = list(children.get(None, []))
    while waiting:
        turn = min(waiting, key=lambda one: (one.created_at, one.key))
        waiting.remove(turn)
        lane = lanes.index(turn.key) if turn.key in lanes else _free(lanes)
        lanes[lane] = turn.key
        if turn.key in hidden:
            rows.append(Row(_line(lanes, lane, "⋮"), hidden=len(hidden[turn.key])))
        elif turn.key not in skipped:
            rows.append(Row(_line(lanes, lane, NODE.get(turn.status, "●")), turn))
        heirs = _heirs(turn, children.get(turn.key, []))
        waiting += heirs
        lanes[lane] = heirs[0].key if heirs else None
        opened = []
        for heir in heirs[1:]:
            place = _free(lanes, after=lane)
            lanes[place] = heir.key
            opened.append(place)
        if opened:
            rows.append(Row(_fork_line(lanes, lane, opened)))
        while lanes and lanes[-1] is None:
            lanes.pop()
    return rows


def _by_age(turns: Iterable[Turn]) -> list[Turn]:
    return sorted(turns, key=lambda turn: (turn.created_at, turn.key))


def _heirs(turn: Turn, heirs: Sequence[Turn]) -> list[Turn]:
    """Return the turns after ``turn``: first the turn in the same column, then the turns that open columns."""
    return sorted(heirs, key=lambda heir: (heir.thread_id != turn.thread_id, heir.status in ("failed", "dead", "cancelled")))


def _free(lanes: list[str | None], after: int = -1) -> int:
    for place in range(after + 1, len(lanes)):
        if lanes[place] is None:
            return place
    lanes.append(None)
    return len(lanes) - 1


def _line(lanes: Sequence[str | None], lane: int, node: str) -> str:
    return " ".join(node if place == lane else "│" if key else " " for place, key in enumerate(lanes)).rstrip()


def _fork_line(lanes: Sequence[str | None], lane: int, opened: Sequence[int]) -> str:
    """Return ``├─┬─╮`` from the column ``lane`` to each column in ``opened``, across the columns in between."""
    last = max(opened)
    cells: list[str] = []
    for place, key in enumerate(lanes):
        if place == lane:
            cells.append("├─")
        elif place in opened:
            cells.append("╮ " if place == last else "┬─")
        elif lane < place < last:
            cells.append("┼─" if key else "──")
        else:
            cells.append("│ " if key else "  ")
    return "".join(cells).rstrip()


def _stretches(known: dict[str, Turn], children: dict[str | None, list[Turn]]) -> dict[str, list[str]]:
    """Return a map with the turns to hide in each long stretch without forks, ends or failures. The key is the first hidden
    turn."""

    def plain(turn: Turn) -> bool:
        return len(children.get(turn.key, [])) == 1 and not turn.refs and turn.status in ("completed", "stored")

    hidden: dict[str, list[str]] = {}
    for turn in known.values():
        parent = known.get(turn.parent or "")
        if not plain(turn) or (parent is not None and plain(parent)):
            continue
        stretch = [turn]
        while plain(following := children[stretch[-1].key][0]):
            stretch.append(following)
        middle = stretch[KEPT_AT_AN_END:-KEPT_AT_AN_END]
        if len(middle) > 1:
            hidden[middle[0].key] = [one.key for one in middle]
    return hidden
