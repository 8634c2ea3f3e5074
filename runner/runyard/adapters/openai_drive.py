"""Execution of an OpenAI Agents SDK agent as an attempt of a run.

The messages of the run record model answers and tool results. A model's answer is stored before its tools start. The result of
a function tool is stored as soon as the tool has returned. A later attempt executes the agent from the prompt again. The SDK
then asks for the same answers and results. The attempt gives the SDK the stored answers and results, without a model request
or a tool call (R9). The SDK's own loop makes all other decisions, for example about handoffs, guardrails and approvals.
"""

from __future__ import annotations

from typing import Any

from agents import Agent, RunConfig, RunHooks
from agents.memory import SessionABC

from ..execution.context import RunContext
from .json_values import result_of
from .openai_attempt import Attempt
from .openai_errors import judged
from .openai_recording import Copies, recorded


async def drive(
    ctx: RunContext,
    agent: Agent[Any],
    *,
    context: object = None,
    run_config: RunConfig | None = None,
    hooks: RunHooks[Any] | None = None,
    max_turns: int = 10,
    stream: bool = True,
) -> None:
    """Execute ``agent`` as this attempt of the run. The arguments are as in :func:`.openai_agent.serve`.

    A text output is the text of the run's last message. Any other output becomes the run's result, as JSON. Raises the SDK's
    and the provider's errors. If another attempt would raise the same error, ``retryable`` of the error is False.
    """
    attempt = Attempt(ctx, await ctx.history(), stream=stream)
    options: dict[str, Any] = {
        "max_turns": max_turns,
        "hooks": hooks,
        "run_config": recorded(attempt, run_config, ctx.thread_id),
        "session": RunSession(attempt),
    }
    with judged():
        result = await attempt.run(Copies(attempt).of(agent), attempt.prompt, {**options, "context": context})
        while result.interruptions:
            state = result.to_state()
            await attempt.decide(state, result.interruptions)
            result = await attempt.run(result.last_agent, state, options)
    output = result.final_output
    if not isinstance(output, str) or output != attempt.said:
        ctx.result = result_of(output)


class RunSession(SessionABC):
    """The session of one attempt. At first the session has the thread's earlier items. The SDK adds the items of each turn."""

    def __init__(self, attempt: Attempt) -> None:
        self.session_id = "run"
        self._attempt = attempt
        self._items: list[Any] = [*attempt.past]

    async def get_items(self, limit: int | None = None) -> list[Any]:
        return [*self._items] if limit is None else self._items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[Any]) -> None:
        self._items += items
        await self._attempt.add(items)

    async def pop_item(self) -> Any:
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        self._items.clear()
