"""Fan-outs: their candidates, their progress and their results (F11, F14, F15)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from pydantic import ConfigDict, Field

from .base_models import StrictModel
from .messages import Message, StopReason, Usage
from .runs import ErrorInfo, ForkOnceResult
from .size_limits import JsonObject
from .states import ENDED, RunStatus

CandidateStatus = Literal["queued", "running", "parked", "completed", "failed", "cancelled"]

ENDED_CANDIDATE: Final = frozenset({"completed", "failed", "cancelled"})
"""The statuses of a candidate that has ended."""

MAX_CANDIDATES: Final = 1_000
"""Maximum number of messages in one fan-out."""
MAX_PARALLEL_CANDIDATES: Final = 100
"""Maximum number of candidates of one fan-out that run at the same time. The worker of the fork job keeps the context of each
running probe in memory."""

KEY_PREFIX: Final = "candidate:"
"""The beginning of the keys of the steps that record candidates. ``postgres/functions/candidates.sql`` has the same text."""
JUDGE: Final = "judge"
"""The key of the step that records the judge's answer."""


class Candidate(StrictModel):
    """One message of a fan-out with its answer.

    ``number``: the index of the message. ``status``: the status of the candidate. A candidate that was not begun, or waits for
    a worker, is ``queued``. A candidate whose run is suspended is ``parked``. A candidate that was not begun before the fork
    job ended is ``cancelled``. A candidate whose thread was deleted is ``cancelled`` too. ``thread_id``: the id of the
    candidate's thread, or None for a probe. ``text``: the text of the last assistant message. ``messages``: the messages that
    the candidate added. ``stop_reason``: None until the candidate has ended. ``error``: the cause of a failure. ``usage``: the
    usage of this candidate only. ``omitted``: ``["messages"]`` if the first messages of the candidate are left out, because all
    of them would exceed the size of a page. Messages are left out only for a candidate with a thread. The answer of a probe is
    always complete.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    status: CandidateStatus
    thread_id: str | None = None
    text: str = ""
    messages: list[Message] = Field(default_factory=list)
    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None
    usage: Usage = Field(default_factory=Usage)
    omitted: list[str] = Field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the candidate succeeded."""
        return self.status == "completed"


class FanOutProgress(StrictModel):
    """The number of a fan-out's candidates in each status, and the usage so far. ``total``: the number of all candidates.

    ``usage``: the usage of all candidates and of the judge. The usage of each candidate is counted once. The usage can grow
    after the end of the fork job, while runs of candidates continue on their threads. A cancel of the fork job does not cancel
    these runs. With ``stop="first"``, the fork job cancels the runs that did not win. Such a run adds usage until its worker
    has stopped it.
    """

    total: int
    queued: int = 0
    running: int = 0
    parked: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    usage: Usage = Field(default_factory=Usage)

    @property
    def ended(self) -> int:
        """The number of candidates that have ended."""
        return self.completed + self.failed + self.cancelled


@dataclass(frozen=True)
class ForkManyResult:
    """The result of a fan-out (F11).

    ``results``: one candidate per message, in the order of the messages. ``winner``: the index in ``results`` of the candidate
    that the judge or ``stop="first"`` chose. ``winner`` is None if no candidate was chosen. ``verdict``: the answer of the
    judge, or None if no judge ran. ``usage``: the usage of all candidates and of the judge.
    """

    results: list[Candidate]
    winner: int | None = None
    verdict: ForkOnceResult | None = None
    usage: Usage = field(default_factory=Usage)


class CandidateRecord(NamedTuple):
    """A fork job's record of a candidate. ``outcome``: the status with which the candidate ended, or None. ``size``: the number
    of bytes of ``value``. ``value`` is None if it was not read. ``fence``: the fence of the attempt that wrote the record."""

    number: int
    fence: int
    outcome: CandidateStatus | None = None
    usage: Usage | None = None
    size: int = 0
    value: JsonObject | None = None


class CandidateRun(NamedTuple):
    """The run of a candidate on the candidate's thread.

    ``messages``: the last messages of the run. ``messages`` is None if they were not read, or if the run has not ended.
    ``cut``: True if earlier messages are left out.
    """

    status: RunStatus
    usage: Usage
    error: ErrorInfo | None = None
    messages: Sequence[Message] | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class FanOutState:
    """The fork job of a fan-out. ``usage``: the usage of the fork job, of its probes and of its judge.

    The usage of candidates' runs on threads is not included.
    """

    thread_id: str
    run_id: str
    total: int
    threads: bool
    status: RunStatus
    fence: int | None
    usage: Usage


def key_of(number: int) -> str:
    """Return the key of the step that records a candidate."""
    return f"{KEY_PREFIX}{number}"


def number_of(key: str) -> int | None:
    """Return the number of the candidate that the step ``key`` records, or None for another step."""
    number = key.removeprefix(KEY_PREFIX)
    return int(number) if number != key else None


def outcome_of(stop_reason: StopReason) -> CandidateStatus:
    """Return the status of a candidate that ended with ``stop_reason``."""
    match stop_reason:
        case "error":
            return "failed"
        case "aborted" | "cancelled":
            return "cancelled"
        case _:
            return "completed"


def recorded_outcome(outcome: CandidateStatus | None, value: JsonObject | None) -> CandidateStatus | None:
    """Return the status with which a candidate ended, or None if its record shows no end.

    ``value``: the value of the record, or None if it was not read. A record that a worker of the previous release wrote has no
    ``outcome``. In such a record, the answer of a probe has a stop reason. The record of a run on a thread shows only the start
    of the run.
    """
    if outcome is None and value is not None and "stop_reason" in value:
        return outcome_of(value["stop_reason"])
    return outcome


def stop_reason_of(status: RunStatus, messages: Sequence[Message]) -> StopReason:
    """Return the stop reason of a candidate's run that has ended. ``messages``: the run's messages, at least the last one."""
    said = next((message.stop_reason for message in reversed(messages) if message.role == "assistant"), None)
    if status is RunStatus.COMPLETED:
        return said or "stop"
    if status is RunStatus.CANCELLED:
        return "aborted" if said == "aborted" else "cancelled"
    return "error"


def status_of(job: FanOutState, record: CandidateRecord | None, run: CandidateRun | None) -> CandidateStatus:
    """Return the status of one candidate. ``run``: its run, or None for a probe and for a deleted thread."""
    if record is not None and record.outcome is not None:
        return record.outcome
    if run is not None:
        return _OF_RUNS[run.status]
    if job.status in ENDED or (record is not None and job.threads):
        return "cancelled"
    held = record is not None and job.status is RunStatus.RUNNING and record.fence == job.fence
    return "running" if held else "queued"


def usage_of(record: CandidateRecord | None, run: CandidateRun | None) -> Usage:
    """Return the usage of one candidate. If the thread of the candidate's run was deleted, the usage comes from the record."""
    if run is not None:
        return run.usage
    return (record.usage if record is not None else None) or Usage()


def progress_of(job: FanOutState, records: Iterable[CandidateRecord], runs: Mapping[int, CandidateRun]) -> FanOutProgress:
    """Count the candidates of a fan-out. ``runs``: the runs of candidates with threads, by number."""
    found = {record.number: record for record in records}
    progress = FanOutProgress(total=job.total, usage=job.usage)
    for number in range(job.total):
        record, run = found.get(number), runs.get(number)
        status = status_of(job, record, run)
        setattr(progress, status, getattr(progress, status) + 1)
        if job.threads:
            progress.usage += usage_of(record, run)
    return progress


_OF_RUNS: Final[Mapping[RunStatus, CandidateStatus]] = {
    RunStatus.QUEUED: "queued",
    RunStatus.RUNNING: "running",
    RunStatus.SUSPENDED: "parked",
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.DEAD: "failed",
    RunStatus.CANCELLED: "cancelled",
}
