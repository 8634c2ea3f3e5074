"""Answers that are not simply one of :mod:`runyard.models`."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from runyard.client.run_handle import RunResult
from runyard.domain.api_keys import Scope
from runyard.models import AttemptInfo, Branch, ErrorInfo, FeedEntry, HitlRequest, Message, Run, StopReason, Thread
from runyard.ports.workers import WorkerInfo


class StreamToken(BaseModel):
    """Goes into the query of a stream's URL: ``?token=…``. Ends with the key that asked for it."""

    token: str
    expires_at: datetime


class StreamOf(BaseModel):
    """Which streams a token opens: one run's, or with ``run_id`` null all of the thread."""

    thread_id: str
    run_id: str | None


class WhoAmI(BaseModel):
    """Who asks. ``id`` is what limits count by."""

    tenant: str
    id: str
    name: str | None = None
    key_id: str | None = Field(None, description="Of the API key, or of the key that asked for the token.")
    scopes: list[Scope]
    expires_at: datetime | None = Field(None, description="Of the key or the token.")
    reads: StreamOf | None = Field(None, description="What a stream token opens; it opens nothing else.")


class ForkMade(BaseModel):
    """The new thread, and the run of its first prompt if there was one."""

    thread: Thread
    run: Run | None = None


class RunOutcome(BaseModel):
    """Where a run stopped: ended, or suspended with its ``requests``. ``messages``: those that it wrote; ``text``: of its last
    answer. ``omitted``: which of ``messages`` and ``requests`` are more than 8 MiB; then the last messages are here, and the
    oldest requests. The other messages stand on the path to the ``parent_id`` of the first one here."""

    run: Run
    text: str = ""
    messages: list[Message] = Field(default_factory=list)
    requests: list[HitlRequest] = Field(default_factory=list)
    omitted: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, result: RunResult) -> RunOutcome:
        """The outcome that a handle gave."""
        return cls.model_construct(text=result.text, **result.__dict__)


class ProbeAnswer(BaseModel):
    """What a probe answered: ``text`` of its last message, and only the messages that it added."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    messages: list[Message]
    stop_reason: StopReason


class CandidateAnswer(ProbeAnswer):
    """What became of one message of a fan-out. ``thread_id``: its thread, if it has one. ``error``: why it failed."""

    thread_id: str | None = None
    error: ErrorInfo | None = None


class FanOutAnswer(BaseModel):
    """``results`` in the order of the messages, ``winner`` as an index into them, and what the judge said."""

    model_config = ConfigDict(from_attributes=True)

    results: list[CandidateAnswer]
    winner: int | None = None
    verdict: ProbeAnswer | None = None


class Explanation(BaseModel):
    """One sentence: why the run is not running, or what it does."""

    explanation: str


class ThreadPage(BaseModel):
    items: list[Thread]
    next: str | None = None


class RunPage(BaseModel):
    items: list[Run]
    next: str | None = None


class MessagePage(BaseModel):
    items: list[Message]
    next: str | None = None


class BranchPage(BaseModel):
    """Leaves of a thread's message tree."""

    items: list[Branch]
    next: str | None = None


class RequestPage(BaseModel):
    items: list[HitlRequest]
    next: str | None = None


class FeedPage(BaseModel):
    """``next`` is always set: the feed has no end."""

    items: list[FeedEntry]
    next: str


class AttemptPage(BaseModel):
    """What workers made of a run, attempt by attempt."""

    items: list[AttemptInfo]
    next: str | None = None


class Agent(BaseModel):
    """An agent that live workers serve."""

    name: str
    queues: list[str]
    workers: int = Field(description="Live workers that serve it and do not drain.")
    versions: list[str]


class Agents(BaseModel):
    items: list[Agent]


class Worker(BaseModel):
    """A worker process."""

    worker_id: str
    queues: list[str]
    agents: dict[str, str]
    app_version: str | None
    slots: int
    address: str | None
    heartbeat_at: datetime | None
    silent_for: float | None
    dead_at: datetime | None
    draining: bool

    @classmethod
    def of(cls, worker: WorkerInfo) -> Worker:
        """What is shown of a worker."""
        return cls.model_validate({name: getattr(worker, name) for name in cls.model_fields})


class Workers(BaseModel):
    """The workers of the deployment. A dead worker stays in the list for a day."""

    items: list[Worker]


class Readiness(BaseModel):
    """``reasons``: why the process does not serve. ``degraded``: what is slower meanwhile, such as Redis away."""

    ready: bool
    reasons: list[str] = Field(default_factory=list)
    degraded: list[str] = Field(default_factory=list)


class Liveness(BaseModel):
    alive: bool = True
