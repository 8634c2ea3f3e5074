"""Limits in memory: on queued runs, on the size of a message, on running runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from runyard.domain.runs import DEFAULT_AGENT
from runyard.domain.size_limits import MESSAGE_BYTES, check_content, message_size
from runyard.domain.states import RunStatus
from runyard.errors import MessageTooLargeError, QueueFullError
from runyard.models import PRIORITIES, Limit, LimitName, Message, Run, check_fields, check_message
from runyard.ports.scheduling import Effects

from .state import Database, Permit, RunState, ThreadState, job

RETRY_AFTER_SECONDS = 1
"""Seconds after which a client can repeat a call that a limit on queued runs refused."""


class MemoryLimitStore:
    """Store of the deployment's limits. The store belongs to no tenant."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def limits(self) -> list[Limit]:
        """Return all limits that are set, in the order of their names. Among limits with the same name, the limit without a
        subject comes first."""
        found = [Limit(name=name, subject=subject, most=most) for (name, subject), most in self.db.limits.items()]
        return sorted(found, key=lambda limit: (limit.name, limit.subject is not None, limit.subject or ""))

    async def set_limit(self, limit: Limit) -> None:
        self.db.limits[limit.name, limit.subject] = limit.most

    async def clear_limit(self, name: LimitName, subject: str | None = None) -> bool:
        return self.db.limits.pop((name, subject), None) is not None

    async def review_limits(self) -> Effects:
        """Return the jobs of waiting runs for which a permit is free."""
        return offers(self.db, {run.permit for _, run in _runs(self.db) if run.permit is not None})


def limit_of(db: Database, name: LimitName, subject: str | None = None) -> int | None:
    """Return the value of the limit ``name`` for ``subject``. If this limit is not set, return the value of the limit ``name``
    without a subject. Return None if neither of the two limits is set.
    """
    return db.limits.get((name, subject), db.limits.get((name, None)))


def check_size(db: Database, messages: Iterable[Message]) -> None:
    """Check the size of messages. Raises MessageTooLargeError if a message has more bytes than the limit. Raises
    InvalidInputError if a field of a message is invalid or too large."""
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
    """Raise QueueFullError if the run would exceed a limit on queued runs. The limit per lane also counts runs that are not
    admitted."""
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
            raise QueueFullError(message, limit=name, most=most, retry_after=RETRY_AFTER_SECONDS)


def permits_of(db: Database, thread: ThreadState, run: Run) -> list[Permit]:
    """Return the permits that the run holds while it runs."""
    wanted: list[Permit] = [("running_per_agent", run.agent or DEFAULT_AGENT), ("running_per_tenant", thread.tenant)]
    return [permit for permit in wanted if limit_of(db, *permit) is not None]


def missing_permit(db: Database, thread: ThreadState, run: RunState) -> Permit | None:
    """Return a permit for which the run must wait, or None. The free permits go to the first runs in the permit's line. All
    later runs must wait."""
    for permit in permits_of(db, thread, run.run):
        line = [r for _, r in _line(db, permit)]
        before = line.index(run) if run in line else len(line)
        if _free(db, permit) <= before:
            return permit
    return None


def wait_for_permit(db: Database, thread: ThreadState, run: RunState, permit: Permit) -> Effects:
    """Add the run to the line of ``permit``. The tenants in the line take turns. A tenant without a run in the line becomes the
    last of them. If the run leaves the line of another permit, offer that permit to other runs."""
    left = run.permit
    if left == permit:
        return offers(db, [permit])
    if not any(t.tenant == thread.tenant for t, _ in _line(db, permit)):
        db.turns[permit, thread.tenant] = db.number()
    run.permit, run.changed_at = permit, db.now()
    return offers(db, [left] if left else [])


def take_turn(db: Database, thread: ThreadState, run: RunState) -> None:
    """Remove a run from the line, because the run gets its permit. Of the tenants that take turns in the line, the run's tenant
    becomes the last."""
    if run.permit is not None:
        db.turns[run.permit, thread.tenant] = db.number()
        run.permit = None


def leave_line(db: Database, run: RunState) -> Effects:
    """Remove a run from the line, because its claim was refused for another reason than a missing permit. Offer the permit to
    the runs behind it."""
    left, run.permit = run.permit, None
    return offers(db, [left] if left else [])


def offers(db: Database, permits: Iterable[Permit]) -> Effects:
    """Return one job for each free permit, for the first runs of the permit's line. The runs stay in the line until a worker
    claims them."""
    effects = Effects()
    for permit in sorted(permits):
        effects.jobs += [job(t, r, db.now()) for t, r in _line(db, permit)[: _free(db, permit)]]
    return effects


def _free(db: Database, permit: Permit) -> int:
    most = limit_of(db, *permit)
    running = [
        r for t, r in _runs(db) if r.run.status is RunStatus.RUNNING and not r.external and permit in permits_of(db, t, r.run)
    ]
    return max(most - len(running), 0) if most is not None else 1000


def _line(db: Database, permit: Permit) -> list[tuple[ThreadState, RunState]]:
    """Return the runs that wait for the permit, in the order of the line. The tenants take turns: the line begins with one run
    of each tenant, and then has the second run of each tenant. Runs of one tenant are ordered by priority, then by
    admission."""
    tenants: defaultdict[str, list[tuple[ThreadState, RunState]]] = defaultdict(list)
    for thread, run in _runs(db):
        if run.permit == permit:
            tenants[thread.tenant].append((thread, run))
    places = [
        (place, db.turns[permit, tenant], pair)
        for tenant, line in tenants.items()
        for place, pair in enumerate(sorted(line, key=lambda pair: (PRIORITIES.index(pair[1].run.priority), pair[1].lane_seq)))
    ]
    return [pair for _, _, pair in sorted(places, key=lambda found: found[:2])]


def _runs(db: Database) -> Sequence[tuple[ThreadState, RunState]]:
    return [(t, r) for t in db.threads.values() if not t.deleted for r in t.runs.values()]
