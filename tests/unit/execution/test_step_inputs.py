"""The text of a step's arguments (R24): short, made without the code of their classes, and read by the filter of the App."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from runyard.app import App
from runyard.execution.context import RunContext
from runyard.execution.step_inputs import step_input
from runyard.execution.steps import step
from runyard.models import ToolCallPart
from tests.support.attempt_lab import Lab


def f(*args: Any, **named: Any) -> None:
    """A function with any arguments."""


def shown(*args: Any) -> str | None:
    return step_input(f, args, None)


class Odd:
    """A value whose own code must not be called."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise AssertionError("isinstance")

    def __repr__(self) -> str:
        raise AssertionError("repr")

    __str__ = __repr__


class OddText(str):
    """A text whose class may hide it, and whose own code must not be called."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise AssertionError("getitem")

    def __str__(self) -> str:
        raise AssertionError("str")


class OddDict(dict[str, int]):
    """A dict whose own code must not be called."""

    def items(self) -> Any:
        raise AssertionError("items")

    def __iter__(self) -> Any:
        raise AssertionError("iter")


class Pair(NamedTuple):
    """A value that JSON shows as a list."""

    left: int
    right: int


@dataclass
class Order:
    """A value that is not JSON."""

    card: str


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((), None),
        ((None,), "null"),
        ((7, "EUR", True, 1.5), '7, "EUR", true, 1.5'),
        (({"to": ["é", 'a"b']},), '{"to": ["é", "a\\"b"]}'),
        ((Pair(1, 2), []), "[1, 2], []"),
        ((Order("4111"), Decimal("1.5"), b"x", f), "<Order>, <Decimal>, <bytes>, <function>"),
        (({(1, 2): Order("4111"), 3: 4},), "{…: <Order>, 3: 4}"),
        ((Odd(), OddText("text"), OddDict(n=1)), '<Odd>, <OddText>, {"n": 1}'),
        ((2**5000,), "<int>"),
        (("a\ud800\0",), '"a\\ud800\\u0000"'),
    ],
)
def test_arguments_are_shown_as_json_or_by_their_type(args: tuple[Any, ...], text: str | None) -> None:
    assert shown(*args) == text


def test_arguments_of_a_partial_are_shown_in_the_order_of_the_call() -> None:
    inner = functools.partial(f, 1, a="x", b=2)
    assert step_input(functools.partial(inner, 2, b=3), (3,), None) == '1, 2, 3, a="x", b=3'
    assert step_input(functools.partial(f, **{"n\0\ud800": 1}), (), None) == "n\\x00\\ud800=1"


def test_the_text_is_bounded_however_large_the_arguments_are() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    keys = {f"k{n}": n for n in range(100_000)}
    for args in (["x" * 10**7], [circle], [deep], [keys], ["é" * 400], list(range(10**6)), [type("T" * 1000, (), {})()]):
        text = step_input(f, args, None)
        assert text is not None and len(text) <= 300
        filtered = step_input(f, args, lambda text: text)
        assert filtered is not None and len(filtered) <= 300
    assert shown("x" * 10**7) == '"' + "x" * 298 + "…"


def test_a_filter_reads_the_arguments_before_they_are_cut() -> None:
    """A secret at the end of the text is filtered, although the stored text has only its beginning."""
    text = step_input(f, ["x" * 290, "4111111111111111"], lambda text: re.sub(r"\d{16}", "[card]", text))
    assert text == '"' + "x" * 290 + '", "[car…'
    assert step_input(f, ["secret"], lambda text: None) is None


@pytest.mark.parametrize("before", [[], ["x" * 60_000], ["x" * 65_530]])
def test_a_filter_reads_no_part_of_a_value(before: list[str]) -> None:
    """It recognizes a secret by its beginning and its end, and what it drops makes no room for a part of the next value."""
    secret = "BEGIN " + "k" * 6000 + " END"
    read: list[str] = []

    def drop(text: str) -> str:
        read.append(text)
        return re.sub("x{9,}|BEGIN k+ END", "[dropped]", text)

    text = step_input(f, [*before, secret, "y" * 70_000], drop)
    assert text is not None and "kk" not in text and text.endswith(("<str>", "…"))
    assert len(read[0]) < 80_000


def test_a_class_that_hides_its_name_is_shown() -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise AssertionError("name")

    assert shown(Meta("Hidden", (), {})()) == "<Hidden>"


def test_a_filter_that_fails_keeps_nothing() -> None:
    def broken(text: str) -> str:
        raise ValueError(text)

    with capture_logs() as logs:
        assert step_input(f, ["secret"], broken) is None
    assert [line["event"] for line in logs] == ["traceback_filter_failed"] and "secret" not in str(logs)


async def inputs(lab: Lab) -> dict[str, str | None]:
    entries = (await lab.backend.timelines.timeline("t", "r")).entries
    return {entry.id: entry.input for entry in entries if entry.type == "step"}


async def test_the_timeline_of_a_run_has_the_arguments_of_its_steps(lab: Lab) -> None:
    """R24: The arguments of a step are in the timeline from the start of the step."""
    started: dict[str, str | None] = {}

    async def charge(cents: int, currency: str) -> None:
        started.update(await inputs(lab))

    @step(key="mail")
    async def mail(to: str, *, order: Order) -> None:
        pass

    async def look(q: str) -> None:
        pass

    async def agent(ctx: RunContext) -> None:
        await ctx.step(charge, 5, "EUR")
        await mail("a@b", order=Order("4111"))
        await ctx.tool(look, q="x")
        await ctx.tool(look, ToolCallPart(id="c", name="look", arguments={"q": "y"}))
        await ctx.step(lambda: 1, key="none")

    await lab.attempt(agent)
    assert started == {"charge#0": '5, "EUR"'}
    assert await inputs(lab) == {
        "charge#0": '5, "EUR"', "mail": '"a@b", order=<Order>', "look#0": '{"q": "x"}', "tool:c": '{"q": "y"}', "none": None,
    }  # fmt: skip


async def test_the_filter_of_the_app_reads_the_arguments_of_steps(lab: Lab) -> None:
    async def agent(ctx: RunContext) -> None:
        await ctx.step(f, "secret", key="s")

    app = App({"agent": agent}, traceback_filter=lambda text: text.replace("secret", "[hidden]"))
    await lab.attempt(agent, app=app)
    assert await inputs(lab) == {"s": '"[hidden]"'}
