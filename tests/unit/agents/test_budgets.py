"""What a run or a thread may use (P2)."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent

import runyard
from runyard import Budget, serve
from runyard.agents.budgets import budgets_of
from runyard.domain.states import RunStatus
from runyard.errors import InvalidInputError
from runyard_backends.codec.values import to_json
from tests.support.model_lab import Lab, Script, call, status


@pytest.fixture
async def lab() -> Lab:
    return await Lab.open()


def spender(rounds: int, **limits: Any) -> tuple[Script, Any]:
    """An agent that makes ``rounds`` model requests under a budget."""
    script = Script([*([call("spend", f"s{n}")] for n in range(rounds - 1)), "done"])
    agent: Agent[Any, Any] = Agent(script.model)
    agent.tool_plain(lambda: "spent", name="spend")
    return script, serve(agent, budget=Budget(**limits))


def test_the_definition_of_an_agent_shows_its_budgets() -> None:
    engine: Agent[Any, Any] = Agent("test")
    budget = Budget(tokens=10, cost=0.5, per="thread", on_exceeded="ask")
    shown = {"per": "thread", "on_exceeded": "ask", "limits": {"tokens": 10, "cost": 0.5}}
    assert budgets_of(serve(engine, budget=budget)) == [shown]
    assert budgets_of(runyard.Agent(engine=engine, budget=[budget, budget])) == [shown, shown]
    assert [budgets_of(other) for other in (serve(engine), print, object())] == [[], [], []]


def test_the_definition_shows_each_limit_as_a_number_of_json() -> None:
    """A limit that no run can reach is not shown. JSON has no infinity."""
    budget = Budget(tokens=10, cost=Decimal("1.5"), seconds=float("inf"))  # type: ignore[arg-type]
    shown = budget.describe()["limits"]
    assert shown == {"tokens": 10, "cost": 1.5} and to_json(shown) == '{"tokens": 10, "cost": 1.5}'


@pytest.mark.parametrize("limit", [Decimal("sNaN"), Decimal("NaN"), "abc", "5", True, [1], Decimal("1e400"), 10**400])
def test_a_limit_that_is_no_number_is_refused(limit: Any) -> None:
    """P2: Text, booleans, NaN, and finite numbers that no float can hold. Infinity is allowed, because a float can hold it."""
    for name in ("tokens", "cost", "steps", "seconds"):
        with pytest.raises(InvalidInputError) as found:
            Budget(**{name: limit})
        assert found.value.details["field"] == "budget"


async def test_the_request_for_a_larger_budget_has_numbers_of_json(lab: Lab) -> None:
    """A limit can be a Decimal. The request and the error have it as a float."""
    _, agent = spender(6, seconds=Decimal("1e-9"), on_exceeded="ask")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    [request] = await lab.pending()
    asked = request.payload["budget"]
    assert isinstance(asked, dict) and asked["limit"] == 1e-9 and type(asked["limit"]) is float


async def test_a_run_within_its_budget_completes(lab: Lab) -> None:
    script, agent = spender(3, steps=3, tokens=100_000, seconds=600, cost=1)
    assert status(await lab.attempt(agent)) is RunStatus.COMPLETED
    assert len(script.requests) == 3


@pytest.mark.parametrize(("limits", "requests"), [({"steps": 2}, 2), ({"tokens": 1}, 1), ({"seconds": 1e-9}, 1)])
async def test_a_budget_that_is_used_up_fails_the_run_before_the_next_request(lab: Lab, limits: Any, requests: int) -> None:
    script, agent = spender(5, **limits)
    ended = await lab.attempt(agent)
    assert ended is not None and ended.status is RunStatus.FAILED
    assert ended.error is not None and ended.error.code == "budget_exceeded"
    assert ended.error.details["budget"] == next(iter(limits))
    assert len(script.requests) == requests


async def test_budget_counts_the_usage_of_earlier_attempts(lab: Lab) -> None:
    script, agent = spender(5, steps=3)
    await lab.crash(agent, appends=3)
    assert len(script.requests) == 2
    assert status(await lab.attempt(agent)) is RunStatus.FAILED
    assert len(script.requests) == 3


async def test_a_threads_budget_is_for_all_its_runs(lab: Lab) -> None:
    script, agent = spender(1, steps=2, per="thread")
    for run_id in ("one", "two"):
        assert status(await lab.attempt(agent, run_id)) is RunStatus.COMPLETED
        script.before += 1
    ended = await lab.attempt(agent, "three")
    assert ended is not None and ended.error is not None
    assert (ended.status, ended.error.details["per"]) == (RunStatus.FAILED, "thread")
    assert len(script.requests) == 2


async def test_a_human_may_grant_the_same_amount_again(lab: Lab) -> None:
    """Each grant is asked for once, in whatever attempt it is needed."""
    script, agent = spender(6, steps=2, on_exceeded="ask")
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    assert len(script.requests) == 2
    await lab.respond(True)
    await lab.crash(agent, appends=1)
    assert status(await lab.attempt(agent)) is RunStatus.SUSPENDED
    assert len(script.requests) == 4
    [request] = await lab.pending()
    assert request.payload["budget"] == {"per": "run", "name": "steps", "limit": 4, "used": 4}
    await lab.respond(False)
    ended = await lab.attempt(agent)
    assert ended is not None and ended.error is not None
    assert (ended.status, ended.error.code) == (RunStatus.FAILED, "budget_exceeded")


@pytest.mark.parametrize("other", [{}, {"on_exceeded": "ask"}])
async def test_a_grant_raises_the_limit_of_one_budget(lab: Lab, other: Any) -> None:
    """P2: Another budget may have a limit of the same name. Its limit stays, also in a later attempt."""
    script, _ = spender(8, steps=9)
    agent: Agent[Any, Any] = Agent(script.model)
    agent.tool_plain(lambda: "spent", name="spend")
    served = serve(agent, budget=[Budget(steps=2, on_exceeded="ask"), Budget(steps=3, **other)])
    assert status(await lab.attempt(served)) is RunStatus.SUSPENDED
    await lab.respond(True)
    ended = await lab.attempt(served)
    assert len(script.requests) == 3 and ended is not None
    if other:
        [request] = await lab.pending()
        assert request.payload["budget"] == {"per": "run", "name": "steps", "limit": 3, "used": 3}
        await lab.respond(True)
        assert status(await lab.attempt(served)) is RunStatus.SUSPENDED
        [request] = await lab.pending()
        assert request.payload["budget"] == {"per": "run", "name": "steps", "limit": 4, "used": 4}
    else:
        assert ended.error is not None and ended.error.details["limit"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"steps": 0},
        {"tokens": 1, "cost": -1},
        {"cost": float("nan")},
        {"cost": Decimal("nan")},
        {"steps": 1, "per": "week"},
        {"steps": 1, "on_exceeded": "pray"},
    ],
)
def test_a_budget_has_positive_limits(fields: Any) -> None:
    with pytest.raises(InvalidInputError):
        Budget(**fields)
