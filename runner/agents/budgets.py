"""Budgets: what a run or its thread may use before an agent stops, or asks whether to go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ..errors import BudgetExceededError, InvalidInputError
from ..legible import brief
from ..models import JsonObject, Usage

if TYPE_CHECKING:
    from .context import RunContext

GO_ON: Final[JsonObject] = {"type": "boolean"}
"""Answers to the question whether to go on: ``true`` grants the same amount once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be used, checked before each model request; the request that crosses a limit is the last one.

    ``tokens`` of input and output; ``cost`` in US dollars, as far as prices are known; ``steps``: model requests; ``seconds``
    that models and tools took, without the time spent waiting for people.

    ``per``: ``run``, or ``thread``: this run and all that count before it. ``on_exceeded``: ``fail`` the run with
    BudgetExceededError, which no attempt would get past, or ``ask`` a human, whose yes grants the same amount once more.

    Raises InvalidInputError for a budget of nothing, or of less than nothing.
    """

    tokens: int | None = None
    cost: float | None = None
    steps: int | None = None
    seconds: float | None = None
    per: Literal["run", "thread"] = "run"
    on_exceeded: Literal["fail", "ask"] = "fail"

    def __post_init__(self) -> None:
        limits = [limit for _, limit in self.limits()]
        if not limits or any(limit <= 0 for limit in limits):
            raise InvalidInputError("a budget has at least one limit, and each is more than 0", field="budget")
        if self.per not in ("run", "thread") or self.on_exceeded not in ("fail", "ask"):
            raise InvalidInputError(
                f"a budget is per run or thread and fails or asks; got {brief(self.per)}, {brief(self.on_exceeded)}",
                field="budget",
            )

    def limits(self) -> Iterator[tuple[str, float]]:
        """The limits that are set, by name."""
        for name in ("tokens", "cost", "steps", "seconds"):
            if (limit := getattr(self, name)) is not None:
                yield name, limit


def amounts(used: Usage) -> dict[str, float]:
    """What was used, by the names of the limits."""
    return {
        "tokens": used.input_tokens + used.output_tokens,
        "cost": used.cost,
        "steps": used.requests,
        "seconds": used.seconds,
    }


class Purse:
    """The budgets of one attempt of a run, and how often each was extended."""

    def __init__(self, context: RunContext, budgets: Sequence[Budget]) -> None:
        self._context = context
        self._budgets = budgets
        self._before: Usage | None = None
        self._granted: dict[str, int] = {}

    async def check(self, used: Usage) -> None:
        """Let another model request be made, given what the run ``used``, or raise BudgetExceededError, or ask."""
        for budget in self._budgets:
            if budget.per == "thread":
                if self._before is None:
                    self._before = await self._context.thread_usage()
                spent = amounts(self._before + used)
            else:
                spent = amounts(used)
            for name, limit in budget.limits():
                await self._check(budget, name, limit, spent[name])

    async def _check(self, budget: Budget, name: str, limit: float, spent: float) -> None:
        what = f"{budget.per}:{name}"
        while spent >= limit * (1 + self._granted.get(what, 0)):
            granted = self._granted.get(what, 0)
            if budget.on_exceeded == "fail" or not await self._ask(what, limit, granted, spent):
                raise BudgetExceededError(
                    f"the {budget.per} has used {spent:g} of {limit * (1 + granted):g} {name}",
                    budget=name,
                    per=budget.per,
                    limit=limit * (1 + granted),
                    used=spent,
                )
            self._granted[what] = granted + 1

    async def _ask(self, what: str, limit: float, granted: int, spent: float) -> bool:
        per, name = what.split(":")
        payload: JsonObject = {
            "question": f"The {per} has used {spent:g} {name}. Grant {limit:g} more?",
            "budget": {"per": per, "name": name, "limit": limit * (1 + granted), "used": spent},
        }
        return await self._context.ask(payload, GO_ON, key=f"budget:{what}:{granted}") is True
