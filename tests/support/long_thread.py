"""A thread whose snapshots are difficult. Its runs overlap, fail, or end in another order than they began. It also has messages
without a run. It is copied into Postgres, or made on any store by verbs.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import asyncpg

from runyard.models import Message
from runyard.ports.stores import Backend
from runyard_backends.postgres.codec import pack

OVERLAP = 4
FAILED, STORED = 0.05, 0.04
"""Share of runs that fail, and number of messages without a run per run."""


@dataclass
class ScriptedRun:
    """One run. ``seqs``: the numbers of its messages. ``high_water``: that of the branch when the run completed, or None."""

    number: int
    fails: bool
    snapshot_tip: int = 0
    snapshot_cutoff: int = 0
    seqs: list[int] = field(default_factory=list)
    completion_seq: int | None = None
    high_water: int | None = None

    @property
    def id(self) -> str:
        return f"run-{self.number}"


@dataclass(frozen=True)
class ScriptedMessage:
    """One message. ``run``: None for a message without a run."""

    seq: int
    run: ScriptedRun | None
    role: str

    @property
    def id(self) -> str:
        return str(uuid.UUID(int=(0x7000 << 64) | (0x8 << 60) | self.seq, version=4))

    def message(self) -> Message:
        make = Message.user if self.role == "user" else Message.assistant
        return make(f"message {self.seq}", id=self.id, run_id=self.run.id if self.run else None)


Event = tuple[str, ScriptedRun | None, ScriptedMessage | None]


class LongThread:
    """A script. ``events``: the ``begin`` and ``end`` of each run and each ``message``, in order. ``runs``: their outcomes."""

    def __init__(self, runs: int, *, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self.runs = [ScriptedRun(n, fails=self._random.random() < FAILED) for n in range(1, runs + 1)]
        self.messages: list[ScriptedMessage] = []
        self.completed: list[ScriptedRun] = []
        self.high_water = 0
        self.events: list[Event] = list(self._play())

    def _play(self) -> Iterator[Event]:
        waiting, open_ = iter(self.runs), list[ScriptedRun]()
        while True:
            while len(open_) < self._random.randint(1, OVERLAP) and (run := next(waiting, None)) is not None:
                run.snapshot_tip, run.snapshot_cutoff = len(self.messages), len(self.completed)
                open_.append(run)
                yield "begin", run, None
                yield "message", run, self._message(run, "user")
            if not open_:
                return
            run = self._random.choice(open_)
            if len(run.seqs) < 2:
                yield "message", run, self._message(run, "assistant")
            else:
                open_.remove(run)
                if not run.fails:
                    self._complete(run)
                yield "end", run, None
            if self._random.random() < STORED / 3:
                yield "message", None, self._message(None, "user")

    def _message(self, run: ScriptedRun | None, role: str) -> ScriptedMessage:
        message = ScriptedMessage(len(self.messages) + 1, run, role)
        self.messages.append(message)
        if run is not None:
            run.seqs.append(message.seq)
        return message

    def _complete(self, run: ScriptedRun) -> None:
        self.completed.append(run)
        self.high_water = max(self.high_water, run.seqs[-1])
        run.completion_seq, run.high_water = len(self.completed), self.high_water

    def snapshot(self, run: ScriptedRun) -> list[str]:
        """Return the ids of the messages that a fork after ``run`` sees (F1)."""
        assert run.high_water is not None and run.completion_seq is not None
        return [
            message.id
            for message in self.messages[: run.high_water]
            if message.run is None or 0 < (message.run.completion_seq or 0) <= run.completion_seq
        ]

    def overtaken(self) -> ScriptedRun:
        """Return a run of the second half whose last message is before a message of a run that completed earlier."""
        middle = self.completed[len(self.completed) // 2 :]
        return next(run for run in middle if run.high_water is not None and run.high_water > run.seqs[-1])

    async def play(self, backend: Backend, thread_id: str) -> None:
        """Make the thread by verbs, with external runs. A run that fails is cancelled."""
        checkpointer = backend.checkpointer
        for kind, run, message in self.events:
            if message is not None:
                await checkpointer.append(thread_id, [message.message()])
            elif kind == "begin":
                assert run is not None
                await checkpointer.claim_run(thread_id, run.id)
            elif run is not None and run.fails:
                await backend.runs.cancel(thread_id, run.id)
            elif run is not None:
                await checkpointer.mark_run_complete(thread_id, run.id)

    async def copy(self, connection: asyncpg.Connection, thread_id: str) -> None:
        """Copy the rows into an existing, empty thread of the default tenant, as runs of workers."""
        thread = await connection.fetchrow(
            "SELECT thread_key, head_branch FROM runyard.threads WHERE thread_id = $1", thread_id
        )
        assert thread is not None
        key, branch = thread["thread_key"], thread["head_branch"]
        await _copy(connection, "messages", _MESSAGES, ((branch, *_message_row(m)) for m in self.messages))
        numbers = "SELECT nextval('runyard.lane_numbers') FROM generate_series(1, $1)"
        lanes = [row[0] for row in await connection.fetch(numbers, len(self.runs))]
        now = await connection.fetchval("SELECT now()")
        rows = (
            ("", thread_id, run.id, key, "prompt", "failed" if run.fails else "completed", run.id, lane, "default", "normal",
             "{}", branch, run.seqs[0], run.seqs[-1], run.completion_seq, run.high_water, lane, now, now, now,
             run.snapshot_tip, run.snapshot_cutoff)
            for run, lane in zip(self.runs, lanes, strict=True)
        )  # fmt: skip
        await _copy(connection, "runs", _RUNS, rows)
        await connection.execute(
            "UPDATE runyard.threads SET next_seq = $2, next_completion_seq = $3 WHERE thread_key = $1",
            *(key, len(self.messages) + 1, len(self.completed) + 1),
        )
        last = next(m for m in reversed(self.messages) if m.run is None or m.run.completion_seq is not None)
        await connection.execute(
            "UPDATE runyard.branches SET high_water_seq = $2, leaf_seq = $3, leaf_id = $4 WHERE branch_id = $1",
            *(branch, self.high_water, last.seq, last.id),
        )


_MESSAGES = ["branch_id", "seq", "message_id", "run_id", "role", "payload"]
_RUNS = [
    *("tenant", "thread_id", "run_id", "thread_key", "kind", "status", "lane", "lane_seq", "queue", "priority", "request_hash"),
    *("branch_id", "first_seq", "last_seq", "completion_seq", "high_water_seq", "fence", "admitted_at", "started_at"),
    *("finished_at", "snapshot_tip", "snapshot_cutoff"),
]


def _message_row(message: ScriptedMessage) -> tuple[object, ...]:
    payload = pack({"content": [{"type": "text", "text": f"message {message.seq}"}]})
    return message.seq, message.id, message.run.id if message.run else None, message.role, payload


async def _copy(connection: asyncpg.Connection, table: str, columns: list[str], rows: Iterator[tuple[object, ...]]) -> None:
    await connection.copy_records_to_table(table, schema_name="runyard", columns=columns, records=rows)
