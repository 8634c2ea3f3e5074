"""The memory store's limits: how much may wait, how large a message may be, how many runs may run at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from runner.app import DEFAULT_AGENT
from runner.bounds import MESSAGE_BYTES, check_content, message_size
from runner.errors import MessageTooLargeError, QueueFullError
from runner.exchange import Effects
from runner.models import PRIORITIES, Limit, LimitName, Message, Run, check_fields, check_message
from runner.states import RunStatus

from .state import Database, RunState, Slot, ThreadState, job

RETRY_AFTER = 1
"""Seconds."""


class MemoryLimitStore:
    """Over all tenants."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def limits(self) -> list[Limit]:
        """All that are set, by name; those without a subject first."""
        found = [Limit(name=name, subject=subject, most=most) for (name, subject), most in self.db.limits.items()]
        return sorted(found, key=lambda limit: (limit.name, limit.subject is not None, limit.subject or ""))

    async def set_limit(self, limit: Limit) -> None:
        self.db.limits[limit.name, limit.subject] = limit.most

    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool:
        return self.db.limits.pop((name, subject), None) is not None

    async def review_limits(self) -> Effects:
        """Offer what waits for a slot that is free."""
        return offers(self.db, {run.slot for _, run in _runs(self.db) if run.slot is not None})


def limit_of(db: Database, name: LimitName, subject: str | None = None) -> int | None:
    """What the limit allows ``subject``."""
    return db.limits.get((name, subject), db.limits.get((name, None)))


def check_size(db: Database, messages: Iterable[Message]) -> None:
    """Raises MessageTooLargeError; InvalidInputError for what else is too much in a message."""
    most = limit_of(db, "message_bytes")
    most = MESSAGE_BYTES if most is None else most
    size = 0
    for message in messages:
        check_fields(check_message(message))
        check_content(message)
        size = max(size, message_size(message))
    if size > most:
        raise MessageTooLargeError(
            f"a message of {size} bytes is over the limit of {most}", limit="message_bytes", most=most, size=size
        )


def check_room(db: Database, thread: ThreadState, run: RunState, lane: str) -> None:
    """Raises QueueFullError if the run would be one too many. A lane's own limit counts what is not due yet, too."""
    queued = [(t, r) for t, r in _runs(db) if r.run.status is RunStatus.QUEUED]
    ahead = [r for t, r in queued if t is thread and (r.lane_seq is None or r.run.lane == lane)]
    own_lane = run.run.kind == "prompt" and not run.run.options.parallel
    counts: list[tuple[LimitName, str | None, int]] = [
        ("queued_per_lane", None, len(ahead) if own_lane else -1),
        ("queued_per_tenant", thread.tenant, sum(t.tenant == thread.tenant for t, _ in queued)),
        ("queued", None, len(queued)),
    ]
    for name, subject, waiting in counts:
        most = limit_of(db, name, subject)
        if most is not None and waiting >= most:
            message = f"the limit {name} is reached: {waiting} waiting, {most} allowed"
            raise QueueFullError(message, limit=name, most=most, retry_after=RETRY_AFTER)


def slots_of(db: Database, thread: ThreadState, run: Run) -> list[Slot]:
    """What the run takes a slot of while it runs."""
    wanted: list[Slot] = [("running_per_agent", run.agent or DEFAULT_AGENT), ("running_per_tenant", thread.tenant)]
    return [slot for slot in wanted if limit_of(db, *slot) is not None]


def missing_slot(db: Database, thread: ThreadState, run: RunState) -> Slot | None:
    """The slot that the run has to wait for: none is free, or those before it in the line come first."""
    for slot in slots_of(db, thread, run.run):
        line = [r for _, r in _line(db, slot)]
        before = line.index(run) if run in line else len(line)
        if _free(db, slot) <= before:
            return slot
    return None


def wait_for(db: Database, thread: ThreadState, run: RunState, slot: Slot) -> Effects:
    """Put the run into the line. A tenant that has none there comes behind the other tenants."""
    left = run.slot
    if left == slot:
        return offers(db, [slot])
    if not any(t.tenant == thread.tenant for t, _ in _line(db, slot)):
        db.turns[slot, thread.tenant] = db.number()
    run.slot, run.changed_at = slot, db.now()
    return offers(db, [left] if left else [])


def take_turn(db: Database, thread: ThreadState, run: RunState) -> None:
    """The run leaves the line for its slot; its tenant goes behind the other tenants."""
    if run.slot is not None:
        db.turns[run.slot, thread.tenant] = db.number()
        run.slot = None


def leave_line(db: Database, run: RunState) -> Effects:
    """The run cannot be claimed for another reason; whoever stands behind it must not wait for that."""
    left, run.slot = run.slot, None
    return offers(db, [left] if left else [])


def offers(db: Database, slots: Iterable[Slot]) -> Effects:
    """The first in each line, as many as slots are free. They stay in the line until they are claimed."""
    effects = Effects()
    for slot in sorted(slots):
        effects.jobs += [job(t, r, db.now()) for t, r in _line(db, slot)[: _free(db, slot)]]
    return effects


def _free(db: Database, slot: Slot) -> int:
    most = limit_of(db, *slot)
    running = [
        r for t, r in _runs(db) if r.run.status is RunStatus.RUNNING and not r.external and slot in slots_of(db, t, r.run)
    ]
    return max(most - len(running), 0) if most is not None else 1000


def _line(db: Database, slot: Slot) -> list[tuple[ThreadState, RunState]]:
    """The first of each tenant, by turns, then the second of each, and so on; a tenant's own by priority."""
    tenants: defaultdict[str, list[tuple[ThreadState, RunState]]] = defaultdict(list)
    for thread, run in _runs(db):
        if run.slot == slot:
            tenants[thread.tenant].append((thread, run))
    places = [
        (place, db.turns[slot, tenant], pair)
        for tenant, line in tenants.items()
        for place, pair in enumerate(sorted(line, key=lambda pair: (PRIORITIES.index(pair[1].run.priority), pair[1].lane_seq)))
    ]
    return [pair for _, _, pair in sorted(places, key=lambda found: found[:2])]


def _runs(db: Database) -> Sequence[tuple[ThreadState, RunState]]:
    return [(t, r) for t in db.threads.values() if not t.deleted for r in t.runs.values()]
