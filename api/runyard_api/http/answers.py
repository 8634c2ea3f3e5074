"""Models of responses that :mod:`runyard.models` does not have."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError

from runyard.agents.budgets import LimitName
from runyard.client.run_handle import RunResult
from runyard.domain.api_keys import Scope
from runyard.domain.limits import Limit
from runyard.domain.runs import VersionPolicy
from runyard.domain.webhooks import Webhook, WebhookDelivery
from runyard.formats.pages import MessageLoss
from runyard.models import (
    AttemptInfo,
    Branch,
    Candidate,
    ErrorInfo,
    FeedEntry,
    HitlRequest,
    JsonObject,
    Message,
    Run,
    StopReason,
    Thread,
    Usage,
)
from runyard.ports.workers import BlockedLoop, QueueInfo, RedisOutage, WorkerInfo

from .problems import Problem


class StreamToken(BaseModel):
    """A token for the query of a stream's URL: ``?token=…``. The token becomes invalid at the latest with the key that created
    it."""

    token: str
    expires_at: datetime


class StreamOf(BaseModel):
    """The streams that a token opens. With ``run_id``, the token opens the stream of this run. If ``run_id`` is null, the
    token opens all streams of the thread."""

    thread_id: str
    run_id: str | None


class WhoAmI(BaseModel):
    """The caller. ``id``: the name by which requests and streams are counted."""

    tenant: str
    id: str
    name: str | None = None
    key_id: str | None = Field(None, description="Id of the API key, or of the key that created the token.")
    scopes: list[Scope]
    expires_at: datetime | None = Field(None, description="Expiry of the key or of the token.")
    reads: StreamOf | None = Field(None, description="The streams that a stream token opens. The token gives no other access.")


class ForkMade(BaseModel):
    """The new thread. If the request had a first prompt, also the run of this prompt."""

    thread: Thread
    run: Run | None = None


class RunOutcome(BaseModel):
    """The outcome of a run that ended or was suspended. ``text``: the text of the run's last answer. ``messages``: the messages
    that the run wrote. ``requests``: the requests that wait for an answer. ``omitted``: the names of the lists that were larger
    than 8 MiB and were shortened. A shortened list of messages has only the last messages. To read the earlier messages, read
    the path to the ``parent_id`` of the first message in this list. A shortened list of requests has only the oldest
    requests."""

    run: Run
    text: str = ""
    messages: list[Message] = Field(default_factory=list)
    requests: list[HitlRequest] = Field(default_factory=list)
    omitted: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, result: RunResult) -> RunOutcome:
        """Return the outcome for the result of a handle."""
        return cls.model_construct(text=result.last_text, **result.__dict__)


class PromptOutcome(BaseModel):
    """The outcome of one prompt of a batch: the run or a problem. ``created``: true if this request created the run, false if
    the run existed before. The run lacks its large values. The field ``omitted`` of the run has the names of these values."""

    created: bool = False
    run: Run | None = None
    problem: Problem | None = None


class PromptOutcomes(BaseModel):
    """The outcomes of a batch, in the order of its prompts."""

    items: list[PromptOutcome]


class ProbeAnswer(BaseModel):
    """The answer of a probe. ``text``: the text of the last message. ``messages``: the messages that the probe added.
    ``error``: the error with which the agent failed, or null."""

    model_config = ConfigDict(from_attributes=True)

    text: str
    messages: list[Message]
    stop_reason: StopReason
    error: ErrorInfo | None = None


class FanOutAnswer(BaseModel):
    """The outcome of a fan-out. ``results``: the first candidates, in the order of the messages. ``next``: the cursor with
    which ``…/candidates`` of the fork job ``run_id`` returns further candidates, or null. ``winner``: the number of the
    candidate that won, or null. ``verdict``: the answer of the judge. ``usage``: the usage of all candidates and of the
    judge."""

    run_id: str
    results: list[Candidate]
    next: str | None = None
    winner: int | None = None
    verdict: ProbeAnswer | None = None
    usage: Usage


class CandidatePage(BaseModel):
    """Candidates of a fan-out."""

    items: list[Candidate]
    next: str | None = None


class Explanation(BaseModel):
    """One sentence about a run: the reason why it waits, or its current activity."""

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


class BranchMessages(BaseModel):
    """Messages that belong to one branch, in order. ``branches``: the number of the thread's branches."""

    items: list[Message]
    branches: int


class FormattedMessagePage(BaseModel):
    """Messages in the format that the request named. A message can have several items, or none. ``message_ids``: for each of
    ``items``, the id of its message. ``losses``: values of the messages that are missing in the items."""

    items: list[JsonObject]
    message_ids: list[str]
    losses: list[MessageLoss] = Field(default_factory=list)
    next: str | None = None


class BranchPage(BaseModel):
    """Leaves of a thread's message tree."""

    items: list[Branch]
    next: str | None = None


class RequestPage(BaseModel):
    items: list[HitlRequest]
    next: str | None = None


class FeedPage(BaseModel):
    """A page of the feed. ``next`` is always set, because the feed has no end."""

    items: list[FeedEntry]
    next: str


class AttemptPage(BaseModel):
    """The attempts of a run."""

    items: list[AttemptInfo]
    next: str | None = None


class AgentBudget(BaseModel):
    """A budget of an agent: limits on the usage of a run or of its thread."""

    model_config = ConfigDict(extra="forbid")

    per: Literal["run", "thread"]
    on_exceeded: Literal["fail", "ask"]
    limits: dict[LimitName, FiniteFloat] = Field(
        description="Limits of `tokens`, `cost` (US dollars), `steps` and `seconds`, by name."
    )


def _known(budgets: Any) -> list[AgentBudget]:
    """Return the budgets of ``budgets`` that AgentBudget can show completely. Return [] if ``budgets`` is not a list or tuple.
    The others are left out: an agent on a worker of a later release can have budgets with values, fields or limits that this
    release does not know."""
    known = []
    for budget in budgets if isinstance(budgets, (list, tuple)) else ():
        with suppress(ValidationError):
            known.append(AgentBudget.model_validate(budget))
    return known


AgentBudgets = Annotated[list[AgentBudget], BeforeValidator(_known)]
"""Budgets of an agent, without the budgets that this release does not know."""


class Agent(BaseModel):
    """An agent that live workers serve."""

    name: str
    queues: list[str]
    workers: int = Field(description="Number of live workers that serve the agent and are not draining.")
    versions: list[str]
    budgets: AgentBudgets | None = Field(
        description="Budgets in the definition of the agent, on the worker that started last, or null. Null if the key belongs "
        "to a tenant and lacks the scope `admin`. Budgets that this release does not know are missing."
    )


class Agents(BaseModel):
    items: list[Agent]


class Worker(BaseModel):
    """A worker process."""

    worker_id: str
    queues: list[str]
    agents: dict[str, str]
    budgets: dict[str, AgentBudgets] = Field(
        description="Budgets in the definitions of the agents, by agent. Budgets that this release does not know are missing."
    )
    default_agent: str | None = Field(description="The agent for runs whose requests name no agent, or null.")
    app_version: str | None
    on_version_mismatch: VersionPolicy
    slots: int
    address: str | None
    heartbeat_at: datetime | None
    silent_for: float | None
    dead_at: datetime | None
    draining: bool
    blocked: BlockedLoop | None = Field(
        description="Place and seconds, if user code blocks the main loop, or blocked it when the worker was declared dead."
    )
    redis_outage: RedisOutage | None = Field(
        description="Start and reason, if the worker does not reach Redis, or did not when it was declared dead."
    )

    @classmethod
    def of(cls, worker: WorkerInfo) -> Worker:
        """Return the fields of a worker that the API shows."""
        return cls.model_validate({name: getattr(worker, name) for name in cls.model_fields})


class Workers(BaseModel):
    """The workers of the deployment. A dead worker stays in the list for a day."""

    items: list[Worker]


class WebhookPage(BaseModel):
    """Webhooks, without their secrets."""

    items: list[Webhook]
    next: str | None = None


class DeliveryPage(BaseModel):
    """Deliveries of webhooks."""

    items: list[WebhookDelivery]
    next: str | None = None


class QueuePage(BaseModel):
    """Queues of all tenants."""

    items: list[QueueInfo]
    next: str | None = None


class PausedQueue(BaseModel):
    """A paused queue."""

    queue: str
    paused_at: datetime


class ResumedQueue(BaseModel):
    """A queue that is not paused. ``was_paused``: true if this request ended its pause."""

    queue: str
    was_paused: bool


class Limits(BaseModel):
    """The limits of the deployment."""

    items: list[Limit]


class Cleared(BaseModel):
    """The removal of a limit. ``cleared``: true if the limit was set before."""

    cleared: bool


class Key(BaseModel):
    """An API key, without its text."""

    key_id: str
    tenant: str
    name: str
    scopes: list[Scope]
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class NewKey(Key):
    """A new API key. ``text``: the text that requests send. The server does not store this text."""

    text: str = Field(repr=False)


class Keys(BaseModel):
    """The API keys of a tenant."""

    items: list[Key]


class RevokedKey(BaseModel):
    """The revocation of a key. ``revoked``: true if this request revoked the key."""

    revoked: bool


class DoctorFinding(BaseModel):
    """The result of one check. ``do``: the solution of the problem, or an empty text if there is no problem."""

    model_config = ConfigDict(from_attributes=True)

    level: Literal["ok", "warn", "fail"]
    about: str
    says: str
    do: str = ""


class DoctorReport(BaseModel):
    """The findings of the doctor."""

    items: list[DoctorFinding]


class WorkerStacks(BaseModel):
    """The stack of each thread and each task of a worker."""

    worker_id: str
    stacks: str


class Readiness(BaseModel):
    """The readiness to serve requests. ``reasons``: the errors because of which the server is not ready. ``degraded``: errors
    that only delay runs, for example an unreachable Redis."""

    ready: bool
    reasons: list[str] = Field(default_factory=list)
    degraded: list[str] = Field(default_factory=list)


class Liveness(BaseModel):
    alive: bool = True
