"""Read the context of an attempt: all its messages, or only its last messages. A read of all messages uses the history that
the process keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from runyard.models import Message
from runyard.ports.refs import AttemptToken

from . import codec, history
from .database import Database
from .history_cache import kept_with

_ALL: Final = 2**63 - 1
_NOTHING_HELD: Final = "[]"


async def whole(db: Database, attempt: AttemptToken) -> list[Message]:
    """Return all messages that the run sees. Raises StaleFenceError."""
    key = attempt.thread_key
    offered = db.histories.of_thread(key)
    rows: list[codec.Row] = []
    own: list[codec.Row] = []
    head, *part = await _part(db, attempt, codec.to_json([each.described for each in offered.values()]), -1, -1)
    state = codec.from_json(head["note"])
    base = offered[state["branch_id"]] if state["held"] else None
    while True:
        count = next((n for n in range(len(part), 0, -1) if not part[n - 1]["own"]), 0)
        rows += part[:count]
        own += part[count:]
        if not history.more_after(part):
            break
        after = rows[-1]["seq"] if rows else base.seq if base is not None else -1
        _, *part = await _part(db, attempt, _NOTHING_HELD, after, own[-1]["seq"] if own else -1)
    snapshot = kept_with(base, rows, thread_key=key, **{name: state[name] for name in ("branch_id", "cutoff", "generation")})
    if snapshot is not None:  # after an erasure between two parts, the generation of the first part is no longer valid
        db.histories.keep(snapshot)
    return await history.lazily([*(snapshot.rows if snapshot is not None else ()), *history.kept(own, thread_key=key)])


async def recent(db: Database, attempt: AttemptToken, limit: int, before: Message | None = None) -> list[Message]:
    """Return up to ``limit`` messages that the run sees, the last one first. ``before``: a message that an earlier call has
    returned. Return only messages before this message. Only an empty list means that there are no more messages. Raises
    StaleFenceError."""
    own = before is not None and before.run_id == attempt.run_id
    places = (_ALL, _ALL) if before is None else (_ALL, before.seq) if own else (before.seq, 0)
    held = (attempt.thread_key, attempt.run_id, attempt.fence)
    rows = await db.rows("recent", *held, *places, limit, db.page_bytes)
    return await history.messages(rows, thread_key=attempt.thread_key)


async def _part(db: Database, attempt: AttemptToken, held: str, after: int, own_after: int) -> Sequence[codec.Row]:
    token = (attempt.thread_key, attempt.run_id, attempt.fence)
    return await db.rows("context", *token, held, after, own_after, history.PART_MESSAGES, db.page_bytes)
