"""Budgets: limits on the usage of a run or its thread. At a limit, the run fails or asks a human.

Only agents of pydantic-ai have budgets. ``engine.py`` checks the budgets.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from ..domain.messages import Usage
from ..domain.quoting import brief
from ..domain.size_limits import JsonObject
from ..errors import BudgetExceededError, InvalidInputError

if TYPE_CHECKING:
    from ..execution.context import RunContext

GO_ON: Final[JsonObject] = {"type": "boolean"}
"""Schema of the answer to the question whether to continue. After ``true`` the run may use the same amount again."""

LimitName: TypeAlias = Literal["tokens", "cost", "steps", "seconds"]
LIMITS: Final[tuple[LimitName, ...]] = get_args(LimitName)
"""The names of the limits of a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on usage, checked before each model request. A request during which the usage reaches a limit is still completed.

    ``tokens``: number of input and output tokens. ``cost``: US dollars. A request without a known price costs nothing.
    ``steps``: number of model requests. ``seconds``: the time that models and tools took. The time in which the run waits for
    people does not count.

    ``per``: ``run`` counts the usage of this run only. ``thread`` also counts the usage of the thread's completed runs, and of
    cancelled runs that kept their messages. ``on_exceeded``: ``fail`` fails the run with BudgetExceededError, without another
    attempt. ``ask`` asks a human. If the human answers ``true``, the limit is raised by its original amount.

    Raises InvalidInputError if no limit is given. Each limit must be a number above 0, and not NaN. A limit can be a Decimal or
    infinity. A finite limit must fit into a float.
    """

    tokens: int | None = None
    cost: float | None = None
    steps: int | None = None
    seconds: float | None = None
    per: Literal["run", "thread"] = "run"
    on_exceeded: Literal["fail", "ask"] = "fail"

    def __post_init__(self) -> None:
        for name in LIMITS:
            if (given := getattr(self, name)) is not None and not _is_number(given):
                raise InvalidInputError(f"{name} must be a number that a float can hold; got {brief(given)}", field="budget")
        limits = [limit for _, limit in self.limits()]
        if not limits or not all(limit > 0 for limit in limits):  # no comparison with NaN is true
            raise InvalidInputError("a budget needs at least one limit, and each limit must be more than 0", field="budget")
        if self.per not in ("run", "thread") or self.on_exceeded not in ("fail", "ask"):
            raise InvalidInputError(
                f"per must be run or thread, and on_exceeded fail or ask; got {brief(self.per)}, {brief(self.on_exceeded)}",
                field="budget",
            )

    def describe(self) -> JsonObject:
        """Return the budget as JSON: ``per``, ``on_exceeded``, and ``limits``, a map from names to numbers. Infinite
        limits are missing, because no run reaches them."""
        limits: JsonObject = {name: limit for name, limit in self.limits() if math.isfinite(limit)}
        return {"per": self.per, "on_exceeded": self.on_exceeded, "limits": limits}

    def limits(self) -> Iterator[tuple[str, float]]:
        """Yield the name and the value of each limit that is set. A value that is no int, for example a Decimal, is yielded as
        a float."""
        for name in LIMITS:
            if (limit := getattr(self, name)) is not None:
                yield name, limit if isinstance(limit, int) else float(limit)


def _is_number(given: object) -> bool:
    """Return whether ``given`` is NaN, infinity, or a number that a float can hold."""
    if isinstance(given, bool) or not isinstance(given, (Real, Decimal)):
        return False
    try:
        return not math.isinf(held := float(given)) or given == held
    except (ValueError, OverflowError):
        return False


def as_budgets(given: Budget | Sequence[Budget] | None) -> tuple[Budget, ...]:
    """Return the budgets that an agent was given, as a tuple."""
    return () if given is None else (given,) if isinstance(given, Budget) else tuple(given)


def budgets_of(function: object) -> list[JsonObject]:
    """Return the budgets in the definition of an agent, as JSON. Only ``serve`` and :class:`~runyard.Agent` put budgets into a
    definition.

    Budgets that a function gives to :func:`.engine.drive` are not in its definition.
    """
    given: object = getattr(function, "budget", None)
    shown = given if isinstance(given, Sequence) else (given,)
    return [budget.describe() for budget in shown if isinstance(budget, Budget)]


def amounts(used: Usage) -> dict[str, float]:
    """Return the used amounts, by the names of the limits."""
    return {
        "tokens": used.input_tokens + used.output_tokens,
        "cost": used.cost,
        "steps": used.requests,
        "seconds": used.seconds,
    }


@dataclass(slots=True)
class _Limit:
    """One limit of a budget. ``key``: the key of its questions, without the number of the question. ``granted``: how often
    the limit was raised in this attempt."""

    budget: Budget
    name: str
    amount: float
    key: str
    granted: int = 0

    @property
    def most(self) -> float:
        """The limit after all grants."""
        return self.amount * (1 + self.granted)


class BudgetGuard:
    """Checks the budgets of one attempt. The guard counts how often each limit was raised."""

    def __init__(self, context: RunContext, budgets: Sequence[Budget]) -> None:
        self._context = context
        self._limits = list(_limits_of(budgets))
        self._before: Usage | None = None

    async def check(self, used: Usage) -> None:
        """Check whether the run may make another model request. ``used``: the run's usage so far.

        If a budget is used up, apply ``on_exceeded``: ``ask`` suspends the run and asks a human, ``fail`` raises
        BudgetExceededError. An answer other than ``true`` also raises this error.
        """
        for limit in self._limits:
            if limit.budget.per == "thread":
                if self._before is None:
                    self._before = await self._context.thread_usage()
                spent = amounts(self._before + used)
            else:
                spent = amounts(used)
            await self._check(limit, spent[limit.name])

    async def _check(self, limit: _Limit, spent: float) -> None:
        budget, name = limit.budget, limit.name
        while spent >= limit.most:
            if budget.on_exceeded == "fail" or not await self._ask(limit, spent):
                raise BudgetExceededError(
                    f"the {budget.per} has reached a budget: {name} is {spent:g}, the limit is {limit.most:g}",
                    budget=name,
                    per=budget.per,
                    limit=limit.most,
                    used=spent,
                )
            limit.granted += 1

    async def _ask(self, limit: _Limit, spent: float) -> bool:
        per, name, most, amount = limit.budget.per, limit.name, limit.most, limit.amount
        question = f"The {per} has reached a budget: {name} is {spent:g}, the limit is {most:g}. Raise the limit by {amount:g}?"
        payload: JsonObject = {
            "question": question,
            "budget": {"per": per, "name": name, "limit": most, "used": spent},
        }
        return await self._context.ask(payload, GO_ON, key=f"{limit.key}:{limit.granted}") is True


def _limits_of(budgets: Sequence[Budget]) -> Iterator[_Limit]:
    """Yield the limits of all budgets. If several budgets have a limit of one name, the keys of the later limits have a
    number."""
    seen: Counter[str] = Counter()
    for budget in budgets:
        for name, amount in budget.limits():
            what = f"{budget.per}:{name}"
            seen[what] += 1
            yield _Limit(budget, name, amount, f"budget:{what}" if seen[what] == 1 else f"budget:{what}:no-{seen[what]}")
