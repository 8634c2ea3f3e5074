"""What happened: what clients were told, what agents noted, and what Postgres and Redis hold once everything has settled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import asyncpg
from redis.asyncio import Redis

from runyard import Client
from runyard.domain.states import ENDED, RunStatus
from runyard.models import Event, Message
from tests.support.agents.chaos import Note, Plan

Key: TypeAlias = tuple[str, str]
"""A run: the ids of its thread and its own."""


@dataclass(frozen=True, slots=True)
class Accept:
    """An enqueue that was acknowledged. ``sent`` (the first try) and ``acked`` are monotonic seconds. ``late``: due later than
    it was sent; ``host``: in a transaction of the host's own, which also wrote a row of its own; ``parallel``: on a branch and
    a lane of its own."""

    key: Key
    plan: Plan
    sent: float
    acked: float
    late: bool = False
    host: bool = False
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a thread after one of its runs, alone or as one of several: what it said it was shown, and its messages."""

    source: str
    after: str
    plan: Plan
    shown: str
    stop_reason: str
    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel that was acknowledged, at the wall clock's ``acked``. ``messages``: ids of the run's messages right after it."""

    key: Key
    acked: float
    messages: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """One responder's answer to a request. ``refused``: the error's code, None if it was acknowledged."""

    request: str
    response: str
    reason: str
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that was acknowledged, and what it showed at once: message ids."""

    source: str
    after: str
    new: str
    ids: list[str]


@dataclass(frozen=True, slots=True)
class Told:
    """An event as a reader got it. ``message``: the id of the message that it announces as stored."""

    id: str | None
    type: str
    message: str | None = None

    @classmethod
    def of(cls, event: Event) -> Told:
        message = event.data.get("message")
        found = message.get("id") if event.type == "message.completed" and isinstance(message, dict) else None
        return cls(event.id, event.type, str(found) if found else None)


@dataclass(slots=True)
class Seen:
    """What the clients saw. ``complaints``: errors that nobody should get; ``followed``: live readers that came to an end;
    ``signals``: thread and id of each signal that was acknowledged."""

    accepts: list[Accept] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    followed: list[tuple[Key, list[Told]]] = field(default_factory=list)
    signals: list[tuple[str, str]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in Postgres. ``cutoff``: the last completion that it sees. ``parent``: the run of which it is a child. ``ended``:
    the wall clock's time of its end."""

    key: Key
    lane: str | None
    lane_seq: int | None
    status: RunStatus
    fence: int | None = None
    attempt: int = 0
    completion_seq: int | None = None
    error: str | None = None
    cutoff: int | None = None
    parent: Key | None = None
    ended: float | None = None

    @property
    def parallel(self) -> bool:
        """True if it has a branch of its own."""
        return bool(self.lane)

    @property
    def counts(self) -> bool:
        """True if later contexts and forks see it: completed, or cancelled and kept."""
        return self.completion_seq is not None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in Postgres, in its own thread. ``fence``: None for what the store wrote itself; ``at``: the wall clock's."""

    thread: str
    seq: int
    id: str
    run: str
    fence: int | None
    at: float


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request for approval in Postgres."""

    id: str
    key: Key
    response: str | None


@dataclass(frozen=True, slots=True)
class SignalRow:
    """A signal in Postgres. ``number``: its place among all signals. ``run``: the run that took it."""

    id: str
    thread: str
    number: int
    run: str | None


@dataclass(slots=True)
class History:
    """Everything the checker judges.

    ``messages``: per thread, by seq; ``paths``: what each thread shows; ``branches``: the paths to the ends of parallel runs
    that count; ``steps``: (run, step key) → the fence that recorded
    its result; ``attempts``: (run, fence) → how it ended, where it did not complete; ``streams``: each run's events, read after
    everything had settled; ``host_rows``: runs that the host's own table holds; ``leftovers``: keys of Redis that should be
    gone; ``waits``: open waits of runs that ended; ``pauses``: SIGSTOPs past the death limit; ``stale_writes``: writes that
    workers counted as refused.
    """

    seen: Seen = field(default_factory=Seen)
    notes: list[Note] = field(default_factory=list)
    runs: dict[Key, RunRow] = field(default_factory=dict)
    messages: dict[str, list[MessageRow]] = field(default_factory=dict)
    paths: dict[str, list[Message]] = field(default_factory=dict)
    branches: dict[Key, list[Message]] = field(default_factory=dict)
    steps: dict[tuple[Key, str], int] = field(default_factory=dict)
    attempts: dict[tuple[Key, int], str] = field(default_factory=dict)
    requests: list[RequestRow] = field(default_factory=list)
    signals: list[SignalRow] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    streams: dict[Key, list[Told]] = field(default_factory=dict)
    host_rows: set[Key] = field(default_factory=set)
    leftovers: list[str] = field(default_factory=list)
    pauses: int = 0
    stale_writes: int = 0


HOST_TABLE: Final = "CREATE TABLE host_rows (thread text, run text, PRIMARY KEY (thread, run))"


async def collect(url: str, redis: Sequence[str], client: Client, trace: Path, seen: Seen, streams: int) -> History:
    """Read everything, directly from the servers. ``streams``: of how many runs at most to read the events again."""
    history = History(seen=seen, notes=_notes(trace))
    connection = await asyncpg.connect(url)
    try:
        await _read_rows(connection, history)
    finally:
        await connection.close()
    for thread in {thread for thread, _ in history.runs} | {fork.new for fork in seen.forks}:
        history.paths[thread] = await path_of(client, thread)
    for run in history.runs.values():
        if run.parallel and run.counts:
            last = [row.id for row in history.messages[run.key[0]] if row.run == run.key[1]][-1]
            history.branches[run.key] = await path_of(client, run.key[0], last)
    every = max(1, len(history.runs) // streams)
    for key in [*history.runs][::every]:
        if history.runs[key].status in ENDED:
            history.streams[key] = [Told.of(event) async for event in client.stream(*key)]
    history.leftovers = await leftovers(redis)
    return history


async def path_of(client: Client, thread: str, leaf: str | None = None) -> list[Message]:
    """All messages that the thread shows, up to ``leaf`` or its last one."""
    found: list[Message] = []
    cursor = None
    while True:
        page = await client.messages(thread, leaf, limit=500, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


async def leftovers(urls: Sequence[str]) -> list[str]:
    """Scheduling keys on the servers: none is left once every run has ended or waits for a human (H1)."""
    names: list[str] = []
    for url in urls:
        async with Redis.from_url(url, decode_responses=True) as redis:
            names += [str(name) async for name in redis.scan_iter(match="runyard:*", count=1000)]
    return sorted(name for name in names if name.split(":")[2] in ("job", "queue", "lock", "wait"))


def _notes(trace: Path) -> list[Note]:
    lines = trace.read_text().splitlines() if trace.exists() else []
    return sorted((Note(**json.loads(line)) for line in lines), key=lambda note: note.at)


RUNS: Final = """
    SELECT r.*, p.thread_id AS parent_thread, p.run_id AS parent_run, extract(epoch FROM r.finished_at)::float8 AS ended
    FROM runyard.runs r
    LEFT JOIN runyard.runs p ON p.thread_key = r.started_by_key AND p.run_id = r.started_by_run_id AND p.kind = 'prompt'
    WHERE r.kind = 'prompt'
"""
MESSAGES: Final = """
    SELECT t.thread_id, m.seq, m.message_id::text AS id, m.run_id, split_part(m.event_id, '-', 1)::bigint AS fence,
           extract(epoch FROM m.created_at)::float8 AS at
    FROM runyard.messages m JOIN runyard.branches b USING (branch_id) JOIN runyard.threads t USING (thread_key)
    WHERE m.run_id IS NOT NULL ORDER BY t.thread_id, m.seq
"""
STEPS: Final = """
    SELECT r.thread_id, r.run_id, s.step_key, s.fence FROM runyard.steps s JOIN runyard.runs r USING (accept_no)
    WHERE s.done AND r.kind = 'prompt'
"""
ATTEMPTS: Final = (
    "SELECT r.thread_id, r.run_id, a.fence, a.outcome FROM runyard.attempts a JOIN runyard.runs r USING (accept_no)"
)
REQUESTS: Final = """
    SELECT h.request_id, t.thread_id, h.run_id, h.response_id
    FROM runyard.hitl_requests h JOIN runyard.threads t USING (thread_key)
"""
SIGNALS: Final = """
    SELECT s.signal_id, t.thread_id, s.signal_no, s.run_id FROM runyard.signals s JOIN runyard.threads t USING (thread_key)
    ORDER BY s.signal_no
"""
WAITS: Final = """
    SELECT w.kind || ' ' || w.wait_id AS wait FROM runyard.waits w JOIN runyard.runs r USING (thread_key, run_id)
    WHERE w.ended_at IS NULL AND w.kind <> 'child' AND r.finished_at IS NOT NULL
"""


async def _read_rows(connection: asyncpg.Connection, history: History) -> None:
    for row in await connection.fetch(RUNS):
        history.runs[_key(row)] = RunRow(
            key=_key(row),
            lane=row["lane"],
            lane_seq=row["lane_seq"],
            status=RunStatus(row["status"]),
            fence=row["fence"],
            attempt=row["attempt"],
            completion_seq=row["completion_seq"],
            error=row["error"],
            cutoff=row["snapshot_cutoff"],
            parent=(row["parent_thread"], row["parent_run"]) if row["parent_run"] is not None else None,
            ended=row["ended"],
        )
    for row in await connection.fetch(MESSAGES):
        message = MessageRow(row["thread_id"], row["seq"], row["id"], row["run_id"], row["fence"], row["at"])
        history.messages.setdefault(message.thread, []).append(message)
    history.steps = {(_key(row), row["step_key"]): row["fence"] for row in await connection.fetch(STEPS)}
    history.attempts = {(_key(row), row["fence"]): row["outcome"] for row in await connection.fetch(ATTEMPTS)}
    history.requests = [
        RequestRow(row["request_id"], _key(row), row["response_id"]) for row in await connection.fetch(REQUESTS)
    ]
    history.signals = [
        SignalRow(row["signal_id"], row["thread_id"], row["signal_no"], row["run_id"])
        for row in await connection.fetch(SIGNALS)
    ]
    history.waits = [row["wait"] for row in await connection.fetch(WAITS)]
    history.host_rows = {(row["thread"], row["run"]) for row in await connection.fetch("SELECT thread, run FROM host_rows")}


def _key(row: asyncpg.Record) -> Key:
    return row["thread_id"], row["run_id"]
