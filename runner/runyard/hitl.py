"""Human in the loop: the ``ask_user`` tool, the policy that approves tool calls, and the channels to a human.

::

    agent = Agent(model="openai:gpt-5", tools=[refund, ask_user_tool()], middleware=[ApprovalPolicyMiddleware(policy=policy)])

In a worker, a question suspends the run and appears in the inbox. In other programs, a channel holds the questions
(:class:`InMemoryChannel`, :class:`CheckpointedChannel`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, Field

from .agents.channels import Channel, CheckpointedChannel, InMemoryChannel
from .domain.approvals import DENIED_IN_TIME, TIMED_OUT
from .domain.messages import ToolCallPart
from .domain.size_limits import JsonObject, JsonValue
from .support.optional_imports import needed_by

with needed_by(__name__):
    from pydantic_ai import Agent as Engine
    from pydantic_ai import RunContext, Tool, ToolDefinition
    from pydantic_ai import messages as ai
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
    from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

__all__ = [
    "ApprovalPolicy",
    "ApprovalPolicyMiddleware",
    "Approve",
    "AskUser",
    "AskUserTool",
    "Channel",
    "CheckpointedChannel",
    "Decision",
    "Deny",
    "InMemoryChannel",
    "Option",
    "Question",
    "ask_user_tool",
]

DEFERRAL: Final = "runyard"
"""Key in the metadata of a deferred call. The value describes the HITL request that the tool call makes
(:mod:`runyard.agents.durable_tools`).
"""


class Option(BaseModel):
    """One answer that a question offers."""

    label: Annotated[str, Field(min_length=1)]
    description: str = ""


class Question(BaseModel):
    """One question to the user.

    Without ``options`` the answer is free text. ``multiple``: the user may choose several options. ``other``: the user may
    answer with free text instead of an option.
    """

    question: Annotated[str, Field(min_length=1)]
    options: list[Option] = Field(default_factory=list)
    multiple: bool = False
    other: bool = True


class AskUserTool(Tool[Any]):
    """The tool that :func:`ask_user_tool` returns. ``channel``: the channel of the tool, or None."""

    channel: Channel | None = None


def ask_user_tool(
    channel: Channel | None = None, *, name: str = "ask_user", description: str | None = None, timeout: float | None = None
) -> AskUserTool:
    """Return a tool with which the model asks the user one or more questions (H9).

    ``channel``: the channel that holds the questions of an in-process Agent. A worker stores the questions with the run
    instead. ``timeout``: seconds to wait for the user, by default the channel's timeout. After this time the model gets an
    error result.

    An answer is ``{"answers": ["…", …]}`` with one entry per question, in order, or ``{"cancelled": true, "reason": "…"}``.
    The entry of a question with ``multiple`` is a list. If there is only one question, the answer may also be its entry alone,
    without the object ``answers``. The result of the tool has the answers. If the user cancelled or did not answer in time,
    the model gets an error result with the details.
    """
    seconds = timeout if timeout is not None or channel is None else channel.default_timeout

    async def ask_user(questions: Annotated[list[Question], Field(min_length=1)]) -> str:
        """Ask the user questions that only they can answer, and wait for the answers.

        Args:
            questions: The questions, asked together.
        """
        asked: dict[str, Any] = {
            "kind": "ask",
            "payload": {
                "question": "\n".join(question.question for question in questions),
                "questions": [question.model_dump(mode="json") for question in questions],
            },
            "schema": answer_schema(questions),
            "timeout": seconds,
            "on_timeout": {"answer": TIMED_OUT},
            "read": lambda answer: read_answers(questions, answer, seconds),
        }
        raise CallDeferred({DEFERRAL: asked}, kind="question")

    tool = AskUserTool(
        ask_user, name=name, description=description, takes_ctx=False, metadata={DEFERRAL: {"asks_humans": True}}
    )
    tool.channel = channel
    return tool


def bound_channels(engine: Engine[Any, Any]) -> list[Channel | None]:
    """Return a list with the channel of each :class:`AskUserTool` and each approval policy of ``engine``. A missing channel is
    None."""
    found: list[Channel | None] = []

    def visit(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            found.extend(tool.channel for tool in toolset.tools.values() if isinstance(tool, AskUserTool))

    for toolset in engine.toolsets:
        toolset.apply(visit)
    engine.root_capability.apply(
        lambda each: found.append(each.channel) if isinstance(each, ApprovalPolicyMiddleware) else None
    )
    return found


def answer_schema(questions: Sequence[Question]) -> JsonObject:
    """Return the JSON schema of the answers to ``questions``."""
    each = [_value_schema(question) for question in questions]
    ways: list[JsonValue] = [
        {
            "type": "object",
            "properties": {"answers": {"type": "array", "prefixItems": [*each], "minItems": len(each), "maxItems": len(each)}},
            "required": ["answers"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"cancelled": {"const": True}, "reason": {"type": "string"}},
            "required": ["cancelled"],
            "additionalProperties": False,
        },
    ]
    return {"anyOf": [*ways, *(each if len(each) == 1 else [])]}


def _value_schema(question: Question) -> JsonObject:
    text: JsonObject = {"type": "string"}
    if question.options and not question.other:
        text = {"enum": [option.label for option in question.options]}
    return {"type": "array", "items": text} if question.multiple else text


def read_answers(questions: Sequence[Question], answer: JsonValue, timeout: float | None = None) -> str | ToolFailed:
    """Return the tool's result for an answer. ``answer``: a value that fits :func:`answer_schema`, or TIMED_OUT."""
    if answer == TIMED_OUT:
        return _failed("The user did not answer in time.", questions, timeout=timeout)
    if isinstance(answer, dict) and answer.get("cancelled"):
        reason = answer.get("reason") or "cancelled"
        return _failed(f"The user cancelled the questions: {reason}", questions, reason=reason)
    given = answer["answers"] if isinstance(answer, dict) else [answer]
    assert isinstance(given, list)
    lines = [f"- {question.question}: {_shown(value)}" for question, value in zip(questions, given, strict=True)]
    return "\n".join(["User answers:", *lines])


def _shown(value: JsonValue) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _failed(what: str, questions: Sequence[Question], **details: JsonValue) -> ToolFailed:
    arguments = {"questions": [question.question for question in questions], **details}
    return ToolFailed(f"{what}\n{json.dumps(arguments, ensure_ascii=False)}")


@dataclass(frozen=True, slots=True)
class Approve:
    """Allow the tool call."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse the tool call. The model gets an error result with the ``reason``."""

    reason: str = "denied by policy"


@dataclass(frozen=True, slots=True)
class AskUser:
    """Let a human approve the call, deny it, or edit its arguments.

    ``prompt``: the question to show. ``timeout``: seconds to wait for the human, by default the channel's timeout. After this
    time the call is denied. ``details``: a JSON object to show beside the call.
    """

    prompt: str | None = None
    timeout: float | None = None
    details: JsonObject | None = None


Decision: TypeAlias = Approve | Deny | AskUser
ApprovalPolicy: TypeAlias = Callable[[ToolCallPart], Decision | Awaitable[Decision]]


class ApprovalPolicyMiddleware(AbstractCapability[Any]):
    """Decides about every tool call before the tool is executed (H9).

    ``policy``: a sync or async function that takes the tool call and returns Approve, Deny or AskUser. Without a policy a human
    decides about each call. ``channel``: the channel that holds the questions of an in-process Agent.

    An approval is valid for one call with its arguments (H5). Edited arguments are validated like the model's arguments. The
    policy may still deny them.
    """

    asks_humans = True

    def __init__(self, channel: Channel | None = None, policy: ApprovalPolicy | None = None) -> None:
        self.channel = channel
        self.policy: ApprovalPolicy = policy or (lambda call: AskUser())

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ai.ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Return ``args`` to allow the call. Raise ToolFailed to refuse the call. Raise ApprovalRequired to ask a human.

        The policy does not apply to calls of a tool with ``asks_humans`` in its metadata, because such a tool only asks a
        human a question.
        """
        if ((tool_def.metadata or {}).get(DEFERRAL) or {}).get("asks_humans"):
            return args
        asked = self.policy(ToolCallPart(id=call.tool_call_id, name=call.tool_name, arguments=call.args_as_dict()))
        decision = await asked if inspect.isawaitable(asked) else asked
        match decision:
            case Deny(reason):
                raise ToolFailed(f"The call was denied: {reason}")
            case AskUser() if not ctx.tool_call_approved:
                raise ApprovalRequired({DEFERRAL: self._question(decision)})
        return args

    def _question(self, ask: AskUser) -> dict[str, Any]:
        timeout = ask.timeout
        if timeout is None and self.channel is not None:
            timeout = self.channel.default_timeout
        return {
            "kind": "approve",
            "question": ask.prompt,
            "details": ask.details,
            "timeout": timeout,
            "on_timeout": DENIED_IN_TIME,
        }
